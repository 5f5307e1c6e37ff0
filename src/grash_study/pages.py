"""Pages of results: Markdown with tables and plots (SVG), the command and the device, and raw numbers beside it."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from grash.files import atomic_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Value = str | int | float | None
Bar = tuple[str, float, float | None, float | None]  # name, value, low, high
NOT_RUN = "not run yet"
_COLORS = ("#c2410c", "#0b62a8", "#1b7a3c", "#8a3fa0", "#a07800", "#00807c", "#b3246b", "#5b6470", "#5a3d1e")
_DASHES = ("-", "--", ":")
_SHIFT = 1.04  # ratio between the places of two intervals at one position


@dataclass(frozen=True)
class Rows:
    """A table; None is a result that has not been run yet."""

    headings: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]

    def markdown(self) -> str:
        lines = [f"| {' | '.join(self.headings)} |", f"|{'---|' * len(self.headings)}"]
        lines += [f"| {' | '.join(_cell(v) for v in row)} |" for row in self.rows]
        return "\n".join(lines)

    def csv(self) -> str:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.headings)
        writer.writerows([["" if v is None else v for v in row] for row in self.rows])
        return text.getvalue()


@dataclass
class Page:
    """A page of results."""

    name: str  # of its files
    title: str
    command: str
    device: str
    parts: list[str | Rows | tuple[str, str, str]] = field(default_factory=list)  # text, tables, (stem, SVG, caption)
    raw: Rows | None = None  # numbers of NAME.csv
    more: dict[str, Rows] = field(default_factory=dict)  # numbers of other files, by the end of their name
    made: date = field(default_factory=date.today)

    def add(self, *parts: str | Rows | tuple[str, str, str]) -> None:
        self.parts += parts

    def add_bars(self, rows: Sequence[Bar], *, title: str, x_label: str, caption: str, form: str = ".4f") -> None:
        """Add a `bar_plot`, unless it has no rows."""
        if rows:
            self.add((self.name, bar_plot(rows, title=title, x_label=x_label, form=form), caption))


def write_page(page: Page, folder: Path) -> Path:
    """Write NAME.md, its numbers and img/*.svg into a folder; return the path of the page."""
    folder, text = Path(folder), [f"# {page.title}"]
    about = [f"Made on {page.made.isoformat()}", f"computed on {page.device or NOT_RUN}"]
    numbers = {**({".csv": page.raw} if page.raw is not None else {}), **page.more}
    names = {f"{page.name}{ending}": rows for ending, rows in numbers.items()}
    for name, rows in names.items():
        _write_numbers(folder / name, rows)
    if names:
        about.append(f"raw numbers: {', '.join(f'[{name}]({name})' for name in names)}")
    text += [f"{'; '.join(about)}.", f"```bash\n{page.command}\n```"]
    for part in page.parts:
        if isinstance(part, Rows):
            text.append(part.markdown())
        elif isinstance(part, tuple):
            stem, drawn, caption = part
            _write(folder / "img" / f"{stem}.svg", drawn)
            text.append(f"![{caption}](img/{stem}.svg)")
        else:
            text.append(part)
    path = folder / f"{page.name}.md"
    _write(path, "\n\n".join(text) + "\n")
    return path


def with_interval(value: float | None, low: float | None, high: float | None, digits: int = 2) -> str | None:
    """Return a number with its interval, or None."""
    if value is None:
        return None
    interval = "" if low is None or high is None else f" [{low:.{digits}f}, {high:.{digits}f}]"
    return f"{value:.{digits}f}{interval}"


@dataclass(frozen=True)
class Series:
    """A line of a plot."""

    name: str
    points: tuple[tuple[float, float, float | None, float | None], ...]  # x, y, low, high


def line_plot(
    series: Sequence[Series],
    *,
    title: str,
    x_label: str,
    y_label: str,
    xs: Sequence[tuple[float, str]] = (),
    log_x: bool = False,
    size: tuple[float, float] = (8.0, 4.5),
    y_range: tuple[float, float] | None = None,
) -> str:
    """Return an SVG with a line per series and its intervals. xs: ticks as (value, label)."""
    figure, axes = _figure(size, title)
    for i, s in enumerate(series):
        color, dashes = _COLORS[i % len(_COLORS)], _DASHES[i // len(_COLORS) % len(_DASHES)]
        bounded = [(x, low, high) for x, _, low, high in s.points if low is not None and high is not None]
        shift = _SHIFT ** (i - (len(series) - 1) / 2) if bounded else 1.0  # so that intervals do not overlap
        x, y = [shift * p[0] for p in s.points], [p[1] for p in s.points]
        label = s.name if s.points else f"{s.name} ({NOT_RUN})"
        marker = "o" if len(x) <= 40 else ""
        axes.plot(x, y, label=label, marker=marker, markersize=4, color=color, linestyle=dashes)
        for at, low, high in bounded:
            axes.vlines(shift * at, low, high, color=color, alpha=0.5, linewidth=1.2)
    axes.set_xscale("log" if log_x else "linear")
    if xs:
        axes.set_xticks([x for x, _ in xs], [text for _, text in xs], minor=False)
        axes.set_xticks([], minor=True)
    axes.set(xlabel=x_label, ylabel=y_label, ylim=y_range)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return _svg(figure)


def bar_plot(
    rows: Sequence[Bar],
    *,
    title: str,
    x_label: str,
    mark: float | None = None,
    highlighted: Collection[str] = (),
    form: str = ".4f",
) -> str:
    """Return an SVG with a dot and its interval per row, and a line at `mark`. highlighted: names in another color."""
    figure, axes = _figure((8.0, 1.1 + 0.28 * len(rows)), title)
    for y, (name, value, low, high) in enumerate(rows):
        color = _COLORS[0] if name in highlighted else _COLORS[1]
        if low is not None and high is not None:
            axes.hlines(y, low, high, color=color, alpha=0.5)
        axes.plot([value], [y], "o", color=color)
        text = format(value, form if mark is None else f"+{form}")
        axes.annotate(text, (value if high is None else max(value, high), y), (6, -3), textcoords="offset points")
    if mark is not None:
        axes.axvline(mark, color="#999999", linewidth=1)
    axes.set_yticks(range(len(rows)), [name for name, *_ in rows])
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set_xlabel(x_label)
    return _svg(figure)


def _figure(size: tuple[float, float], title: str) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, loc="left", fontsize="medium", fontweight="bold")
    axes.grid(color="#ebe9e4")
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _svg(figure: Figure) -> str:
    """Return a figure as SVG, the same for the same numbers; its text stays text."""
    import matplotlib

    text = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "grash"}):
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()


def _write_numbers(path: Path, rows: Rows) -> None:
    if path.suffix != ".parquet":
        _write(path, rows.csv())
        return
    import polars as pl

    frame = pl.DataFrame(rows.rows, schema=list(rows.headings), orient="row", infer_schema_length=None)
    with atomic_file(path) as aside:
        frame.write_parquet(aside, compression="zstd")


def _cell(value: Value) -> str:
    if value is None:
        return NOT_RUN
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else value.replace("|", "\\|")


def _write(path: Path, text: str) -> None:
    with atomic_file(path) as aside:
        aside.write_text(text, encoding="utf-8")
