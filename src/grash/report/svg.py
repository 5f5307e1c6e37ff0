"""SVG elements as escaped text, scales with round ticks, and the axes that all charts share.

Colors are CSS classes, so the page's light and dark styles apply. `data-tip` of a mark is its tooltip; `data-c` is its
configuration, and pointing at one mark highlights all marks with the same `data-c`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import Any

from grash.formatting import format_number

CHARACTER = 6.6  # px; an upper estimate of the width of one character at 12 px


def tag(name: str, content: str = "", **attributes: Any) -> str:
    """Return one element. `content` is markup; attribute values are escaped. `cls` is `class`, and `_` becomes `-`."""
    parts = [name]
    for key, value in attributes.items():
        if value is None:
            continue
        key = "class" if key == "cls" else key.replace("_", "-")
        text = f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
        parts.append(f'{key}="{escape(text, quote=True)}"')
    opening = " ".join(parts)
    return f"<{opening}>{content}</{name}>" if content else f"<{opening}/>"


def label(text: object, x: float, y: float, **attributes: Any) -> str:
    """Return a text element; the text is escaped."""
    return tag("text", escape(str(text)), x=x, y=y, **attributes)


def line(x1: float, y1: float, x2: float, y2: float, **attributes: Any) -> str:
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, **attributes)


def dot(x: float, y: float, r: float, cls: str, **attributes: Any) -> str:
    return tag("circle", cx=x, cy=y, r=r, cls=f"mark {cls}", **attributes)


def bar(x: float, y: float, width: float, height: float, cls: str, **attributes: Any) -> str:
    return tag("rect", x=x, y=y, width=max(width, 1.0), height=height, rx=2, cls=f"mark {cls}", **attributes)


def path(points: list[tuple[float, float]], cls: str, **attributes: Any) -> str:
    """Return a line through the points."""
    coordinates = " L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return tag("path", d=f"M{coordinates}", cls=f"mark {cls}", **attributes)


def drawing(content: list[str], width: float, height: float, description: str) -> str:
    """Return the svg element; screen readers read the description."""
    return tag(
        "svg", "".join(content), viewBox=f"0 0 {width:g} {height:g}", width=width, height=height, role="img",
        aria_label=description,
    )  # fmt: skip


@dataclass(frozen=True)
class Scale:
    """Maps values to pixels: low to start, high to end."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, value = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        share = (value - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)

    def ticks(self, about: int = 5) -> list[float]:
        """Return about that many round values within the scale."""
        return _log_ticks(self.low, self.high, about) if self.log else _even_ticks(self.low, self.high, about)


def scale_over(values: list[float], start: float, end: float, *, log: bool = False) -> Scale:
    """Return a scale over the values, with a margin at both ends."""
    low, high = (min(values), max(values)) if values else ((0.1, 1.0) if log else (0.0, 1.0))
    if log:
        room = (high / low) ** 0.06 if high > low else 2.0
        return Scale(low / room, high * room, start, end, log=True)
    room = 0.06 * (high - low) or 0.1 * abs(high) or 0.5
    return Scale(low - room, high + room, start, end)


def frame(x: Scale, y: Scale, *, xs: list[tuple[float, str]], ys: list[tuple[float, str]]) -> list[str]:
    """Return axes and grid lines with labels; a tick is (value, text)."""
    drawn = []
    for value, text in ys:
        drawn.append(line(x.start, y(value), x.end, y(value), cls="grid"))
        drawn.append(label(text, x.start - 6, y(value) + 4, cls="tick", text_anchor="end"))
    for value, text in xs:
        drawn.append(line(x(value), y.start, x(value), y.start + 4, cls="axis"))
        drawn.append(label(text, x(value), y.start + 17, cls="tick", text_anchor="middle"))
    return [*drawn, line(x.start, y.start, x.end, y.start, cls="axis")]


def ticks_of(scale: Scale, about: int = 5) -> list[tuple[float, str]]:
    """Return the ticks of a scale with their texts."""
    return [(value, format_number(value)) for value in scale.ticks(about)]


def _even_ticks(low: float, high: float, about: int) -> list[float]:
    if not high > low:
        return [low]
    rough = (high - low) / about
    power = 10 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough)
    first = math.ceil(low / step)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float, about: int) -> list[float]:
    """Return powers of ten; where fewer than three are in range, also 2 and 5 times them."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    powers = [10.0**e for e in range(first, last + 1) if low <= 10.0**e <= high]
    if len(powers) < 3:
        finer = [m * 10.0**e for e in range(first, last + 1) for m in (1, 2, 5) if low <= m * 10.0**e <= high]
        return finer[:: max(1, -(-len(finer) // (about + 1)))]
    return powers[:: max(1, -(-len(powers) // about))]
