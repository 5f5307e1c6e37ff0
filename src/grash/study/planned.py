"""Which fidelities our default search would visit on a graph: a table must have these cells exactly.

Comes from pool.py and graphs.py; goes to the cells of a table.
"""

from __future__ import annotations

import math

from grash.engines.estimate import plan_search
from grash.search.graphs import SearchGraphs
from grash.search.settings import SearchSettings, make_settings
from grash.study.cells import MARKS, REGULAR
from grash.study.graphs import StudyGraphs

_NEAR = 1e-4  # relative: a round's epochs come from whole positives, and miss a usual mark by a part of one


def planned_fidelities(graphs: StudyGraphs) -> list[tuple[float, float]]:
    """(graph fraction, epoch fraction) of every round of the default search (η = 4, B = 3) over this pool, with the
    default's number of trials or as many as the pool has. Epochs that miss a usual mark by a hair are that mark."""
    theirs = graphs.pool.settings
    n_trials = min(graphs.pool.n, int(SearchSettings.model_fields["n_trials"].default))
    settings = make_settings(
        {
            "models": theirs.models, "dim": theirs.dim, "max_epochs": theirs.max_epochs, "seed": theirs.seed,
            "space": theirs.space, "fixed": theirs.fixed, "n_trials": n_trials, "proposals": "random",
            "final_train": False,
        }
    )  # fmt: skip
    search = SearchGraphs(graphs.pool.dataset, settings)
    search.__dict__["peeling"], search.__dict__["chain"] = graphs.search.peeling, graphs.search.chain
    rounds = [planned.plan for planned in plan_search(search, device="cpu", probe=False).rounds]
    return [_fidelity(1.0 if r.whole else r.graph_fraction, r.epochs / theirs.max_epochs) for r in rounds]


def _fidelity(graph: float, epochs: float) -> tuple[float, float]:
    usual = (*MARKS, *REGULAR) if graph == 1 else MARKS
    return graph, next((mark for mark in usual if math.isclose(mark, epochs, rel_tol=_NEAR)), epochs)
