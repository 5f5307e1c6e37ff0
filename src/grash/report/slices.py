"""Charts of the parameters: how much each mattered, and its values against the MRR of the first round."""

from __future__ import annotations

from typing import Any

from grash.report.charts import NARROW, best_configuration, tip, tone
from grash.report.importances import Importances
from grash.report.parameters import Axis
from grash.report.svg import CHARACTER, Scale, bar, dot, drawing, frame, label, number, scale_over, ticks_of
from grash.search.state import SearchState
from grash.search.trial import Result

MOST_BARS = 14
_TALL = 168.0
_OFF_ROOM = 34.0  # px left of the range for values that are off


def importance_bars(found: Importances, width: int) -> str:
    """Horizontal bars, largest first; those that round to nothing are left out."""
    shown = {name: s for i, (name, s) in enumerate(found.shares.items()) if i < 3 or (i < MOST_BARS and s >= 0.005)}
    left = max(len(name) for name in shown) * CHARACTER + 12
    x = Scale(0.0, max(1e-9, *shown.values()), left, width - 56.0)
    drawn, row = [], 26.0
    for i, (name, share) in enumerate(shown.items()):
        y = row * i + 4
        drawn.append(label(name, left - 8, y + 14, cls="name", text_anchor="end"))
        drawn.append(bar(left, y, x(share) - left, 18, "plain", data_tip=f"{name}: {share:.3f}"))
        drawn.append(label(f"{share:.2f}", x(share) + 6, y + 14, cls="value"))
    return drawing(drawn, width, row * len(shown) + 8, "Importance of each parameter")


def slices(state: SearchState, axes: list[Axis], width: int) -> str | None:
    """A panel per parameter: its value and the MRR in round 1, stronger the further the configuration came."""
    scored = [r for r in (state.rounds[0].results.values() if state.rounds else []) if r.mrr is not None]
    axes = [a for a in axes if any(a.counts(state.configurations[r.number].values) for r in scored)]
    if not axes:
        return None
    columns = 1 if width < NARROW else 3
    each = width / columns
    y_values = [r.mrr or 0.0 for r in scored]
    reached = {n: past.plan.number for past in state.rounds for n in past.results}
    drawn = []
    for i, axis in enumerate(axes):
        x0, y0 = each * (i % columns), _TALL * (i // columns)
        y = scale_over(y_values, y0 + _TALL - 34, y0 + 28)
        drawn.append(label(axis.label, x0 + 40, y0 + 16, cls="head"))
        place = _Place(axis, x0 + 40, x0 + each - 16)
        drawn += place.frame(y)
        drawn += [_mark(state, r, axis, place, y, reached) for r in sorted(scored, key=lambda r: reached[r.number])]
    return drawing(drawn, width, _TALL * -(-len(axes) // columns), "Value of each parameter against the MRR of round 1")


def _mark(state: SearchState, r: Result, axis: Axis, place: _Place, y: Scale, reached: dict[int, int]) -> str:
    values = state.configurations[r.number].values
    if not axis.counts(values):
        return ""
    value = values[axis.name]
    best = r.number == best_configuration(state)
    cls = f"r{tone(reached[r.number] - 1, state)} {'winner' if best else 'other'}"
    said = tip(state, r, f"{axis.label} = {_words(value)}\nround 1 (came to round {reached[r.number]})")
    at = (place(value, r.number), y(r.mrr or 0.0))
    return dot(*at, 5.0 if best else 3.4, cls, data_tip=said, data_c=r.number)


class _Place:
    """Where a value stands on its axis: a range, choices side by side, or off at the left."""

    def __init__(self, axis: Axis, start: float, end: float) -> None:
        self.axis, self.start = axis, start
        if axis.choices:
            self.x = Scale(-0.5, len(axis.choices) - 0.5, start, end)
            self.ticks = [(float(i), _short(c, (end - start) / len(axis.choices))) for i, c in enumerate(axis.choices)]
            return
        low, high = (axis.low, axis.high) if axis.high > axis.low else (axis.low * 0.9, axis.high * 1.1 or 1.0)
        self.x = Scale(low, high, start + (_OFF_ROOM if axis.off else 6), end - 4, axis.log)
        room = 12 if axis.off else 0  # beside the word off
        self.ticks = [(v, words) for v, words in ticks_of(self.x, 4) if self.x(v) >= self.x.start + room]

    def __call__(self, value: Any, seed: int) -> float:
        if self.axis.choices:
            index = next((i for i, c in enumerate(self.axis.choices) if repr(c) == repr(value)), 0)
            width = (self.x.end - self.x.start) / len(self.axis.choices)
            return self.x(index) + (_scatter(seed) - 0.5) * min(0.6 * width, 40)
        if self.axis.is_off(value):
            return self.start + 10 + (_scatter(seed) - 0.5) * 12
        return self.x(min(max(value, self.x.low), self.x.high))

    def frame(self, y: Scale) -> list[str]:
        grid = Scale(0.0, 1.0, self.start, self.x.end)
        drawn = frame(grid, y, xs=[], ys=ticks_of(y, 3)) + frame(self.x, y, xs=self.ticks, ys=[])
        if self.axis.off:
            drawn.append(label("off", self.start + 10, y.start + 17, cls="tick", text_anchor="middle"))
        return drawn


def _scatter(seed: int) -> float:
    """Spread inside a choice, the same every time: multiples of the golden ratio are even."""
    return (seed * 0.6180339887) % 1.0


def _short(value: Any, width: float) -> str:
    words = _words(value)
    room = max(3, int(width / CHARACTER))
    return words if len(words) <= room else f"{words[: room - 1]}…"


def _words(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return number(value) if isinstance(value, int | float) else str(value)
