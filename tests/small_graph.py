"""A small graph with names, models of it with given tables, and the command line as a function."""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch

from grash.api.model import Model
from grash.cli import main
from grash.data.dataset import Dataset
from grash.data.vocabulary import Vocabulary
from grash.evaluation.calibration import Calibration, Reliability, Weights
from grash.models import model_class
from grash.training.config import make_config
from grash.training.initial import initial_model


def rings(n: int = 12) -> Dataset:
    """n people in a ring, with `next`, `two on` and the symmetric `beside`; the first triples are held out."""
    people = np.arange(n)
    parts = [np.stack([people, np.full(n, r), (people + s) % n], 1) for r, s in ((0, 1), (1, 2), (2, 1))]
    parts.append(parts[2][:, ::-1])
    triples = np.random.default_rng(0).permutation(np.concatenate(parts)).astype(np.int32)
    return Dataset(
        train=np.ascontiguousarray(triples[8:]),
        valid=np.ascontiguousarray(triples[:4]),
        test=np.ascontiguousarray(triples[4:8]),
        n_entities=n,
        n_relations=3,
        entities=Vocabulary.from_names([f"person {i}" for i in range(n)], kind="entity"),
        relations=Vocabulary.from_names(["next", "two on", "beside"], kind="relation"),
        name="rings",
    )


def model_of(dataset: Dataset, name: str = "complex", *, dim: int = 4, seed: int = 0, integers: bool = False) -> Model:
    """A model with random tables, of small integers (where scores are exact and ties are many) if asked for."""
    cls = model_class(name)
    dim, reciprocal = 8 if name == "conve" else dim, cls.needs_reciprocal
    settings = make_config({"model": name, "dim": dim, "reciprocal": reciprocal})
    generator = np.random.default_rng(seed)
    n_rows = dataset.n_relations * (2 if reciprocal else 1)
    shapes = ((dataset.n_entities, cls.entity_width(dim)), (n_rows, cls.relation_width(dim)))
    draws = [generator.integers(-2, 3, s) if integers else generator.normal(size=s) for s in shapes]
    tables = [torch.from_numpy(np.asarray(d, np.float32)) for d in draws]
    weights = initial_model(settings, 1, 1).weights
    kge = cls(tables[0], tables[1], norm=settings.norm, reciprocal=reciprocal, weights=weights)
    return Model(kge, dataset, settings)


def write_tsv(dataset: Dataset, path: Path) -> Path:
    """All triples of a dataset as lines of names."""
    assert dataset.entities is not None and dataset.relations is not None
    triples = np.concatenate([dataset.train, dataset.valid, dataset.test])
    lines = [
        f"{dataset.entities.name(h)}\t{dataset.relations.name(r)}\t{dataset.entities.name(t)}\n"
        for h, r, t in triples.tolist()
    ]
    path.write_text("".join(lines), encoding="utf-8")
    return path


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


def grash(*words: object) -> Ran:
    """Runs the command line in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(word) for word in words])
    return Ran(code, out.getvalue(), err.getvalue())


def some_calibration() -> Calibration:
    seen = Reliability.of(np.array([0.4, 0.6]), np.array([False, True]))
    weights = Weights(*(0.3,) * len(fields(Weights)))
    return Calibration(split="valid", n_questions=100, temperature=2.0, score_mean=0.5, score_std=2.0, weights=weights,
                       of_relation={}, first=seen, answers=seen, thresholds=None)  # fmt: skip
