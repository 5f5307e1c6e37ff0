"""TPE with fidelities, in the manner of BOHB: the rounds of a search, whose first-round trials a model proposes.

Members enter the first round one by one; once there are two more than parameters, two in three are proposed from the
scores that this round has so far, the others at random. The rounds after it are those of GraSH.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from grash.study.methods import grash
from grash.study.methods.trace import Trace
from grash.study.recorded import Recorded
from grash.study.table_search import entering


def run(bench: Recorded, rng: np.random.Generator, budget: float, *, uniform: float = 1 / 3, **settings: Any) -> Trace:
    """settings: of the search whose rounds these are (`variant="epoch"` for BOHB's own fidelity)."""
    n = entering(bench, bench.settings(settings.get("preset", "default"), budget, _changes(settings)))
    enough = len(bench.points.space.searched) + 2
    return grash.run(bench, rng, budget, how="waves", first=min(1.0, enough / n), batch=1, uniform=uniform, **settings)


def _changes(settings: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple((k, v) for k, v in settings.items() if k != "preset")
