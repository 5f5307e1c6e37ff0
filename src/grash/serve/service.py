"""What `grash serve` knows: the model, the index of names, and what each endpoint returns, as dictionaries for JSON.

Nothing here knows HTTP. Names of a request are looked up in the vocabulary and nowhere else: no text of a request
becomes a path.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from grash.api.model import Model, Prediction, Query, probability_meaning
from grash.data.arrays import in_blocks
from grash.data.candidates import find_type_relation
from grash.data.dataset import Dataset
from grash.data.iris import find_given, find_short, prefixes_of
from grash.data.known_answers import TripleIndex, triples_among, triples_with
from grash.data.name_search import NameSearch
from grash.data.vocabulary import Vocabulary
from grash.errors import GrashError, InputError, UnknownName
from grash.files import CHECKSUMS_FILE
from grash.models.store import model_folder, verify_model
from grash.report.map import map_data

_log = logging.getLogger(__name__)

MAX_K = 1000
MAX_FACTS = 1000
MAX_ON_MAP = 14  # entities around the one in the middle
MAX_ON_WHOLE_MAP = 100_000
_MAX_TYPES = 200
_MAX_RELATIONS = 5000  # listed by `about`
_ROWS = 1 << 22
_MAX_READ = 50_000_000  # triples whose like-known entities are read at the start: up to 16 bytes each


class Service:
    """A model that is served. `load` is quick for any size: tables are memory-mapped, checksums compared later."""

    def __init__(self, model: Model, folder: Path | None = None) -> None:
        self.model, self.folder = model, folder
        self.verified: bool | None = None  # None: not compared with the checksums yet
        self.damage: str | None = None
        self._lock, self._map_lock = threading.Lock(), threading.Lock()
        self._stamp = self._stamp_now()
        self._map: dict[str, Any] | None = None

    @classmethod
    def load(cls, folder: Path, device: str = "auto") -> Service:
        return cls(Model.load(folder, device=device, verify=False), model_folder(folder))

    def rank_once(self) -> None:
        """Ask a question, so that the first person who does need not wait for code and tables to be loaded."""
        h, r, _ = self.dataset.train[0].tolist()
        with contextlib.suppress(GrashError):  # a model that is not finite is reported with the first answer
            self.model.predict_many([Query(h, r, None)], like_known=True)

    def warm_up(self) -> None:
        """Build the indexes of names and triples, and compare the files with their checksums; meant for a thread."""
        _ = self.entity_search, self.relation_search
        self.model.triple_index = TripleIndex(self.dataset)
        if len(self.dataset.train) <= _MAX_READ:
            self.model.seen_entities.read(range(self.dataset.n_relations))
        if self.folder is None:
            return
        try:
            verify_model(self.folder)
            self.verified = True
        except (GrashError, OSError) as error:
            if self.replaced is None:  # the files of a replaced folder are not those that are served
                self.verified, self.damage = False, str(error)
                _log.warning("%s", error)

    @property
    def replaced(self) -> str | None:
        """A sentence if the folder is no longer the one that was loaded. The loaded model stays in use."""
        if self._stamp_now() == self._stamp:
            return None
        return (
            "The model folder was replaced or removed. Answers come from the old model until grash serve is restarted."
        )

    def _stamp_now(self) -> tuple[int, int] | None:
        if self.folder is None:
            return None
        try:
            found = (self.folder / CHECKSUMS_FILE).stat()  # the one file that `grash calibrate` replaces, too
        except OSError:
            return 0, 0
        return found.st_ino, found.st_mtime_ns

    @cached_property
    def entity_search(self) -> NameSearch | None:
        with self._lock:
            return _search_of(self.dataset.entities, _degrees(self.dataset))

    @cached_property
    def relation_search(self) -> NameSearch | None:
        counts = np.zeros(self.dataset.n_relations, np.int64)
        for _, block in in_blocks(self.dataset.train, _ROWS):
            counts += np.bincount(block[:, 1], minlength=len(counts))
        return _search_of(self.dataset.relations, counts)

    @property
    def dataset(self) -> Dataset:
        return self.model.dataset

    @cached_property
    def about(self) -> dict[str, Any]:
        """What the page and clients need to know about the model."""
        data, model = self.dataset, self.model
        n_relations = min(data.n_relations, _MAX_RELATIONS)
        return {
            "model": model.kge.name,
            "dim": model.kge.dim,
            "dataset": data.name,
            "n_entities": data.n_entities,
            "n_relations": data.n_relations,
            "n_triples": {split: len(data.split(split)) for split in ("train", "valid", "test")},
            "relations": [model.relation_name(i) for i in range(n_relations)],
            "types": self._types(),
            "calibrated": model.calibration is not None,
            "test_mrr": model.evaluation.get("both", {}).get("mrr"),
            "examples": self._examples(),
        }

    def search(self, text: str, k: int, kind: str = "entity") -> list[dict[str, Any]]:
        """Return entities or relations whose names begin like the text, or nearly."""
        check_k(k)
        find = self.entity_search if kind == "entity" else self.relation_search
        if find is None:  # a graph without names
            count = self.dataset.n_entities if kind == "entity" else self.dataset.n_relations
            known = text.isdecimal() and len(text) < 12 and int(text) < count
            return [{"name": str(int(text)), "id": int(text)}] if known else []
        name = self.model.entity_name if kind == "entity" else self.model.relation_name
        return [{"name": name(i), "id": i} for i in find(text, k).tolist()]

    def query(self, head: str | None, relation: str | None, tail: str | None) -> Query:
        """Return the question by ids."""
        parts = {"head": (head, "entity"), "relation": (relation, "relation"), "tail": (tail, "entity")}
        ids: dict[str, int | None] = {}
        for part, (name, kind) in parts.items():
            ids[f"{part}_id"] = None if name is None else self.resolve(name, kind)
        return self.model.query(None, None, None, **ids)

    def resolve(self, name: str, kind: str = "entity") -> int:
        """Return the id of a name or of a short form of an IRI. UnknownName has no suggestions; see `suggested`.

        The end of an IRI takes a look at all names: for a thread, unless `at_hand`.
        """
        names = self._names_of(kind)
        if names is None:
            return self.model.entity_id(name) if kind == "entity" else self.model.relation_id(name)
        found = find_short(name, names, self._prefixes)
        if found is None:
            raise UnknownName(kind, name)
        return found

    def check_type(self, name: str) -> None:
        """Raise InputError unless answers can be restricted to this type."""
        if find_type_relation(self.dataset) is None:
            raise InputError(
                "This graph has no types, since no relation is called rdf:type, P31, instance_of or the like: leave "
                "answer_type out."
            )
        self.resolve(name)

    def at_hand(self, name: str | None, kind: str = "entity") -> bool:
        """Whether a name is found within microseconds: it is not, if it is unknown or the end of an IRI."""
        names = self._names_of(kind)
        return name is None or names is None or find_given(name, names, self._prefixes) is not None

    def _names_of(self, kind: str) -> Vocabulary | None:
        return self.dataset.entities if kind == "entity" else self.dataset.relations

    @cached_property
    def _prefixes(self) -> dict[str, str]:
        return prefixes_of(self.dataset)

    def suggested(self, error: UnknownName) -> UnknownName:
        """Return the error with similar names, as Python and the command line do; a scan of all names, for a thread."""
        names = self._names_of(error.kind) if error.kind in ("entity", "relation") else None
        return error if error.suggestions or names is None else names.unknown(error.name)

    def answers(self, query: Query, found: list[Prediction]) -> dict[str, Any]:
        """Return a question with its answers."""
        name, relation = self.model.entity_name, self.model.relation_name
        answered = {
            "head": None if query.head is None else name(query.head),
            "relation": None if query.relation is None else relation(query.relation),
            "tail": None if query.tail is None else name(query.tail),
            "asked": query.asked,
            "answers": [_ranked(i, answer) for i, answer in enumerate(found, 1)],
        }
        if (meaning := probability_meaning(self.model, query, found)) is not None:
            answered["meaning"] = meaning
        return answered

    def neighbors(self, entity: str, k: int) -> dict[str, Any]:
        """Return the entities with the most similar embeddings."""
        check_k(k)
        i = self.resolve(entity)
        found = self.model.neighbors(entity_id=i, k=k)
        near = [{"name": a.name, "id": a.id, "score": a.score} for a in found]
        return {"entity": self.model.entity_name(i), "neighbors": near}

    def facts(self, entity: str, k: int) -> dict[str, Any]:
        """Return the triples of an entity, and the triples between the entities around it, for the map."""
        if not 1 <= k <= MAX_FACTS:
            raise InputError(f"k={k} is not possible: give a number of facts from 1 to {MAX_FACTS:,}.")
        center = self.resolve(entity)
        found = triples_with(self.dataset, center, self.model.triple_index)
        total = sum(len(triples) for triples in found.values())
        rows = [(*row, split) for split, triples in found.items() for row in triples[:k].tolist()][:k]
        facts = [{**self._named(row[:3]), "split": row[3]} for row in rows]
        shown = [center, *_varied(found["train"], center, MAX_ON_MAP)]
        links = triples_among(self.dataset, np.array(shown, np.int64))[: 10 * MAX_ON_MAP]
        return {
            "entity": self.model.entity_name(center), "n_facts": total, "facts": facts,
            "map": {
                "entities": [self.model.entity_name(i) for i in shown],
                "triples": [self._named(row) for row in links.tolist()],
            },
        }  # fmt: skip

    def map(self) -> dict[str, Any]:
        """Return the map of the entities with most triples, by PCA: seconds, where UMAP would take minutes."""
        with self._map_lock:  # people who open it at the same time wait for one
            if self._map is None:
                self._map = map_data(self.model.kge, self.dataset, method="pca", max_points=MAX_ON_WHOLE_MAP)
            return self._map

    def explain(self, head: str, relation: str, tail: str, k: int) -> dict[str, Any]:
        """Return the reasons for a triple."""
        check_k(k)
        for name, kind in ((head, "entity"), (relation, "relation"), (tail, "entity")):
            self.resolve(name, kind)
        return self.model.explain(head, relation, tail, k=k).to_dict()

    def _named(self, row: Any) -> dict[str, str]:
        name, relation = self.model.entity_name, self.model.relation_name
        return {"head": name(row[0]), "relation": relation(row[1]), "tail": name(row[2])}

    def _types(self) -> list[str]:
        """Return the most frequent types, if a relation such as rdf:type is there."""
        relation = find_type_relation(self.dataset)
        if relation is None:
            return []
        tails = [block[block[:, 1] == relation, 2] for _, block in in_blocks(self.dataset.train, _ROWS)]
        types, counts = np.unique(np.concatenate([np.empty(0, np.int32), *tails]), return_counts=True)
        return [self.model.entity_name(i) for i in types[np.argsort(-counts, kind="stable")][:_MAX_TYPES].tolist()]

    def _examples(self) -> list[dict[str, str]]:
        """Return questions to begin with: triples of test, or of train, with different relations."""
        triples = self.dataset.test if len(self.dataset.test) else self.dataset.train
        _, first = np.unique(triples[:10_000, 1], return_index=True)
        return [self._named(row) for row in triples[np.sort(first)[:4]].tolist()]


def check_k(k: int) -> None:
    """Raise InputError unless k is a possible number of answers."""
    if not 1 <= k <= MAX_K:
        raise InputError(f"k={k} is not possible: give a number of answers from 1 to {MAX_K:,}.")


def _varied(triples: Any, center: int, n: int) -> list[int]:
    """Return up to n entities around the center; relations take turns, so that a frequent one does not fill the map."""
    by_relation: dict[int, list[int]] = {}
    for h, r, t in triples[:MAX_FACTS].tolist():
        by_relation.setdefault(r, []).append(t if h == center else h)
    turns = (entity for group in zip_longest(*by_relation.values()) for entity in group if entity is not None)
    return [entity for entity in dict.fromkeys(turns) if entity != center][:n]


def _search_of(names: Vocabulary | None, weights: Any) -> NameSearch | None:
    return None if names is None else NameSearch(names, weights)


def _degrees(dataset: Dataset) -> Any:
    counts = np.zeros(dataset.n_entities, np.int64)
    for _, block in in_blocks(dataset.train, _ROWS):
        counts += np.bincount(block[:, 0], minlength=len(counts)) + np.bincount(block[:, 2], minlength=len(counts))
    return counts


def _ranked(rank: int, answer: Prediction) -> dict[str, Any]:
    content = {"rank": rank, "name": answer.name, "id": answer.id, "score": answer.score, "known": answer.known}
    return content if answer.probability is None else {**content, "probability": answer.probability}
