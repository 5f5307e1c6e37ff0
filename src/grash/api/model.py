"""Use a trained model: predictions by name, scores of triples, neighbors, evaluation, export."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from grash.api.explain import (
    Explanation,
    Reason,
    TypeShare,
    find_reasons,
    surroundings,
    type_shares,
)
from grash.data.arrays import TripleSet
from grash.data.candidates import Ids, SeenEntities, common_entities, entities_of_type, find_type_relation
from grash.data.dataset import DATASET_FILE, SPLITS, Dataset, SplitName
from grash.data.growth import grow
from grash.data.iris import find_id, prefixes_of, shorten
from grash.data.known_answers import TripleIndex, known_relations
from grash.data.load import Source, as_dataset, from_triples, is_bundled, load_dataset
from grash.data.readers.source import dataset_name, split_files
from grash.engines.memory import choose_device
from grash.engines.update import CALIBRATED, NewRows, UpdateReport, UpdateSettings, update_model
from grash.errors import ConfigError, FormatError, InputError, UnknownName
from grash.evaluation.answers import METRICS, AnswerArrays, Answerer, Metric, nearest_entities, score_triples
from grash.evaluation.calibration import Calibration, Reliability, calibrate, measure
from grash.evaluation.discovery import discover
from grash.evaluation.evaluate import evaluate as evaluate_own
from grash.evaluation.evaluate import evaluate_other
from grash.evaluation.metrics import Evaluation
from grash.formatting import counted, html_table, printable
from grash.interop.export import Format, export_model
from grash.interop.hub import pull_model, push_model
from grash.kernels.storage import to_float32
from grash.keywords import EvaluateKeywords, with_keywords
from grash.models import KgeModel
from grash.models.base import SIDES, Side
from grash.models.store import StoredModel, model_folder, replace_calibration, save_model
from grash.models.store import load_model as read_model
from grash.report.map import MAX_POINTS, Method, write_map
from grash.training.checkpoint import checkpoint_folder
from grash.training.config import TrainConfig, make_config
from grash.training.loop import Progress

if TYPE_CHECKING:
    from typing_extensions import Unpack

Name = str | int  # of an entity or relation; an integer is the name "5", or the id of a graph without names

_log = logging.getLogger(__name__)
_NOT_CALIBRATED = "The model is not calibrated, so it has no probabilities: call calibrate(), or run grash calibrate."
_RELATIONS_BY_SCORE = (
    "Relations are ranked by score. A probability is that of the tail, as the answer to head and relation."
)
_SHOWN = 10  # discovered triples in a repr


@dataclass(frozen=True)
class Prediction:
    """An answer: the entity or relation, its score, and whether the dataset has the triple.

    probability: how often held-out answers like this one were right; None if the model is not calibrated.
    """

    name: str
    id: int
    score: float
    known: bool = False
    probability: float | None = None


class Predictions(list[Prediction]):
    """The answers to a question, best first: a list, shown as a table."""

    def to_pandas(self) -> Any:
        """Return a pandas data frame with the columns rank, name, score, known, probability and id."""
        return _data_frame(self.rows())

    def rows(self) -> list[dict[str, Any]]:
        """Return one mapping per answer."""
        return [{"rank": rank, **asdict(answer)} for rank, answer in enumerate(self, 1)]

    def __repr__(self) -> str:
        lines = []
        for rank, answer in enumerate(self, 1):
            probability = "" if answer.probability is None else f"  {answer.probability:>6.3f}"
            known = "  (known)" if answer.known else ""
            lines.append(f"{rank:>3}  {answer.score:>9.4g}{probability}  {printable(answer.name)}{known}")
        return "\n".join(lines) or "no answers"

    def _repr_html_(self) -> str:
        columns = _shown_columns(self, ("rank", "name", "score", "known", "probability"))
        return html_table(f"{len(self)} answers", columns, [[row[c] for c in columns] for row in self.rows()])


class ManyPredictions(list[Predictions]):
    """The answers to several questions: a list in their order, shown below each question."""

    def __init__(self, answers: Iterable[Predictions], questions: Sequence[str]) -> None:
        super().__init__(answers)
        self.questions = tuple(questions)  # e.g. "Peru · borders · ?"

    def __repr__(self) -> str:
        parts = [f"{printable(q)}\n{answers!r}" for q, answers in zip(self.questions[:_SHOWN], self)]
        return "\n\n".join(parts + [self._rest()] * (len(self) > _SHOWN)) or "no questions"

    def _repr_html_(self) -> str:
        columns = _shown_columns(
            [a for answers in self for a in answers], ("question", "rank", "name", "score", "known", "probability")
        )
        shown = zip(self.questions[:_SHOWN], self)
        rows = [[{"question": q, **row}[c] for c in columns] for q, answers in shown for row in answers.rows()]
        below = self._rest() if len(self) > _SHOWN else ""
        return html_table(f"answers to {counted(len(self), 'question')}", columns, rows, below=below)

    def _rest(self) -> str:
        return f"… and {counted(len(self) - _SHOWN, 'more question')}"


def _shown_columns(found: Iterable[Any], columns: Sequence[str]) -> list[str]:
    """Return the columns of a table without those in which all values would be empty."""
    found = list(found)
    empty = {name for name in ("known", "probability") if all(getattr(a, name) in (None, False) for a in found)}
    return [name for name in columns if name not in empty]


@dataclass(frozen=True)
class DiscoveredTriple:
    """A new triple by name and by ids, its probability and its score as a tail."""

    head: str
    relation: str
    tail: str
    ids: tuple[int, int, int]
    probability: float
    score: float
    known: bool = False  # whether valid or test has it; only if these were hidden


class DiscoveredTriples(list[DiscoveredTriple]):
    """New triples, most probable first: a list, shown as a table."""

    def to_pandas(self) -> Any:
        """Return a pandas data frame with the columns head, relation, tail, ids, probability, score and known."""
        return _data_frame([asdict(triple) for triple in self])

    def __repr__(self) -> str:
        lines = []
        for i, each in enumerate(self[:_SHOWN], 1):
            triple = printable(" · ".join((each.head, each.relation, each.tail)))
            lines.append(f"{i:>3}  {each.probability:>6.3f}  {triple}{'  (known)' if each.known else ''}")
        return "\n".join(lines + ["…"] * (len(self) > _SHOWN) + [self._summary()])

    def _repr_html_(self) -> str:
        columns = _shown_columns(self, ("head", "relation", "tail", "probability", "score", "known"))
        rows = [[getattr(triple, name) for name in columns] for triple in self[:_SHOWN]]
        return html_table(self._summary(), columns, rows)

    def _summary(self) -> str:
        shown = f", the {_SHOWN} most probable shown" if len(self) > _SHOWN else ""
        return f"{len(self):,} new triple{'' if len(self) == 1 else 's'}{shown}"


def _data_frame(rows: list[dict[str, Any]]) -> Any:
    try:
        import pandas
    except ImportError as error:
        raise InputError("A data frame needs pandas, which is not installed: pip install pandas.") from error
    return pandas.DataFrame(rows)


@dataclass(frozen=True)
class Query:
    """A question by ids; the part that is None is predicted."""

    head: int | None
    relation: int | None
    tail: int | None

    @property
    def asked(self) -> Literal["head", "relation", "tail"]:
        return "head" if self.head is None else "relation" if self.relation is None else "tail"

    @property
    def row(self) -> list[int]:
        """Head, relation and tail; −1 for the part to predict."""
        return [-1 if part is None else part for part in (self.head, self.relation, self.tail)]


class Model:
    """A trained model with its dataset.

    kge: the tables and score functions; config: TrainConfig; history: the validations as dicts; evaluation: the
    Evaluation of the test split as a dict, empty if there was none; calibration: how scores become probabilities,
    None if the model is not calibrated. members: the models folded into this one, if it is an ensemble; else 1.
    """

    def __init__(
        self,
        kge: KgeModel,
        dataset: Dataset,
        config: TrainConfig,
        *,
        evaluation: dict[str, Any] | None = None,
        history: Iterable[dict[str, Any]] = (),
        calibration: Calibration | None = None,
        members: int = 1,
    ) -> None:
        self.kge, self.dataset, self.config, self.members = kge, dataset, config, members
        self.evaluation, self.history = dict(evaluation or {}), list(history)
        self.calibration = calibration
        self.triple_index: TripleIndex | None = None  # for many questions, where one pass over the triples is slow
        self._largest_rows: dict[Side, tuple[Any, torch.Tensor]] = {}

    @classmethod
    def load(cls, folder: str | Path, device: str = "auto", *, verify: bool = True, calibrated: bool = True) -> Model:
        """Load the model of a folder that `save` or `grash train` wrote.

        verify: compare all files with their checksums first; without it, a large model is loaded in a second.
        calibrated: with its calibration; without, it can be calibrated again if that file is damaged.
        """
        if not isinstance(folder, str | PathLike) or not str(folder):
            raise InputError(f"{folder!r} is not the path of a model folder.")
        _check_trained(Path(folder))
        stored = read_model(Path(folder), device=choose_device(device), verify=verify, calibrated=calibrated)
        try:
            config = make_config(stored.config)
        except (ConfigError, UnknownName, TypeError) as error:
            raise FormatError(f"{folder} is a damaged model folder. Its config: {error}") from error
        try:
            calibration = None if stored.calibration is None else Calibration.from_dict(stored.calibration)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FormatError(
                f"{folder} has a damaged calibration.json ({error}): write it again with grash calibrate."
            ) from error
        found: dict[str, Any] = {"evaluation": stored.evaluation, "history": stored.history, "members": stored.members}
        return cls(stored.model, stored.dataset, config, **found, calibration=calibration)

    def save(self, folder: str | Path, overwrite: bool = False) -> None:
        """Write the model folder, completely or not at all."""
        calibration = None if self.calibration is None else self.calibration.to_dict()
        stored = StoredModel(
            self.kge, self.dataset, self.config.model_dump(), self.evaluation, self.history, calibration, self.members
        )
        save_model(stored, Path(folder), overwrite=overwrite)

    def export(
        self,
        folder: str | Path,
        format: Format = "npy",
        *,
        dataset: str | Path | None = None,
        overwrite: bool = False,
    ) -> list[Path]:
        """Write the embeddings, splits or configuration for other programs; return the files written.

        The formats are those of `grash export`. dataset, with pykeen and libkge: the graph as that tool knows it.
        """
        return export_model(
            self.kge, self.dataset, self.config, folder, format, dataset_there=dataset, overwrite=overwrite
        )

    def push(self, repository: str, *, public: bool = False, endpoint: str | None = None) -> str:
        """Upload the model to OWNER/NAME of the Hugging Face Hub (extra `hub`), and return its address.

        public: create a public repository, not a private one. endpoint: of another server than the Hub.
        """
        with tempfile.TemporaryDirectory() as folder:
            self.save(Path(folder) / "model")
            return push_model(Path(folder) / "model", repository, public=public, endpoint=endpoint)

    @classmethod
    def pull(
        cls,
        repository: str,
        folder: str | Path,
        *,
        revision: str | None = None,
        overwrite: bool = False,
        endpoint: str | None = None,
        device: str = "auto",
    ) -> Model:
        """Download a model of the Hugging Face Hub (extra `hub`) into a model folder, and load it.

        revision: a branch, tag or commit. endpoint: of another server than the Hub.
        """
        pull_model(repository, folder, revision=revision, overwrite=overwrite, endpoint=endpoint)
        return cls.load(folder, device)

    def map(
        self,
        path: str | Path = "map.html",
        *,
        method: Method = "auto",
        max_points: int = MAX_POINTS,
        type_relation: Name | None = None,
        seed: int = 0,
        overwrite: bool = False,
    ) -> Path:
        """Write a map of the entities, one page for a browser, and return its path.

        method: umap (umap-learn, extra `map`) or pca; auto is UMAP where it is installed, for up to 100,000 entities.
        max_points: of a larger graph, the entities with most triples. type_relation: the relation from an entity to its
        type, for colors; by default found by its name.
        """
        relation = None if type_relation is None else self.relation_id(type_relation)
        return write_map(
            self.kge, self.dataset, path, method=method, max_points=max_points, type_relation=relation, seed=seed,
            overwrite=overwrite,
        )  # fmt: skip

    def __repr__(self) -> str:
        members = f"ensemble of {self.members}, " if self.members > 1 else ""
        return f"Model({self.kge.name}, dim={self.kge.dim}, {members}{self.dataset!r})"

    def _repr_html_(self) -> str:
        known = {"model": self.kge.name, "dim": self.kge.dim, "dataset": self.dataset.name}
        known |= {"ensemble of": f"{self.members} models"} if self.members > 1 else {}
        known |= {"entities": self.dataset.n_entities, "relations": self.dataset.n_relations}
        mrr = (self.evaluation.get("both") or {}).get("mrr")
        known |= {} if mrr is None else {f"{self.evaluation.get('split', 'test')} MRR": mrr}
        known |= {"probabilities": "no" if self.calibration is None else "calibrated"}
        return html_table("Model", ("", ""), list(known.items()))

    @property
    def _answerer(self) -> Answerer:
        seen, index = (lambda: self.seen_entities), self.triple_index
        return Answerer(self.kge, self.dataset, self.calibration, seen, index, self._largest_rows)

    @property
    def entity_embeddings(self) -> NDArray[np.float32]:
        """(E, D): row i belongs to entity i. Complex numbers: first all real parts, then all imaginary parts."""
        return to_float32(self.kge.entity).cpu().numpy()

    @property
    def relation_embeddings(self) -> NDArray[np.float32]:
        """(R, width), or with reciprocals (2R, width), where row r + R is the inverse of r. RESCAL: D·D floats,
        row by row; RotatE: D/2 phases."""
        return self.kge.relation.cpu().numpy()

    def predict(
        self,
        head: Name | None = None,
        relation: Name | None = None,
        tail: Name | None = None,
        *,
        k: int = 10,
        new_only: bool = False,
        like_known: bool = False,
        answer_type: Name | None = None,
        type_relation: Name | None = None,
        candidates: Iterable[Name] | NDArray[Any] | None = None,
        head_id: int | None = None,
        relation_id: int | None = None,
        tail_id: int | None = None,
    ) -> Predictions:
        """Return the k best answers for the part that is not given, best first; equal scores by ascending id.

        Give two parts by name, or by id (head_id, relation_id, tail_id). The ids of a graph without names are names.
        new_only: omit answers that the dataset (train, valid or test) has already.
        like_known: only entities seen on that side of the relation in train. answer_type: only entities of this type,
        i.e. with a triple (entity, type_relation, answer_type) in train; type_relation is found by its name if it is
        called rdf:type, P31, instance_of or the like. candidates: only these entities, names or an array of ids.
        """
        query = self.query(head, relation, tail, head_id=head_id, relation_id=relation_id, tail_id=tail_id)
        self.warn_of_unseen(np.array([query.row]))
        options: dict[str, Any] = {"new_only": new_only, "like_known": like_known, "answer_type": answer_type}
        return self.predict_many([query], k, type_relation=type_relation, candidates=candidates, **options)[0]

    def predict_many(
        self,
        queries: Iterable[Sequence[Name | None] | Query],
        k: int = 10,
        *,
        new_only: bool = False,
        like_known: bool = False,
        answer_type: Name | None = None,
        type_relation: Name | None = None,
        candidates: Iterable[Name] | NDArray[Any] | None = None,
    ) -> ManyPredictions:
        """Call `predict` for each (head, relation, tail) of names, one of them None, or each `Query` of ids."""
        _check_count(k)
        questions = [q if isinstance(q, Query) else self.query(*_three(q, i)) for i, q in enumerate(queries)]
        allowed = self.allowed_entities(answer_type, type_relation, candidates)
        if allowed is not None and any(q.asked == "relation" for q in questions):
            raise InputError("A question for a relation has no candidates or answer type: these are about entities.")
        answers = [Predictions() for _ in questions]
        names = [self.relation_name if q.asked == "relation" else self.entity_name for q in questions]
        asked = np.array([q.row for q in questions], np.int64).reshape(-1, 3)
        for part in self._answerer.answers(asked, k, new_only=new_only, like_known=like_known, allowed=allowed):
            for i, answer, score, is_known, p in part.rows():
                answers[i].append(Prediction(names[i](answer), answer, score, is_known, p))
        return ManyPredictions(answers, [self._question(question) for question in questions])

    def _question(self, query: Query) -> str:
        """Return a question by names, e.g. "Peru · borders · ?"."""
        kinds = (self.entity_name, self.relation_name, self.entity_name)
        return " · ".join(
            "?" if i is None else name(i) for name, i in zip(kinds, (query.head, query.relation, query.tail))
        )

    def answer_arrays(
        self, questions: NDArray[np.integer], k: int = 10, *, new_only: bool = False, like_known: bool = False,
        allowed: Ids | None = None,
    ) -> AnswerArrays:  # fmt: skip
        """Return the k best answers to many questions as arrays, without an object per answer.

        questions (n, 3): head, relation and tail ids; the part to predict is −1. allowed: ids of the entities that may
        be answers, from `allowed_entities`. new_only, like_known: as in `predict`.
        """
        _check_count(k)
        questions = np.asarray(questions)
        if questions.ndim != 2 or questions.shape[1] != 3 or ((questions < 0).sum(1) != 1).any():
            raise InputError("Questions have the shape (n, 3), with −1 for the one part to predict.")
        self._ids(np.maximum(questions, 0))  # raises an error for an id that does not exist
        allowed = None if allowed is None else self._entity_ids(allowed)
        options: dict[str, Any] = {"new_only": new_only, "like_known": like_known, "allowed": allowed}
        return self._answerer.answer_arrays(questions.astype(np.int64), k, **options)

    @cached_property
    def seen_entities(self) -> SeenEntities:
        """Call it with a relation id and a side to get the ids of the entities seen there in train."""
        return SeenEntities(self.dataset)

    def allowed_entities(
        self,
        answer_type: Name | None = None,
        type_relation: Name | None = None,
        candidates: Iterable[Name] | NDArray[Any] | None = None,
    ) -> Ids | None:
        """Return the ids of the entities that may be answers, ascending; None if all may. See `predict`."""
        allowed = None
        if candidates is not None:
            allowed = np.unique(self._entity_ids(candidates))
        if answer_type is None:
            if type_relation is not None:
                raise InputError("A type relation is given, but no answer type: give --answer-type (answer_type=).")
            return allowed
        if type_relation is not None:
            relation = self.relation_id(type_relation)
        elif (found := find_type_relation(self.dataset)) is not None:
            relation = found
        else:
            raise InputError(
                "An answer type is given, but no relation is called rdf:type, P31, instance_of or the like: name the "
                "relation from an entity to its type with --type-relation (type_relation=)."
            )
        return common_entities(allowed, entities_of_type(self.dataset, relation, self.entity_id(answer_type)))

    @torch.no_grad()
    def score(self, triples: Iterable[Sequence[Name]] | NDArray[Any], *, side: Side = "tail") -> NDArray[np.float32]:
        """Return scores (n,) of triples; higher is more plausible.

        triples: rows of names, or an integer array (n, 3) of ids, as the splits of a Dataset are. With reciprocal
        relations, a triple has two scores; this is the one that ranks `side`.
        """
        _check_side(side)
        return score_triples(self.kge, self._ids(triples), side)

    def update(
        self,
        added: Source | Iterable[Any] | None = None,
        removed: Source | Iterable[Any] | None = None,
        *,
        epochs: float | None = None,
        replay: float | None = None,
        freeze: bool = False,
        new_rows: NewRows = "triples",
        evaluate: bool = True,
        threads: int | None = None,
        watch: Callable[[Progress], None] | None = None,
    ) -> tuple[Model, UpdateReport]:
        """Continue the training on a changed graph; return the new model, and what changed and what it cost.

        added, removed: triples as for `from_triples`, a file, a folder or a Dataset. Known names keep their rows, new
        ones get rows. The triples of a file are added to train; those of a folder with splits to these. Triples of
        valid and test stay held out. epochs: passes over the examples (default: 12.5 % of the earlier epochs,
        with freeze none: new rows are only set).
        replay: train on the new triples and that many old ones for each, instead of all. freeze: old rows stay as they
        are. new_rows: new rows start at what their triples point at (triples), at the mean of their neighbors
        (neighbors) or at random (random). evaluate: test at the end. watch: receives the progress. Validations of
        large graphs use a sample of 500 triples or more; the calibration asks at most 1,000 questions per side.
        """
        settings = UpdateSettings(epochs, replay, freeze, new_rows)
        growth = grow(self.dataset, *(None if g is None else load_triples(g) for g in (added, removed)))
        trained = max((v["epoch"] for v in self.history if "update" not in v), default=self.config.epochs)
        kge, history, report = update_model(
            self.kge, growth, self.config, settings, epochs_before=trained, threads=threads, watch=watch
        )
        number = 1 + max((v.get("update", 0) for v in self.history), default=0)
        past = [*self.history, *(asdict(v) | {"update": number} for v in history)]
        model = Model(kge, growth.dataset, self.config, history=past, members=self.members)
        if evaluate and len(growth.dataset.test):
            model.evaluation = model.evaluate(seed=self.config.seed).to_dict()
        temperature = None if self.calibration is None else self.calibration.temperature
        model.calibration = calibrate(
            kge, growth.dataset, sample=CALIBRATED, seed=self.config.seed, temperature=temperature
        )
        return model, report

    def discover(
        self,
        relation: Name | None = None,
        *,
        k: int = 1000,
        min_probability: float = 0.0,
        like_known: bool = True,
        hide: bool = False,
        watch: Callable[[int, int], None] | None = None,
    ) -> DiscoveredTriples:
        """Return the k most probable triples that the dataset does not have, most probable first.

        The probability of a triple is the smaller one of its two questions, each multiplied by the share of questions
        that have another answer. relation: only of this one. like_known: only heads and tails seen on that side of the
        relation in train; False asks about all pairs, most of which make no sense. hide: treat valid and test as
        unknown, to count what is found of them (`known`). watch: receives the number of questions done, and of all.
        InputError if the model is not calibrated.
        """
        if self.calibration is None:
            raise InputError(_NOT_CALIBRATED)
        _check_count(k)
        relations = None if relation is None else [self.relation_id(relation)]
        found = discover(
            self.kge, self.dataset, self.calibration, k=k, relations=relations, min_probability=min_probability,
            like_known=like_known, known=("train",) if hide else SPLITS, watch=watch,
        )  # fmt: skip
        held = TripleSet(np.ascontiguousarray(np.concatenate([self.dataset.valid, self.dataset.test])))
        known = held.contains(np.ascontiguousarray(found.triples.astype(np.int32)))
        columns = (found.triples.tolist(), found.probabilities.tolist(), found.scores.tolist(), known.tolist())
        return DiscoveredTriples(
            DiscoveredTriple(self.entity_name(h), self.relation_name(r), self.entity_name(t), (h, r, t), p, s, held_out)
            for (h, r, t), p, s, held_out in zip(*columns)
        )

    def calibrate(self, *, sample: int | None = None, seed: int = 0) -> Calibration | None:
        """Learn on valid how often answers with such scores are right, and return it; None with too little data.

        Afterwards `predict` returns probabilities, and `save` stores the calibration. sample: at most that many
        questions per side (default: 5,000).
        """
        self.calibration = calibrate(self.kge, self.dataset, sample=sample, seed=seed)
        return self.calibration

    def classify(self, triples: Iterable[Sequence[Name]] | NDArray[Any]) -> NDArray[np.bool_]:
        """Return (n,): whether each triple is accepted, i.e. its score is above the threshold of its relation.

        triples: as for `score`. InputError if the model is not calibrated.
        """
        if self.calibration is None or self.calibration.thresholds is None:
            raise InputError("The model has no thresholds: call calibrate(), or run grash calibrate.")
        ids = self._ids(triples)
        return self.calibration.thresholds.accept(ids[:, 1], self.score(ids).astype(np.float64))

    def measure_calibration(
        self, split: Literal["valid", "test"] = "test", *, sample: int | None = None, seed: int = 0
    ) -> tuple[Reliability, Reliability]:
        """Return how probabilities matched the first and the first ten answers to held-out questions of a split."""
        if self.calibration is None:
            raise InputError(_NOT_CALIBRATED)
        return measure(self.calibration, self.kge, self.dataset, split=split, sample=sample, seed=seed)

    def probability(
        self, triples: Iterable[Sequence[Name]] | NDArray[Any], *, side: Side = "tail"
    ) -> NDArray[np.float64]:
        """Return (n,): how often held-out answers like these were right, with `side` as the answer.

        triples: as for `score`. Every distinct question is compared with all entities, so this takes as long as
        ranking does. InputError if the model is not calibrated.
        """
        if self.calibration is None:
            raise InputError(_NOT_CALIBRATED)
        _check_side(side)
        return self._answerer.probability(self._ids(triples), side)

    def warn_of_unseen(self, rows: NDArray[np.integer]) -> None:
        """Log a warning if questions or triples (n, 3), −1 for a part that is not given, have names without training.

        It costs nothing for a graph without such names.
        """
        if self.dataset.seen_in_train is None:
            return
        ends, names = rows[:, ::2], []
        for given, seen, name in zip(
            (ends, rows[:, 1]), self.dataset.seen_in_train, (self.entity_name, self.relation_name)
        ):
            ids = np.unique(given[given >= 0])
            names += [name(i) for i in ids[~seen[ids]].tolist()]
        if names:
            more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
            are, them = ("is", "it") if len(names) == 1 else ("are", "them")
            shown = ", ".join(names[:3])
            _log.warning("%s%s %s in no training triple: answers about %s are arbitrary.", shown, more, are, them)

    @torch.no_grad()
    def neighbors(
        self, entity: Name | None = None, k: int = 10, metric: Metric = "cosine", *, entity_id: int | None = None
    ) -> Predictions:
        """Return the k nearest other entities, by their embeddings; euclidean scores are minus the distance.

        Give the entity by name, or by id (entity_id).
        """
        if metric not in METRICS:
            raise ConfigError(f"metric={metric!r} is unknown: give {', '.join(METRICS)}.")
        _check_count(k)
        center = _find(entity, entity_id, self.dataset, "entity")
        if center is None:
            raise InputError("No entity is given: give entity= or entity_id=.")
        if entity is not None:  # a name is asked by people; `grash serve` asks by id
            self.warn_of_unseen(np.array([[center, -1, -1]]))
        ids, scores = nearest_entities(self.kge, center, k, metric)
        return Predictions(Prediction(self.entity_name(i), i, s) for i, s in zip(ids.tolist(), scores.tolist()))

    @torch.no_grad()
    def explain(self, head: Name, relation: Name, tail: Name, *, k: int = 10) -> Explanation:
        """Return up to k reasons for a triple, whether the dataset has it or not, and statistics of its relation.

        Reasons are short paths between head and tail in train, and similar triples of the same relation. Each has its
        support: how far the score of the triple falls when one gradient step lowers the score of the reason by 1.
        """
        _check_count(k)
        row = self._ids([(head, relation, tail)])
        self.warn_of_unseen(row)
        triple, train = (int(row[0, 0]), int(row[0, 1]), int(row[0, 2])), self.dataset.train
        near = surroundings(train, triple)
        found = find_reasons(self.kge, train, triple, near, k)
        types: list[TypeShare] = []
        if (by := find_type_relation(self.dataset)) is not None:
            types = [TypeShare(side, self.entity_name(i), n) for side, i, n in type_shares(train, triple, by)]
        return Explanation(
            *self._names(triple),
            score=float(self.score(row)[0]),
            known=bool(known_relations(self.dataset, triple[0], triple[2])[triple[1]]),
            reasons=tuple(
                Reason(f.kind, tuple(self._names(step) for step in f.triples), f.support, f.n_alike) for f in found
            ),
            statistics=replace(near.statistics, types=tuple(types)),
        )

    def _names(self, triple: tuple[int, int, int]) -> tuple[str, str, str]:
        return self.entity_name(triple[0]), self.relation_name(triple[1]), self.entity_name(triple[2])

    @with_keywords(EvaluateKeywords)
    def evaluate(self, dataset: Source | None = None, **options: Unpack[EvaluateKeywords]) -> Evaluation:
        """Rank a split of the model's own dataset, or of another one whose names are matched with the model's.

        dataset: a Dataset, or a path. A file is the test set as a whole; a folder can have just a test file. Nothing is
        split off. options: see `grash.evaluation.evaluate`.
        """
        if dataset is None or (isinstance(dataset, Dataset) and dataset.fingerprint == self.dataset.fingerprint):
            return evaluate_own(self.kge, self.dataset, **options)
        split = options.get("split", "test")
        other = dataset if isinstance(dataset, Dataset) else load_split(dataset, split)
        if other.fingerprint == self.dataset.fingerprint:
            return evaluate_own(self.kge, self.dataset, **options)
        if n := other.provenance.get("split_off", {}).get("got", {}).get(split):
            total = sum(len(other.split(name)) for name in SPLITS)
            advice = "give the path of their file to rank all of them"
            _log.warning(
                "Only %d of the %d triples of %s are ranked, those split off: %s.", n, total, other.name, advice
            )
        return evaluate_other(self.kge, self.dataset, other, **options)

    def query(
        self,
        head: Name | None,
        relation: Name | None,
        tail: Name | None,
        *,
        head_id: int | None = None,
        relation_id: int | None = None,
        tail_id: int | None = None,
    ) -> Query:
        """Return the question by ids; exactly one part must be None."""
        data = self.dataset
        found = {
            "head": _find(head, head_id, data, "head"),
            "relation": _find(relation, relation_id, data, "relation"),
            "tail": _find(tail, tail_id, data, "tail"),
        }
        given = [part for part, value in found.items() if value is not None]
        if len(given) != 2:
            what = "nothing is" if not given else f"only the {given[0]} is" if len(given) == 1 else "all three are"
            raise InputError(f"A question gives two of head, relation and tail, and asks for the third: {what} given.")
        return Query(**found)

    def entity_id(self, entity: Name) -> int:
        return _id_of(entity, self.dataset, "entity")

    def relation_id(self, relation: Name) -> int:
        return _id_of(relation, self.dataset, "relation")

    def short_name(self, name: str) -> str:
        """Return a name as answers show it: an IRI with a prefix of its source or a common one, e.g. dbo:genre."""
        return shorten(name, prefixes_of(self.dataset))

    def entity_name(self, i: int) -> str:
        return str(i) if self.dataset.entities is None else self.dataset.entities.name(i)

    def relation_name(self, i: int) -> str:
        return str(i) if self.dataset.relations is None else self.dataset.relations.name(i)

    def _ids(self, triples: Iterable[Sequence[Name]] | NDArray[Any]) -> NDArray[np.int64]:
        if isinstance(triples, np.ndarray) and np.issubdtype(triples.dtype, np.integer):
            sizes = (self.dataset.n_entities, self.dataset.n_relations, self.dataset.n_entities)
            if triples.ndim != 2 or triples.shape[1] != 3:
                raise InputError(f"triples have the shape {triples.shape}, expected (n, 3).")
            outside = (triples < 0) | (triples >= np.array(sizes))
            if outside.any():
                row, column = np.argwhere(outside)[0]
                what = ("head", "relation", "tail")[column]
                raise InputError(
                    f"Row {row} has the {what} id {triples[row, column]}, and ids from 0 to {sizes[column] - 1} exist."
                )
            return triples.astype(np.int64)
        named = (_three(row, i) for i, row in enumerate(triples))
        rows = [(self.entity_id(h), self.relation_id(r), self.entity_id(t)) for h, r, t in named]
        return np.array(rows, np.int64).reshape(-1, 3)

    def _entity_ids(self, entities: Iterable[Name] | NDArray[Any]) -> Ids:
        """Return the ids of names, or an array of ids as it is."""
        if isinstance(entities, str):
            raise InputError(f"Candidates are several entities: give [{entities!r}] for this one alone.")
        if not isinstance(entities, np.ndarray) or not np.issubdtype(entities.dtype, np.integer):
            return np.array([self.entity_id(name) for name in entities], np.int64)
        outside = entities[(entities < 0) | (entities >= self.dataset.n_entities)]
        if len(outside):
            raise InputError(
                f"There is no entity id {outside[0]}: ids from 0 to {self.dataset.n_entities - 1:,} exist."
            )
        return entities.astype(np.int64)


def _check_trained(folder: Path) -> None:
    """Raise InputError with what to do if this is the folder of a search or training that has not ended yet."""
    if (folder / "model.json").is_file() or (folder / "model" / "model.json").is_file():
        return
    run = folder if folder.name != "model" else folder.parent
    if (run / "search.yaml").is_file():
        best = run / "best.yaml"
        graph = run / "dataset" if (run / "dataset").is_dir() else "GRAPH"
        words = f"grash train {graph} --config {best}"
        train = f", or train its best configuration so far: {words}" if best.is_file() else ""
        raise InputError(
            f"{run} is a search that has not trained its model. Continue it with: grash resume {run}{train}."
        )
    if checkpoint_folder(folder).is_dir():
        raise InputError(
            f"{folder} has no model yet, since its training was interrupted: run the same grash train command again to "
            f"finish it."
        )


def _find(name: Name | None, i: int | None, dataset: Dataset, part: str) -> int | None:
    """Return the id of a part of a question, which is given by name, by id, or not at all."""
    if name is not None and i is not None:
        raise InputError(f"Both {part}={name!r} and {part}_id={i} are given: give one of them.")
    kind = "relation" if part == "relation" else "entity"
    if i is None:
        return None if name is None else _id_of(name, dataset, kind)
    return _checked_id(i, dataset.n_relations if kind == "relation" else dataset.n_entities, kind)


def probability_meaning(model: Model, query: Query, answers: Sequence[Prediction]) -> str | None:
    """Return what the probabilities of answers mean, or None if there is nothing to say.

    Of entities, it is about the first new answer. A calibration asks for no relations, which may be in another order.
    """
    if model.calibration is None:
        return None
    if query.asked == "relation":
        found = [answer.probability or 0.0 for answer in answers]
        return None if found == sorted(found, reverse=True) else _RELATIONS_BY_SCORE
    first = next((answer.probability for answer in answers if not answer.known), None)
    return None if first is None else model.calibration.meaning(first)


def _id_of(name: Name, dataset: Dataset, kind: str) -> int:
    """Return the id of a name, also of a short form of an IRI; without a vocabulary, ids are names."""
    vocabulary = dataset.relations if kind == "relation" else dataset.entities
    count = dataset.n_relations if kind == "relation" else dataset.n_entities
    if vocabulary is None or isinstance(name, bool) or not isinstance(name, str | int | np.integer):
        return _checked_id(name, count, kind)
    if (found := vocabulary.find(str(name))) is not None:
        return found
    if isinstance(name, str):
        return find_id(name, vocabulary, prefixes_of(dataset))
    keyword = "relation_id=" if kind == "relation" else "head_id=, tail_id= or entity_id="
    hint = f"Ids are given as {keyword}, and to `score` as an integer array (n, 3)."
    raise UnknownName(kind, str(name), hint=hint)


def _checked_id(name: Name, count: int, kind: str) -> int:
    if isinstance(name, bool) or not isinstance(name, str | int | np.integer):
        raise InputError(f"{name!r} is no {kind}: give a name or an id.")
    if isinstance(name, str) and not name.isdecimal():
        raise InputError(f"The dataset has no names, so {kind} {name!r} is unknown: give its id, 0 to {count - 1:,}.")
    if not 0 <= int(name) < count:
        raise UnknownName(f"{kind} id", str(name), hint=f"Ids go from 0 to {count - 1:,}.")
    return int(name)


def _check_count(k: object) -> None:
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise InputError(f"k={k!r} is not valid: give a whole number, 1 or more.")


def _check_side(side: object) -> None:
    if side not in SIDES:
        raise InputError(f"side={side!r} is unknown: give {' or '.join(SIDES)}.")


def _three(row: Any, number: int) -> tuple[Any, Any, Any]:
    """The head, relation and tail of a row; InputError with its number, counted from 0, if it is none."""
    parts = tuple(row) if isinstance(row, Iterable) and not isinstance(row, str | bytes) else ()
    if len(parts) != 3:
        raise InputError(f"Row {number} is {row!r}: three parts are needed, (head, relation, tail).")
    return parts


def load_split(source: str | Path, split: SplitName = "test", **reading: Any) -> Dataset:
    """Load triples to rank: the given split of a source, of which nothing is split off.

    A file is the split as a whole. A folder without train needs only the file of the split. reading: separator,
    header, columns, literals, format.
    """
    path = Path(source)
    whole: dict[str, Any] = {"n_valid": 0, "n_test": 0, "duplicates": "keep", **reading}
    if path.is_dir() and not (path / DATASET_FILE).is_file():
        files = split_files(path)
        if "train" not in files and len(files.get(split, [])) == 1:
            return replace(load_split(files[split][0][0], split, **reading), name=dataset_name(path))
        if files and split not in files:
            found = ", ".join(sorted(file.name for of_split in files.values() for file, _ in of_split))
            raise InputError(f"{path} has no {split} file, only {found}: give a file of triples, or another --split.")
    if is_bundled(path) or (path / DATASET_FILE).is_file():
        return load_dataset(source, **reading)
    graph = load_dataset(source, **whole)
    if path.is_file() and not len(graph.split(split)):  # a file with several splits, as .npz, has its own
        splits: dict[str, Any] = dict.fromkeys(SPLITS, graph.train[:0])
        return replace(graph, **{**splits, split: graph.train})
    if not len(graph.split(split)):
        raise InputError(f"{source} has no {split} triples: give a file of triples, or a folder with a {split} file.")
    return graph


def load_triples(source: Source | Iterable[Any], **reading: Any) -> Dataset:
    """Load triples to add or to remove; nothing is split off. reading: separator, header, columns, literals, format."""
    if not isinstance(source, Dataset | str | Path):
        return from_triples(source, n_valid=0, n_test=0)
    if isinstance(source, Dataset) or is_bundled(Path(source)) or (Path(source) / DATASET_FILE).is_file():
        return as_dataset(source)
    return load_dataset(source, n_valid=0, n_test=0, **reading)


def load_model(folder: str | Path, *, device: str = "auto") -> Model:
    """Load the model of a folder that `train` or `Model.save` wrote."""
    return Model.load(folder, device=device)


def store_calibration(model: Model, folder: str | Path) -> None:
    """Write the calibration of a model to the folder that it was loaded from."""
    if model.calibration is None:
        raise InputError(_NOT_CALIBRATED)
    replace_calibration(model_folder(Path(folder)), model.calibration.to_dict())


@with_keywords(EvaluateKeywords)
def evaluate(
    model: Model | str | Path,
    dataset: Source | None = None,
    *,
    device: str = "auto",
    **options: Unpack[EvaluateKeywords],
) -> Evaluation:
    """Evaluate a model or a model folder, on its own dataset or, matched by names, on another (see `Model.evaluate`).

    options: split, sample, candidates, like_known, unseen, detail, seed, work_bytes, as in
    `grash.evaluation.evaluate`.
    """
    loaded = model if isinstance(model, Model) else load_model(model, device=device)
    return loaded.evaluate(dataset, **options)
