"""Methods that choose from a pool, one file each, all of the form `run(bench, rng, budget, **settings) -> Trace`.

Every method begins with the same random order of the pool for the same seed, so that they are compared in pairs. The
final training of the pick is outside the budget for all.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from grash.errors import UnknownName
from grash.study.methods import (
    autone,
    grash,
    hyperband,
    kgtuner,
    one_epoch,
    random_search,
    rungs,
    tpe,
    tpe_rounds,
)
from grash.study.methods.trace import Trace
from grash.study.recorded import Recorded

Run = Callable[..., Trace]
RUNS: dict[str, Run] = {
    "grash": grash.run,
    "rungs": rungs.run,
    "random": random_search.run,
    "one-epoch": one_epoch.run,
    "hyperband": hyperband.run,
    "tpe": tpe.run,
    "tpe-rounds": tpe_rounds.run,
    "kgtuner": kgtuner.run,
    "autone": autone.run,
}


@dataclass(frozen=True)
class Method:
    """A way to search, by name: which of RUNS, or a function of the same form, with which settings; budget: its own,
    where it is not the common one."""

    name: str
    run: str | Run
    settings: Mapping[str, Any] = field(default_factory=dict)
    budget: float | None = None

    def __call__(self, bench: Recorded, seed: int, budget: float) -> Trace:
        """One search; its result depends on nothing but the seed."""
        spent = budget if self.budget is None else self.budget
        return self._function(bench, np.random.default_rng(seed), spent, **self.settings)

    @property
    def _function(self) -> Run:
        if not isinstance(self.run, str):
            return self.run
        if self.run not in RUNS:
            raise UnknownName("method", self.run, difflib.get_close_matches(self.run, RUNS) or tuple(RUNS))
        return RUNS[self.run]


METHODS: tuple[Method, ...] = (
    Method("GraSH, default", "grash"),
    Method("paper's rules, chain (combined)", "grash", {"preset": "paper"}),
    Method("paper's rules, chain (epoch)", "grash", {"preset": "paper", "variant": "epoch"}),
    Method("paper's rules, chain (graph)", "grash", {"preset": "paper", "variant": "graph"}),
    Method("random search", "random"),
    Method("one epoch, then the best", "one-epoch"),
    Method("Hyperband", "hyperband"),
    Method("TPE", "tpe"),
    Method("TPE with our rounds", "tpe-rounds"),
    Method("TPE with epochs (BOHB)", "tpe-rounds", {"variant": "epoch"}),
    Method("KGTuner-style", "kgtuner"),
    Method("KGTuner-style, as published", "kgtuner", budget=20.0),
    Method("AutoNE-style", "autone"),
)
