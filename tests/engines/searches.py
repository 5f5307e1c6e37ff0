"""Small real searches (about a second each), and what of them must not depend on how they were run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from grash.api.search import Search
from grash.data.dataset import Dataset
from grash.search.ledger import Event, SearchState, read_ledger
from grash.search.trial import TrialResult

SPACE: dict[str, Any] = {
    "lr": {"low": 0.05, "high": 0.5, "log": True},
    "dropout_entity": {"low": 0.0, "high": 0.3},
    "negatives_tail": {"low": 5, "high": 50},
}
SMALL: dict[str, Any] = {
    "model": "complex", "n_trials": 6, "eta": 2, "max_epochs": 4, "dim": 8, "guard_rails": False, "space": SPACE,
    "proposals": "random", "fixed": {"batch_size": 96, "negatives_head": 10}, "engine": "sequential", "device": "cpu",
}  # fmt: skip
MEASURED = ("seconds", "peak_bytes", "device", "attempt")  # of a result: what may differ between two runs
VIEWS = ("report.html", "optuna.log", ".optuna.log.lock", "log.txt")


def shifts(n: int = 150, seed: int = 0) -> Dataset:
    """n entities on a ring with fixed shifts, and a relation between popular ones, so that there are cores."""
    rng = np.random.default_rng(seed)
    triples = {(i, r, (i + s) % n) for r, s in enumerate((1, 2, 3, 5, 8, 13)) for i in range(n)}
    popularity = np.arange(1, n + 1) ** -0.7
    pairs = rng.choice(n, (2 * n, 2), p=popularity / popularity.sum())
    triples |= {(int(a), 6, int(b)) for a, b in pairs if a != b}
    mixed = rng.permutation(np.array(sorted(triples), np.int32))
    tenth = len(mixed) // 10
    valid, test, train = (np.ascontiguousarray(p) for p in np.split(mixed, [tenth, 2 * tenth]))
    return Dataset(train, valid, test, n, 7, name="shifts")


def small_search(folder: Path, **changes: Any) -> Search:
    """A search on `shifts`; the folder's name is in best.yaml, so folders to compare should have the same."""
    return Search(shifts(), out=folder, **{**SMALL, **changes})


def bare(result: TrialResult) -> dict[str, Any]:
    """A result less what is measured."""
    return {k: v for k, v in result.to_json().items() if k not in MEASURED}


def events_of(folder: Path) -> list[Event]:
    return read_ledger(Path(folder) / "ledger.jsonl")


def state_of(folder: Path) -> SearchState:
    return SearchState.replay(events_of(folder))


def essence(folder: Path) -> dict[str, Any]:
    """The whole result of a search: all that must be equal however often it was killed and whoever ran it."""
    state = state_of(folder)
    return {
        "configurations": [c.to_json() for _, c in sorted(state.configurations.items())],
        "plans": [past.plan.to_json() for past in state.rounds],
        "results": [{n: bare(r) for n, r in sorted(past.results.items())} for past in state.rounds],
        "survivors": [past.survivors for past in state.rounds],
        "spent": state.spent,
        "winner": state.winner,
        "final": None if state.final is None else bare(state.final),
        "finished": (state.finished, state.failed),
        "files": files_of(folder),
        "content": {name: (folder / name).read_bytes() for name in files_of(folder) if _is_result(folder / name)},
    }


def files_of(folder: Path) -> list[str]:
    """Every file and folder, less the lock, the views, and core numbers that are kept to be read again."""
    found = (p.relative_to(folder) for p in folder.rglob("*") if not p.name.startswith("cores-"))
    return sorted(str(name) for name in found if name.name not in (".lock", *VIEWS))


def _is_result(path: Path) -> bool:
    return path.is_file() and (path.name == "best.yaml" or "model" in path.parts)
