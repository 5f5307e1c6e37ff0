"""What was searched: one axis per hyperparameter, for slices, importances and Optuna's distributions.

Comes from the space that the settings name. Where that cannot be read any more (its file has gone), the axes follow
from the configurations themselves: whatever differs between them was searched.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grash.errors import GrashError
from grash.search.state import SearchState

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
    from grash.search.configurations import space_for
    from grash.search.settings import AS_BEFORE, SearchSettings

    settings = SearchSettings(**{**AS_BEFORE, **state.settings})
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
