"""Which parameters mattered: PED-ANOVA where Optuna is installed, else rank correlation, named as what it is.

Over the first round, in which every configuration was judged on the same graph.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grash.errors import GrashError
from grash.search.ledger import RoundState, SearchState
from grash.search.trial import TrialResult

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


def _ped_anova(state: SearchState, judged: list[TrialResult], axes: list[Axis]) -> dict[str, float]:
    import optuna

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


def _by_rank(state: SearchState, judged: list[TrialResult], axes: list[Axis]) -> dict[str, float]:
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


# = What was searched: one axis per hyperparameter, for slices, importances and Optuna's distributions.
# =
# = Comes from the space that the settings name. Where that cannot be read any more (its file has gone), the axes follow
# = from the configurations themselves: whatever differs between them was searched.

_SET_BY_SEARCH = ("epochs", "valid_every", "patience", "seed", "variation", "model")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Axis:
    """A searched parameter: a range of numbers, or choices. `off`: 0 is a value beside the range."""

    label: str  # the parameter's name; with its model in front where models have other ranges
    name: str
    models: tuple[str, ...]
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False
    off: bool = False
    choices: tuple[Any, ...] = ()
    when: tuple[tuple[str, tuple[Any, ...]], ...] = ()

    def counts(self, values: Mapping[str, Any]) -> bool:
        """Whether a configuration makes use of this parameter."""
        return values.get("model") in self.models and all(_among(values.get(n), wanted) for n, wanted in self.when)

    def is_off(self, value: Any) -> bool:
        return self.off and value == 0


def searched(state: SearchState) -> list[Axis]:
    """The axes of a search in the order of its space; the model itself is one where there are several."""
    models = tuple(state.settings.get("models", ()))
    try:
        axes = _from_space(state, models)
    except (GrashError, ImportError, KeyError, ValueError, TypeError) as error:
        _log.info("The space of the search cannot be read (%s): its axes follow from the configurations.", error)
        axes = _from_values(state, models)
    return [Axis("model", "model", models, choices=models), *axes] if len(models) > 1 else axes


def _from_space(state: SearchState, models: tuple[str, ...]) -> list[Axis]:
    from grash.search.proposals import space_for
    from grash.search.settings import SearchSettings

    settings = SearchSettings(**state.settings)
    spaces = {model: space_for(settings, model, state.dataset["n_entities"]) for model in models}
    found: dict[tuple[Any, ...], list[str]] = {}
    for model, space in spaces.items():
        for name in space.searched:
            found.setdefault((name, space.parameters[name]), []).append(model)
    names = [name for name, _ in found]
    axes = []
    for (name, given), having in found.items():
        label = name if names.count(name) == 1 else f"{'+'.join(having)}.{name}"
        choices = given.values if given.kind == "choice" else ()
        axes.append(
            Axis(label, name, tuple(having), given.low, given.high, given.log, given.kind == "int", given.off > 0,
                 choices, _conditions(spaces[having[0]].parameters, name))
        )  # fmt: skip
    return axes


def _conditions(parameters: Mapping[str, Any], name: str) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    """What must hold for a parameter to count, the conditions of those that it names included."""
    own = parameters[name].when
    return (*own, *(condition for other, _ in own for condition in _conditions(parameters, other)))


def _from_values(state: SearchState, models: tuple[str, ...]) -> list[Axis]:
    made = [c.values for c in state.configurations.values()]
    names = [n for n in (made[0] if made else {}) if n not in _SET_BY_SEARCH]
    axes = []
    for name in names:
        seen = [values[name] for values in made]
        if len({repr(v) for v in seen}) < 2:
            continue
        if all(isinstance(v, int | float) and not isinstance(v, bool) for v in seen):
            axes.append(_number_axis(name, models, seen))
        else:
            axes.append(Axis(name, name, models, choices=tuple(sorted({str(v): v for v in seen}.values(), key=str))))
    return axes


def _number_axis(name: str, models: tuple[str, ...], seen: list[Any]) -> Axis:
    above = [v for v in seen if v > 0]
    log = bool(above) and min(seen) >= 0 and max(above) > 30 * min(above)
    ranged = above if log else seen
    whole = all(isinstance(v, int) for v in seen)
    return Axis(name, name, models, float(min(ranged)), float(max(ranged)), log, whole, log and 0 in seen)


def _among(value: Any, wanted: tuple[Any, ...]) -> bool:
    return any(isinstance(value, bool) == isinstance(w, bool) and value == w for w in wanted)


# = Axes become Optuna's distributions, and a configuration its point: for the view and for importances.


class Points:
    """Parameters of configurations as Optuna wants them: only those that count, each with its distribution.

    A number that can be off is two parameters: `NAME.on`, and `NAME` where it is on.
    """

    def __init__(self, axes: list[Axis]) -> None:
        from optuna.distributions import CategoricalDistribution

        self.axes = axes
        self._of = {axis.label: _distribution(axis) for axis in axes}
        self._switch = CategoricalDistribution((False, True))

    def point(self, values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """(params, distributions); a value outside its range is left out, since Optuna refuses it."""
        params: dict[str, Any] = {}
        distributions: dict[str, Any] = {}
        for axis in self.axes:
            if not axis.counts(values):
                continue
            value, label = values[axis.name], axis.label
            if axis.off:
                params[f"{label}.on"], distributions[f"{label}.on"] = not axis.is_off(value), self._switch
            if not axis.is_off(value) and _holds(self._of[label], value):
                params[label], distributions[label] = value, self._of[label]
        return params, distributions


def _distribution(axis: Axis) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if axis.choices:
        return CategoricalDistribution(axis.choices)
    if axis.whole:
        return IntDistribution(int(axis.low), int(axis.high), log=axis.log)
    return FloatDistribution(axis.low, axis.high, log=axis.log)


def _holds(distribution: Any, value: Any) -> bool:
    try:
        return bool(distribution._contains(distribution.to_internal_repr(value)))
    except (ValueError, TypeError):
        return False


# = How well one round foretells the next: ranks and their correlation, in plain Python.


def ranking(past: RoundState) -> list[int]:
    """Configurations of a round, best first."""
    return past.best(len(past.results))


def correlations(state: SearchState) -> list[str | None]:
    """Between each round and the next: Spearman's ρ over the configurations that both have scored, in words."""
    said: list[str | None] = []
    for before, after in zip(state.rounds, state.rounds[1:]):
        both = [n for n in ranking(after) if n in before.results and before.results[n].mrr is not None]
        rho = spearman([before.results[n].mrr or 0.0 for n in both], [after.results[n].mrr or 0.0 for n in both])
        said.append(None if rho is None else f"ρ\u00a0=\u00a0{rho:.2f}\u00a0({len(both)})")
    return said


def spearman(first: list[float], second: list[float]) -> float | None:
    """Rank correlation, ties at their mean rank; None for fewer than three pairs or where one side is constant."""
    if len(first) < 3:
        return None
    a, b = mean_ranks(first), mean_ranks(second)
    middle = (len(a) + 1) / 2
    up = sum((p - middle) * (q - middle) for p, q in zip(a, b))
    down = math.sqrt(sum((p - middle) ** 2 for p in a) * sum((q - middle) ** 2 for q in b))
    return up / down if down else None


def mean_ranks(values: list[float]) -> list[float]:
    """1 for the smallest; equal values share the mean of their ranks."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    ranks, at = [0.0] * len(values), 0
    while at < len(order):
        end = at
        while end < len(order) and values[order[end]] == values[order[at]]:
            end += 1
        for i in order[at:end]:
            ranks[i] = (at + 1 + end) / 2
        at = end
    return ranks
