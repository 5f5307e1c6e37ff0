"""Drawing: SVG elements as escaped text, scales with sensible ticks, and the frame that charts share.

Colors are classes, so that the page's light and dark styles apply. A mark carries `data-tip` (its tooltip) and
`data-c` (its configuration, which lights up everywhere when one of its marks is pointed at).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import Any

from grash.formatting import format_number

CHARACTER = 6.6  # px, width of a letter of a label at 12 px, on the safe side


def tag(name: str, content: str = "", **attributes: Any) -> str:
    """An element; `content` is markup, attribute values are escaped. Underscores become dashes, `cls` is class."""
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
    return tag("text", escape(str(text)), x=x, y=y, **attributes)


def line(x1: float, y1: float, x2: float, y2: float, **attributes: Any) -> str:
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, **attributes)


def dot(x: float, y: float, r: float, cls: str, **attributes: Any) -> str:
    return tag("circle", cx=x, cy=y, r=r, cls=f"mark {cls}", **attributes)


def bar(x: float, y: float, width: float, height: float, cls: str, **attributes: Any) -> str:
    return tag("rect", x=x, y=y, width=max(width, 1.0), height=height, rx=2, cls=f"mark {cls}", **attributes)


def path(points: list[tuple[float, float]], cls: str, **attributes: Any) -> str:
    places = " L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return tag("path", d=f"M{places}", cls=f"mark {cls}", **attributes)


def drawing(content: list[str], width: float, height: float, description: str) -> str:
    return tag(
        "svg", "".join(content), viewBox=f"0 0 {width:g} {height:g}", width=width, height=height, role="img",
        aria_label=description,
    )  # fmt: skip


@dataclass(frozen=True)
class Scale:
    """Values to places: low ↦ start, high ↦ end."""

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
        return _log_ticks(self.low, self.high, about) if self.log else _even_ticks(self.low, self.high, about)


def scale_over(values: list[float], start: float, end: float, *, log: bool = False, zero: bool = False) -> Scale:
    """A scale that holds the values with some room at the ends; with `zero`, it begins there."""
    low, high = (min(values), max(values)) if values else ((0.1, 1.0) if log else (0.0, 1.0))
    if log:
        room = (high / low) ** 0.06 if high > low else 2.0
        return Scale(low / room, high * room, start, end, log=True)
    room = 0.06 * (high - low) or 0.1 * abs(high) or 0.5
    return Scale(0.0 if zero else low - room, high + room, start, end)


def frame(x: Scale, y: Scale, *, xs: list[tuple[float, str]], ys: list[tuple[float, str]]) -> list[str]:
    """Grid lines with their labels; ticks are (value, words)."""
    drawn = []
    for value, words in ys:
        drawn.append(line(x.start, y(value), x.end, y(value), cls="grid"))
        drawn.append(label(words, x.start - 6, y(value) + 4, cls="tick", text_anchor="end"))
    for value, words in xs:
        drawn.append(line(x(value), y.start, x(value), y.start + 4, cls="axis"))
        drawn.append(label(words, x(value), y.start + 17, cls="tick", text_anchor="middle"))
    return [*drawn, line(x.start, y.start, x.end, y.start, cls="axis")]


def ticks_of(scale: Scale, about: int = 5) -> list[tuple[float, str]]:
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
    """Powers of ten; between them 1, 2, 5 where there are few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    powers = [10.0**e for e in range(first, last + 1) if low <= 10.0**e <= high]
    if len(powers) < 3:
        finer = [m * 10.0**e for e in range(first, last + 1) for m in (1, 2, 5) if low <= m * 10.0**e <= high]
        return finer[:: max(1, -(-len(finer) // (about + 1)))]
    return powers[:: max(1, -(-len(powers) // about))]
