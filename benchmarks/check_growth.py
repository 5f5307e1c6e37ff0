"""Grow a graph from 80 % to 100 % of its triples in five steps, and compare updates with training from scratch.

    python benchmarks/check_growth.py GRAPH --config FILE [--variants default,replay,...] [--scratch 5] [-o FILE]

A tenth of the entities is new: two in a hundred at each step, with all their triples. The rest of the last fifth of
the triples is drawn at random. Triples of valid and test join when all their names are known, and are never trained on.
Cost is counted in passes over the train split of the step (epochs) and in CPU seconds of the whole call, with its test
and calibration, which other work on the machine changes little. Compare CPU seconds with OMP_NUM_THREADS=1 only.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np

import grash
from grash.data.dataset import Dataset
from grash.training.config import read_config

STEPS = 5
VARIANTS = {
    "default": {},
    "neighbors": {"new_rows": "neighbors"},
    "random": {"new_rows": "random"},
    "replay": {"replay": 4},
    "freeze": {"freeze": True},
    "freeze 5": {"freeze": True, "epochs": 5},
    "average": {"freeze": True, "new_rows": "neighbors"},
}


def stages(full: Dataset, seed: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return for each split the step (0 … 5) at which each triple joins, and the step of each entity."""
    generator = np.random.default_rng(seed)
    degree = np.bincount(full.train[:, [0, 2]].reshape(-1), minlength=full.n_entities)
    eligible = np.flatnonzero((degree > 0) & (degree <= np.quantile(degree, 0.9)))
    new = generator.permutation(eligible)[: full.n_entities // 10]
    entity = np.zeros(full.n_entities, np.int64)
    entity[new] = 1 + np.arange(len(new)) % STEPS
    joins = {name: np.maximum(entity[t[:, 0]], entity[t[:, 2]]) for name in ("train", "valid", "test")
             for t in [full.split(name)]}  # fmt: skip
    old = np.flatnonzero(joins["train"] == 0)
    later = generator.permutation(old)[: max(0, len(full.train) // 5 - int((joins["train"] > 0).sum()))]
    joins["train"][later] = 1 + np.arange(len(later)) % STEPS
    return joins, entity


def at_step(full: Dataset, joins: dict[str, np.ndarray], step: int, *, only: bool) -> Dataset:
    """Return the triples that joined up to a step, or only those of that step."""
    parts = {name: full.split(name)[joins[name] == step if only else joins[name] <= step] for name in joins}
    rows = {}
    for name, part in parts.items():
        rows[name] = [(str(h), f"r{r}", str(t)) for h, r, t in part.tolist()]
    known = {x for h, _, t in rows["train"] for x in (h, t)}
    if not only:  # a triple whose names train does not have yet is left out until it does
        for name in ("valid", "test"):
            rows[name] = [row for row in rows[name] if row[0] in known and row[2] in known]
    options = {"n_valid": 0, "n_test": 0}
    return grash.from_triples(rows["train"], rows["valid"] or None, rows["test"] or None, name=full.name, **options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--scratch", default="5", help="steps at which to train from scratch")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=float)
    parser.add_argument("--base", type=Path, help="folder of the model at step 0: trained if absent, else loaded")
    parser.add_argument("-o", "--out", type=Path)
    given = parser.parse_args()
    full = grash.load_dataset(given.graph)
    config = read_config(given.config).changed(seed=given.seed)
    joins, _ = stages(full, given.seed)
    rows = []

    def record(**row: object) -> None:
        rows.append({"graph": full.name, "seed": given.seed, **row})
        print(json.dumps(rows[-1]), flush=True)
        if given.out:
            with given.out.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")

    first = at_step(full, joins, 0, only=False)
    if given.base and given.base.exists():
        base = grash.load_model(given.base)
    else:
        began = time.process_time()
        base = grash.train(first, config, out=given.base)
        cpu = time.process_time() - began
        record(variant="base", step=0, epochs=base.history[-1]["epoch"], cpu_seconds=cpu, **quality(base))
    sizes = [at_step(full, joins, step, only=False) for step in range(STEPS + 1)]
    models = {name: base for name in given.variants.split(",") if name}
    for step in range(1, STEPS + 1):  # side by side, so that other work on the machine slows all alike
        part = at_step(full, joins, step, only=True)
        joined = (new_triples(sizes[step - 1], sizes[step], split) for split in ("valid", "test"))
        part = grash.from_triples(names(part, part.train), *joined, name="new", n_valid=0, n_test=0)
        for name, model in models.items():
            options = dict(VARIANTS[name])
            if given.epochs and "epochs" not in options:
                options["epochs"] = given.epochs
            began = time.process_time()
            models[name], report = model.update(part, **options)
            cpu = time.process_time() - began
            found = models[name].dataset
            assert (len(found.test), len(found.train)) == (len(sizes[step].test), len(sizes[step].train))
            changes = [[c.what, c.before, c.after] for c in report.changes]
            record(variant=name, step=step, epochs=report.epochs_of_all, cpu_seconds=cpu, **quality(models[name]),
                   drift=report.entity_drift.mean, changes=changes)  # fmt: skip
        if str(step) in given.scratch.split(","):
            began = time.process_time()
            new = grash.train(sizes[step], config)
            cpu = time.process_time() - began
            record(variant="from scratch", step=step, epochs=new.history[-1]["epoch"], cpu_seconds=cpu, **quality(new))


def quality(model: grash.Model) -> dict[str, float | int]:
    """Return the test MRR, and the calibration error of the first answers on test."""
    ece = model.measure_calibration()[0].ece if model.calibration else float("nan")
    return {"mrr": model.evaluation["both"]["mrr"], "ece": ece, "n_train": len(model.dataset.train)}


def new_triples(before: Dataset, after: Dataset, split: str) -> list[tuple[str, str, str]]:
    known = set(names(before, before.split(split)))
    return [row for row in names(after, after.split(split)) if row not in known]


def names(dataset: Dataset, triples: np.ndarray) -> list[tuple[str, str, str]]:
    e, r = dataset.entities, dataset.relations
    return [(e.name(h), r.name(i), e.name(t)) for h, i, t in triples.tolist()]


if __name__ == "__main__":
    main()
