"""One hyperparameter of a search space: which values it may take, and how a point of [0, 1) becomes one of them.

Comes from `space_file.py` (YAML) or `spaces.py` (presets), goes to `space.py`, which holds them by name.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from grash.errors import ConfigError

Kind = Literal["float", "int", "choice", "fixed"]
_SLACK = 1e-9  # of a range: what writing a bound in decimals may cost


@dataclass(frozen=True)
class Parameter:
    """A range (`float`, `int`), a list of values (`choice`) or one value (`fixed`).

    `off`: with this probability a number is 0, else it lies in the range. `when`: (other name, its values) pairs that
    must all hold for this parameter to count; without them it always does.
    """

    name: str
    kind: Kind
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    off: float = 0.0
    values: tuple[Any, ...] = ()
    when: tuple[tuple[str, tuple[Any, ...]], ...] = ()

    def __post_init__(self) -> None:
        if self.kind in ("float", "int"):
            self._check_range()
        else:
            self._check_values()

    def value(self, point: float) -> Any:
        """The value at a point of [0, 1): equal shares of the interval are equally likely."""
        if self.kind in ("choice", "fixed"):
            return self.values[min(int(point * len(self.values)), len(self.values) - 1)]
        if point < self.off:
            return 0 if self.kind == "int" else 0.0
        share = (point - self.off) / (1.0 - self.off)
        low, high = self._edges()
        found = math.exp(low + share * (high - low)) if self.log else low + share * (high - low)
        found = math.floor(found + 0.5) if self.kind == "int" else found
        return min(max(found, self._number(self.low)), self._number(self.high))

    def point(self, value: Any) -> float:
        """The middle of the points that give this value: `value(point(v))` is v again."""
        if self.kind in ("choice", "fixed"):
            return (self._index(value) + 0.5) / len(self.values)
        if self.is_off(value):
            return self.off / 2
        low, high = self._edges()
        place = math.log(value) if self.log else float(value)
        share = (place - low) / (high - low) if high > low else 0.5
        return min(max(self.off + (1.0 - self.off) * share, self.off), math.nextafter(1.0, 0.0))

    def holds(self, value: Any) -> bool:
        if self.kind in ("choice", "fixed"):
            return any(same(value, v) for v in self.values)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        if self.kind == "int" and value != int(value):
            return False
        return self.is_off(value) or (self.low - _SLACK * abs(self.low) <= value <= self.high + _SLACK * abs(self.high))

    def is_off(self, value: Any) -> bool:
        return bool(self.off and value == 0)

    def nearest(self, value: Any) -> Any:
        """The number of the range next to this one; below the range is off where the parameter can be."""
        if self.off and value < self.low:
            return self._number(0)
        return self._number(min(max(value, self.low), self.high))

    @property
    def span(self) -> str:
        """The values in words, for sentences."""
        if self.kind == "fixed":
            return f"it is fixed at {self.values[0]}"
        if self.kind == "choice":
            return f"it is one of {', '.join(map(str, self.values))}"
        whole = "a whole number " if self.kind == "int" else ""
        return f"it is {'0 or ' if self.off else ''}{whole}from {self.low:g} to {self.high:g}"

    def _edges(self) -> tuple[float, float]:
        """Ends of the interval that a share runs through; whole numbers own half a step on both sides."""
        step = 0.5 if self.kind == "int" else 0.0
        low, high = self.low - step, self.high + step
        return (math.log(low), math.log(high)) if self.log else (low, high)

    def _number(self, value: float) -> float | int:
        return int(value) if self.kind == "int" else float(value)

    def _index(self, value: Any) -> int:
        return next(i for i, v in enumerate(self.values) if same(value, v))

    def _check_range(self) -> None:
        name, low, high = self.name, self.low, self.high
        if not (math.isfinite(low) and math.isfinite(high)):
            raise ConfigError(f"{name}: low={low} and high={high} must be finite numbers.")
        if low > high:
            raise ConfigError(f"{name}: low={low:g} lies above high={high:g}: swap them.")
        if self.log and low <= 0:
            off = ", and `off: PROBABILITY` for none" if low == 0 else ""
            raise ConfigError(f"{name}: a log scale cannot begin at low={low:g}: give a low above 0{off}.")
        if self.kind == "int" and (low != int(low) or high != int(high)):
            raise ConfigError(f"{name}: low={low:g} and high={high:g} of an int must be whole numbers.")
        if not 0 <= self.off < 1:
            raise ConfigError(f"{name}: off={self.off:g} is the probability of 0: give a number from 0 up to 1.")
        if self.off and low < 0:
            raise ConfigError(f"{name}: low={low:g} with off={self.off:g}: give a low of 0 or more.")

    def _check_values(self) -> None:
        if not self.values:
            raise ConfigError(f"{self.name}: there is nothing to choose from: give at least one value.")
        for i, value in enumerate(self.values):
            if isinstance(value, dict | list | tuple | set):
                raise ConfigError(f"{self.name}: {value!r} is not a single value: give words, numbers, true or false.")
            if any(same(value, other) for other in self.values[:i]):
                raise ConfigError(f"{self.name}: {value!r} is listed twice: list it once.")


def same(a: Any, b: Any) -> bool:
    """Equality of settings: 1 and 1.0 are the same, 1 and true are not."""
    return isinstance(a, bool) == isinstance(b, bool) and bool(a == b)
