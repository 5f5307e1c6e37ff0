"""The searched hyperparameters: their ranges, their form in Optuna, and the rank correlation between rounds.

`searched_parameters` takes them from the search space. Their importances are in `optuna.py`, with the studies.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import correlation
from typing import Any

from grash.formatting import format_number
from grash.report.summary import ranked
from grash.search.ledger import SearchState
from grash.search.proposals import space_for
from grash.search.settings import recorded_settings
from grash.search.space import same_value


@dataclass(frozen=True)
class SearchedParameter:
    """A searched hyperparameter: a range of numbers, or choices."""

    label: str  # its name, prefixed with its models if the models have different ranges
    name: str
    models: tuple[str, ...]
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    integer: bool = False
    off: bool = False  # whether 0 is a value outside the range
    choices: tuple[Any, ...] = ()
    when: tuple[tuple[str, tuple[Any, ...]], ...] = ()  # values of other parameters under which it is used

    def applies_to(self, values: Mapping[str, Any]) -> bool:
        """Return whether a configuration uses this parameter."""
        used = (any(same_value(values.get(n), v) for v in wanted) for n, wanted in self.when)
        return values.get("model") in self.models and all(used)

    def is_off(self, value: Any) -> bool:
        return self.off and value == 0


def searched_parameters(state: SearchState) -> list[SearchedParameter]:
    """Return the parameters in the order of the space; with several models, the model is the first."""
    settings = recorded_settings(state.settings)
    models = tuple(settings.models)
    sizes = state.dataset["n_entities"], state.dataset.get("n_train")
    spaces = {model: space_for(settings, model, *sizes) for model in models}
    having: dict[tuple[str, Any], list[str]] = {}  # (name, range) → models with this range
    for model, space in spaces.items():
        for name in space.searched:
            having.setdefault((name, space.parameters[name]), []).append(model)
    names = [name for name, _ in having]
    parameters = [SearchedParameter("model", "model", models, choices=models)] if len(models) > 1 else []
    for (name, given), its_models in having.items():
        label = name if names.count(name) == 1 else f"{'+'.join(its_models)}.{name}"
        choices = given.values if given.kind == "choice" else ()
        when = _conditions(spaces[its_models[0]].parameters, name)
        numbers = (given.low, given.high, given.log, given.kind == "int", given.off > 0)
        parameters.append(SearchedParameter(label, name, tuple(its_models), *numbers, choices, when))
    return parameters


def round_correlations(state: SearchState) -> list[str | None]:
    """Return for each pair of consecutive rounds Spearman's ρ over the configurations scored in both, as text."""
    texts: list[str | None] = []
    for before, after in zip(state.rounds, state.rounds[1:]):
        both = [n for n in ranked(after) if n in before.results and before.results[n].mrr is not None]
        rho = spearman([before.results[n].mrr or 0.0 for n in both], [after.results[n].mrr or 0.0 for n in both])
        texts.append(None if rho is None else f"ρ\u00a0=\u00a0{rho:.2f}\u00a0({len(both)})")
    return texts


def spearman(first: list[float], second: list[float]) -> float | None:
    """Return Spearman's rank correlation; None for fewer than three pairs or if one side is constant."""
    if len(first) < 3 or len(set(first)) == 1 or len(set(second)) == 1:
        return None
    return correlation(mean_ranks(first), mean_ranks(second))


def value_text(value: Any) -> str:
    """Return the value of a parameter as people read it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return format_number(value) if isinstance(value, int | float) else str(value)


def mean_ranks(values: list[float]) -> list[float]:
    """Return the rank of each value, 1 for the smallest; equal values get their mean rank."""
    ordered = sorted(values)
    first = {value: rank for rank, value in reversed(list(enumerate(ordered, 1)))}
    last = {value: rank for rank, value in enumerate(ordered, 1)}
    return [(first[value] + last[value]) / 2 for value in values]


class OptunaParameters:
    """Configurations as Optuna's params and distributions, with only the parameters that they use.

    A number that can be off becomes two parameters: `NAME.on`, and `NAME` if it is on.
    """

    def __init__(self, parameters: list[SearchedParameter]) -> None:
        from optuna.distributions import CategoricalDistribution

        self.parameters = parameters
        self._distributions = {parameter.label: _distribution(parameter) for parameter in parameters}
        self._switch = CategoricalDistribution((False, True))

    def point(self, values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return (params, distributions). Values outside their range are left out, since Optuna refuses them."""
        params: dict[str, Any] = {}
        distributions: dict[str, Any] = {}
        for parameter in self.parameters:
            if not parameter.applies_to(values):
                continue
            value, label = values[parameter.name], parameter.label
            if parameter.off:
                params[f"{label}.on"], distributions[f"{label}.on"] = not parameter.is_off(value), self._switch
            if not parameter.is_off(value) and _contains(self._distributions[label], value):
                params[label], distributions[label] = value, self._distributions[label]
        return params, distributions


@contextmanager
def quiet_optuna() -> Iterator[None]:
    """Keep Optuna's own messages (e.g. that a study was created) out of the output."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="IProgress not found")  # of tqdm, in a notebook without ipywidgets
        import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


def _conditions(parameters: Mapping[str, Any], name: str) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    """Return the conditions under which a parameter is used, with those of the parameters in them."""
    own = parameters[name].when
    return (*own, *(condition for other, _ in own for condition in _conditions(parameters, other)))


def _distribution(parameter: SearchedParameter) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if parameter.choices:
        return CategoricalDistribution(parameter.choices)
    if parameter.integer:
        return IntDistribution(int(parameter.low), int(parameter.high), log=parameter.log)
    return FloatDistribution(parameter.low, parameter.high, log=parameter.log)


def _contains(distribution: Any, value: Any) -> bool:
    try:
        return bool(distribution._contains(distribution.to_internal_repr(value)))
    except (ValueError, TypeError):
        return False
