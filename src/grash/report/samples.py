"""Questions of the test split with the best answers of the trained winner, for the report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from grash.data.dataset import Dataset
from grash.data.known_answers import known_answers
from grash.models import KgeModel
from grash.models.base import Side
from grash.models.store import load_model

_COUNT, _ANSWERS = 6, 3
_MOST_BYTES = 1 << 30  # of the embeddings; the report does not load a larger model


@dataclass(frozen=True)
class Sample:
    """One question of the test split, filtered by the other known answers."""

    head: str  # "?" if it is asked for
    relation: str
    tail: str
    truth: str  # the answer in test
    rank: int  # of the true answer
    answers: tuple[str, ...]  # best first


def sample_predictions(model_folder: Path) -> list[Sample]:
    """Return a few questions about the relations that are most frequent in test; none for a very large model."""
    weights = Path(model_folder) / "embeddings.safetensors"
    if not weights.is_file() or weights.stat().st_size > _MOST_BYTES:
        return []
    stored = load_model(Path(model_folder), device="cpu")
    chosen = _one_per_relation(stored.dataset.test)
    sides: tuple[Side, Side] = ("tail", "head")
    return [_answer(stored.model, stored.dataset, row, sides[i % 2]) for i, row in enumerate(chosen)]


def _one_per_relation(triples: np.ndarray) -> np.ndarray:
    """(n, 3) → (m, 3): a triple in the middle of each of the most frequent relations."""
    relations, counts = np.unique(triples[:, 1], return_counts=True)
    frequent = relations[np.argsort(-counts, kind="stable")][:_COUNT]
    places = [np.flatnonzero(triples[:, 1] == relation) for relation in frequent]
    return triples[[found[len(found) // 2] for found in places]]


@torch.no_grad()
def _answer(model: KgeModel, dataset: Dataset, triple: np.ndarray, side: Side) -> Sample:
    head, relation, tail = (int(i) for i in triple)
    truth, end = (tail, head) if side == "tail" else (head, tail)
    asked = torch.tensor([end]), torch.tensor([relation])
    scores = (model.score_tails(*asked) if side == "tail" else model.score_heads(*reversed(asked)))[0]
    [known] = known_answers(dataset, np.array([end]), np.array([relation]), side)
    scores[torch.from_numpy(known[known != truth])] = -torch.inf
    rank = 1 + int((scores > scores[truth]).sum())
    best = torch.topk(scores, min(_ANSWERS, int(torch.isfinite(scores).sum()))).indices.tolist()
    names = [str(i) if dataset.entities is None else dataset.entities.name(i) for i in (head, tail, truth, *best)]
    asked_for = {"head": 0, "tail": 1}[side]
    names[asked_for] = "?"
    relation_name = str(relation) if dataset.relations is None else dataset.relations.name(relation)
    return Sample(names[0], relation_name, names[1], names[2], rank, tuple(names[3:]))
