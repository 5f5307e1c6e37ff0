"""Axes become Optuna's distributions, and a configuration its point: for the view and for importances."""

from __future__ import annotations

from typing import Any

from grash.report.parameters import Axis


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
