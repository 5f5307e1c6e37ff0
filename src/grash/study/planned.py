"""Which fidelities our default search would visit on a graph: a table must have these cells exactly.

Comes from pool.py and graphs.py; goes to the cells of a table.
"""

from __future__ import annotations

from grash.engines.estimate import plan_search
from grash.search.graphs import SearchGraphs
from grash.search.settings import SearchSettings, make_settings
from grash.study.graphs import StudyGraphs


def planned_fidelities(graphs: StudyGraphs) -> list[tuple[float, float]]:
    """(graph fraction, epoch fraction) of every round of the default search (η = 4, B = 3) over this pool, with the
    default's number of trials or as many as the pool has."""
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
    return [(1.0 if r.whole else r.graph_fraction, r.epochs / theirs.max_epochs) for r in rounds]
