"""Compute the golden results: searches, trainings, rankings, exports and subgraphs of the bundled graph, as digests.

golden.json has an entry per kind of CPU, since products and exponentials differ between them in the last bits.
`python -m tests.golden.record` rewrites the entry of this machine, or adds one. Rewrite only for a change that is meant
to change numbers, and name the change in CHANGELOG.md; entries of other machines must then be removed.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

import grash

FILE = Path(__file__).parent / "golden.json"

SEARCHES: dict[str, dict[str, Any]] = {
    "combined": {"model": "complex", "dim": 16, "max_epochs": 4, "n_trials": 8, "engine": "sequential"},
    "graph, three models": {
        "model": "complex,rotate,transe", "dim": 16, "max_epochs": 2, "n_trials": 8, "eta": 2, "variant": "graph",
        "warm_start": "weights", "engine": "sequential",
    },
    "epoch, paper, two workers": {
        "model": "distmult", "dim": 16, "max_epochs": 4, "n_trials": 4, "eta": 2, "variant": "epoch", "preset": "paper",
        "engine": "processes", "workers": 2,
    },
}  # fmt: skip

NEGATIVES = {"negatives_head": 40, "negatives_tail": 60, "batch_size": 256, "epochs": 2, "valid_every": 1}
TRAININGS: dict[str, dict[str, Any]] = {
    "complex": {"model": "complex", "dropout_entity": 0.2, "penalty": "n3", "penalty_entity": 0.01, **NEGATIVES},
    "complex 1vsall": {
        "model": "complex", "training": "1vsall", "reciprocal": True, "relation_prediction": 0.25, "penalty": "n3",
        "penalty_entity": 0.05, "epochs": 2, "valid_every": 1, "init": "normal", "init_std": 0.001,
    },
    "cp": {"model": "cp", "optimizer": "adam", "lr": 0.01, "reciprocal": True, **NEGATIVES},
    "cp kvsall": {"model": "cp", "training": "kvsall", "loss": "bce", "label_smoothing": 0.1, "epochs": 2},
    "distmult": {"model": "distmult", "optimizer": "row_adagrad", "negatives_sampling": "frequency", **NEGATIVES},
    "distmult dura": {
        "model": "distmult", "penalty": "dura", "penalty_entity": 0.01, "schedule": "cosine", **NEGATIVES,
    },
    "rescal": {"model": "rescal", "loss": "bce", "penalty": "l2", "penalty_relation": 0.01, **NEGATIVES},
    "rescal lazy adam": {
        "model": "rescal", "optimizer": "lazy_adam", "lr": 0.01, "negatives_shared": False, **NEGATIVES,
    },
    "rotate": {
        "model": "rotate", "loss": "self_adversarial", "margin": 9.0, "optimizer": "adam", "lr": 0.01, **NEGATIVES,
    },
    "rotate filtered": {"model": "rotate", "norm": 2, "negatives_filtered": True, "reciprocal": True, **NEGATIVES},
    "transe": {"model": "transe", "loss": "margin", "margin": 2.0, "optimizer": "sgd", **NEGATIVES},
    "transe bf16": {"model": "transe", "storage": "bf16", "penalty": "l1", "penalty_entity": 0.001, **NEGATIVES},
}  # fmt: skip
EXPORTS = ("npy", "word2vec", "splits", "pykeen", "libkge")


def digest(*parts: Any) -> str:
    """Return a short hash of arrays, tensors and JSON-able values."""
    state = hashlib.sha256()
    for part in parts:
        if isinstance(part, torch.Tensor):
            part = part.detach().cpu().float().numpy()
        if isinstance(part, np.ndarray):
            state.update(str((part.dtype.str, part.shape)).encode() + np.ascontiguousarray(part).tobytes())
        else:
            state.update(json.dumps(part, sort_keys=True, default=float).encode())
    return state.hexdigest()[:20]


def arithmetic() -> str:
    """Return a hash of this machine's float arithmetic: products and exponentials differ between kinds of CPUs."""
    draw = torch.Generator().manual_seed(0)
    a, b = torch.randn(97, 33, generator=draw), torch.randn(33, 130, generator=draw)
    return digest(a @ b, torch.exp(a), torch.log_softmax(a, 1), torch.sin(b), np.__version__, torch.__version__)


def golden_search(world: Any, folder: Path, options: dict[str, Any]) -> dict[str, Any]:
    result = grash.Search(world, out=folder / "run", threads=1, **options).run()
    rows = [
        [number, past.plan.positives, past.plan.n_train, [[n, r.mrr] for n, r in sorted(past.results.items())]]
        for number, past in enumerate(result.state.rounds, 1)
    ]
    model = result.model
    return {
        "winner": result.state.winner,
        "mrr": round(model.evaluation["both"]["mrr"], 4),
        "rounds": digest(rows),
        "model": digest(model.entity_embeddings, model.relation_embeddings),
        "evaluation": digest(model.evaluation["both"]["mrr"], model.evaluation["head"]["mrr"]),
    }


def golden_training(world: Any, settings: dict[str, Any]) -> tuple[dict[str, Any], grash.Model]:
    model = grash.train(world, device="cpu", threads=1, dim=16, seed=3, **settings)
    answers = model.predict(head="Austria", relation=world.relations.name(0), k=5)
    found = {
        "mrr": round(model.evaluation["both"]["mrr"], 4),
        "model": digest(model.entity_embeddings, model.relation_embeddings),
        "history": digest([[v["epoch"], v["mrr"]] for v in model.history]),
        "evaluation": digest([[model.evaluation[s][m] for m in ("mrr", "mr")] for s in ("both", "head", "tail")]),
        "answers": digest([[a.id, a.score] for a in answers]),
        "scores": digest(model.score(world.test[:50])),
    }
    return found, model


def golden_exports(model: grash.Model, folder: Path) -> dict[str, str]:
    found = {}
    for form in EXPORTS:
        for path in model.export(folder / form, form, dataset="world" if form in ("pykeen", "libkge") else None):
            text = path.read_bytes()
            if path.suffix in (".json", ".yaml"):
                import yaml

                content = yaml.safe_load(text)
                content.pop("metadata", None)
                found[f"{form}/{path.name}"] = digest(content)
            else:
                found[f"{form}/{path.name}"] = hashlib.sha256(text).hexdigest()[:20]
    return found


def compute(world: Any, folder: Path) -> dict[str, Any]:
    torch.set_num_threads(1)
    found: dict[str, Any] = {"arithmetic": arithmetic(), "searches": {}, "trainings": {}}
    for name, options in SEARCHES.items():
        found["searches"][name] = golden_search(world, folder / name.replace(" ", "-"), options)
    for name, settings in TRAININGS.items():
        found["trainings"][name], model = golden_training(world, settings)
        if name == "complex":
            found["exports"] = golden_exports(model, folder)
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        now = compute(grash.load_dataset("world"), Path(place))
    others = [entry for entry in json.loads(FILE.read_text()) if entry["arithmetic"] != now["arithmetic"]]
    FILE.write_text(json.dumps([*others, now], indent=1) + "\n")
