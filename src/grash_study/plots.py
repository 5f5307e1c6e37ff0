"""Plots of studies: lines with intervals, and bars, as SVG files of their own that suit light and dark pages.

Drawn with report/svg.py; goes to docs/results/img. The numbers of a plot are in the page's table and its CSV.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from grash.report.charts import Scale, dot, drawing, frame, label, line, path, scale_over, tag, ticks_of

_COLOURS = ("#c2410c", "#0b62a8", "#1b7a3c", "#8a3fa0", "#a07800", "#00807c", "#b3246b", "#5b6470", "#5a3d1e")
_DARK = ("#ff9152", "#6fb7ee", "#6fd394", "#cf9be0", "#e6c04d", "#4fd1cc", "#f08bb9", "#a8b0ba", "#c8a27c")
_ASIDE = 4.0  # px between intervals at one place
_DASHES = ("", "6 3", "2 3")
_STYLE = """
text{font:12px ui-sans-serif,system-ui,"Segoe UI",Roboto,Arial,"DejaVu Sans",sans-serif;fill:#62666e}
.head{fill:#1d1f23;font-weight:600;font-size:13px}.grid{stroke:#ebe9e4}.axis{stroke:#c9c6be}
.page{fill:#ffffff}.curve{fill:none;stroke-width:2}.whisker{stroke-width:1.2;opacity:.55}
"""


@dataclass(frozen=True)
class Series:
    """points: (x, y, low, high); low and high may be None."""

    name: str
    points: tuple[tuple[float, float, float | None, float | None], ...]


def line_plot(
    series: Sequence[Series],
    *,
    title: str,
    x_label: str,
    y_label: str,
    xs: Sequence[tuple[float, str]] | None = None,
    log_x: bool = False,
    width: int = 720,
    height: int = 400,
    y_range: tuple[float, float] | None = None,
) -> str:
    """A line per series with its intervals and a legend at the right. xs: ticks as (value,
    words), chosen where not given."""
    shown = [s for s in series if s.points]
    right = width - 16 - max([7 * len(_words(s)) + 34 for s in series], default=40)
    all_x = [p[0] for s in shown for p in s.points]
    x = scale_over(all_x, 56, right, log=log_x)
    y = _y_scale(shown, height - 58, 46, y_range)
    drawn = [label(title, 0, 16, cls="head")]
    drawn += frame(x, y, xs=list(xs) if xs is not None else ticks_of(x, 6), ys=ticks_of(y, 6))
    drawn.append(label(x_label, right, height - 8, text_anchor="end"))
    drawn.append(label(y_label, 0, 30))
    for i, s in enumerate(series):
        if s.points:
            drawn += _curve(s, x, y, i, aside=_ASIDE * (i - (len(series) - 1) / 2))
        drawn += _legend(s, i, right + 18, 48 + 20 * i)
    return _file(drawn, width, height, title)


def bar_plot(
    rows: Sequence[tuple[str, float, float | None, float | None]],
    *,
    title: str,
    x_label: str,
    width: int = 720,
    mark: float | None = None,
    isolated: Collection[str] = (),
    form: str = ".4f",
) -> str:
    """A dot with its interval per row (name, value, low, high), under each other; beside a line at `mark`. apart:
    names of rows in another color than all others, since they are of another kind; form: of the values in words."""
    left, row = 16 + max([7 * len(name) for name, *_ in rows], default=40), 26.0
    values = [v for _, *three in rows for v in three if v is not None]
    x = scale_over([*values, mark] if mark is not None else values, left, width - 70)
    y = Scale(0, 1, 44 + row * len(rows), 34)
    drawn = [label(title, 0, 16, cls="head"), *frame(x, y, xs=ticks_of(x, 6), ys=[])]
    if mark is not None:
        drawn.append(line(x(mark), 40, x(mark), 40 + row * len(rows), cls="grid"))
    for i, (name, value, lower, upper) in enumerate(rows):
        place, color = 40 + row * (i + 0.5), int(name not in isolated)
        drawn.append(label(name, 0, place + 4))
        if lower is not None and upper is not None:
            drawn.append(line(x(lower), place, x(upper), place, cls=f"whisker s{color}"))
        drawn.append(dot(x(value), place, 4.5, f"f{color}"))
        said = format(value, form if mark is None else f"+{form}")
        drawn.append(label(said, max(x(value), x(value if upper is None else upper)) + 8, place + 4))
    drawn.append(label(x_label, width - 70, y.start + 36, text_anchor="end"))
    return _file(drawn, width, y.start + 44, title)


def _y_scale(series: Sequence[Series], start: float, end: float, given: tuple[float, float] | None) -> Scale:
    if given is not None:
        return Scale(given[0], given[1], start, end)
    return scale_over([v for s in series for p in s.points for v in p[1:] if v is not None], start, end)


def _curve(series: Series, x: Scale, y: Scale, i: int, aside: float) -> list[str]:
    """aside: so far beside their place, so that intervals of several series do not cover each other; a series without
    intervals stays where it is, since a place is a number to be read."""
    color, drawn = f"s{i % len(_COLOURS)}", []
    bounded = [(px, low, high) for px, _, low, high in series.points if low is not None and high is not None]
    aside = aside if bounded else 0.0
    for px, low, high in bounded:
        place = x(px) + aside
        drawn.append(line(place, _within(y, low), place, _within(y, high), cls=f"whisker {color}"))
    points = [(x(px) + aside, _within(y, py)) for px, py, _, _ in series.points]
    drawn.append(path(points, f"curve {color}", stroke_dasharray=_dash(i)))
    if len(points) <= 40:
        drawn += [dot(px, py, 3.4, f"f{i % len(_COLOURS)}") for px, py in points]
    return drawn


def _legend(series: Series, i: int, x: float, y: float) -> list[str]:
    sample = path([(x, y - 4), (x + 18, y - 4)], f"curve s{i % len(_COLOURS)}", stroke_dasharray=_dash(i))
    return [sample, label(_words(series), x + 24, y)]


def _words(series: Series) -> str:
    return series.name if series.points else f"{series.name} (not run yet)"


def _dash(i: int) -> str | None:
    return _DASHES[(i // len(_COLOURS)) % len(_DASHES)] or None


def _within(y: Scale, value: float) -> float:
    return y(min(max(value, y.low), y.high))


def _file(drawn: list[str], width: float, height: float, title: str) -> str:
    light = "".join(f".s{i}{{stroke:{c}}}.f{i}{{fill:{c}}}" for i, c in enumerate(_COLOURS))
    dark = "".join(f".s{i}{{stroke:{c}}}.f{i}{{fill:{c}}}" for i, c in enumerate(_DARK))
    night = "text{fill:#a3a8b0}.head{fill:#e9e8e4}.grid{stroke:#2a2e35}.axis{stroke:#4a505a}.page{fill:#14161a}"
    style = tag("style", f"{_STYLE}{light}@media(prefers-color-scheme:dark){{{night}{dark}}}")
    page = tag("rect", x=-12, y=-8, width=width + 24, height=height + 16, cls="page")
    body = drawing([style, page, *drawn], width, height, title)
    return body.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1).replace(
        f'viewBox="0 0 {width:g} {height:g}"', f'viewBox="-12 -8 {width + 24:g} {height + 16:g}"', 1
    )
