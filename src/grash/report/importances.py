"""Which parameters mattered: PED-ANOVA where Optuna is installed, else rank correlation, named as what it is.

Over the first round, in which every configuration was judged on the same graph.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

from grash.report.correlation import mean_ranks, spearman
from grash.report.parameters import Axis
from grash.search.state import SearchState
from grash.search.trial import Result

FEWEST = 8  # trials with a score; below, importances are noise
ENOUGH = 32  # below, they are a hint at best


@dataclass(frozen=True)
class Importances:
    """Shares by parameter, largest first, and how they were found."""

    method: str
    shares: dict[str, float]


def importances(state: SearchState, axes: list[Axis]) -> Importances | None:
    """None while too few trials have a score."""
    judged = [r for r in (state.rounds[0].results.values() if state.rounds else []) if r.status in ("ok", "diverged")]
    if sum(r.status == "ok" for r in judged) < FEWEST or not axes:
        return None
    try:
        shares = _ped_anova(state, judged, axes)
        method = "PED-ANOVA (Optuna) over the trials of round 1: what sets the best tenth apart"
    except ImportError:
        shares = _by_rank(state, judged, axes)
        method = "strength of the rank correlation with the MRR of round 1 (install Optuna for PED-ANOVA)"
    return Importances(method, dict(sorted(shares.items(), key=lambda kv: -kv[1])))


def _ped_anova(state: SearchState, judged: list[Result], axes: list[Axis]) -> dict[str, float]:
    import optuna

    from grash.report.distributions import Points

    points = Points(axes)
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        study = optuna.create_study(direction="maximize")
        for r in judged:
            params, distributions = points.point(state.configurations[r.number].values)
            value = (r.mrr or 0.0) if r.status == "ok" else 0.0
            study.add_trial(optuna.trial.create_trial(value=value, params=params, distributions=distributions))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # few trials in a branch of a condition: the page says how many there are
            shares = optuna.importance.get_param_importances(study)
    finally:
        optuna.logging.set_verbosity(before)
    switches = {name: f"{name.removesuffix('.on')} (on or off)" for name in shares if name.endswith(".on")}
    return {switches.get(name, name): share for name, share in shares.items()}


def _by_rank(state: SearchState, judged: list[Result], axes: list[Axis]) -> dict[str, float]:
    found = {}
    for axis in axes:
        pairs = [(state.configurations[r.number].values, r.mrr or 0.0) for r in judged]
        pairs = [(values[axis.name], score) for values, score in pairs if axis.counts(values)]
        found[axis.label] = _strength([v for v, _ in pairs], [s for _, s in pairs], axis)
    return found


def _strength(values: list[Any], scores: list[float], axis: Axis) -> float:
    """|ρ| of a number; the share of the variance of ranks between the groups of a choice, under a root."""
    if not axis.choices:
        return abs(spearman([float(v) for v in values], scores) or 0.0)
    ranks = mean_ranks(scores)
    middle = (len(ranks) + 1) / 2
    total = sum((r - middle) ** 2 for r in ranks)
    between = 0.0
    for choice in {repr(v) for v in values}:
        own = [r for v, r in zip(values, ranks) if repr(v) == choice]
        between += len(own) * (sum(own) / len(own) - middle) ** 2
    return (between / total) ** 0.5 if total else 0.0
