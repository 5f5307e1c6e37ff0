"""Pages of results: Markdown with tables, the command and the machine; raw numbers and plots as SVG beside it.

Every study makes one `Page`; `write_page` puts its files where they belong, each whole or not at all.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from grash.errors import InputError
from grash.files import atomic_file

Value = str | int | float | None
NOT_RUN = "not run yet"
_BEGIN, _END = "<!-- pages: written by grash study -->", "<!-- end of pages -->"


@dataclass(frozen=True)
class Rows:
    """A table: headings and rows; None is what has not been run yet."""

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
    """name: of its files. parts: Markdown, tables and plots ((file stem, SVG, caption)) in their order.

    raw: numbers for NAME.csv; more: those of other files, by what their names end with (`-rounds.csv`, `.parquet`)."""

    name: str
    title: str
    command: str
    device: str
    parts: list[str | Rows | tuple[str, str, str]] = field(default_factory=list)
    raw: Rows | None = None
    more: dict[str, Rows] = field(default_factory=dict)
    made: date = field(default_factory=date.today)

    def add(self, *parts: str | Rows | tuple[str, str, str]) -> None:
        self.parts += parts


def write_page(page: Page, folder: Path, *, refuse_less: bool = False) -> Path:
    """Writes NAME.md, its files of numbers and img/*.svg into a folder; gives back the page's path. refuse_less: a page
    that was made from more stays, which is an InputError."""
    folder, text = Path(folder), [f"# {page.title}"]
    if refuse_less:
        _check_more(page, folder)
    about = [f"Made on {page.made.isoformat()}", f"computed on {page.device or NOT_RUN}"]
    numbers = {**({".csv": page.raw} if page.raw is not None else {}), **page.more}
    links = [_numbers(folder, f"{page.name}{ending}", rows) for ending, rows in numbers.items()]
    if links:
        about.append(f"raw numbers: {', '.join(links)}")
    text.append(f"{'; '.join(about)}.")
    text.append(f"```bash\n{page.command}\n```")
    for part in page.parts:
        if isinstance(part, Rows):
            text.append(part.markdown())
        elif isinstance(part, tuple):
            stem, drawn, caption = part
            _write(folder / "img" / f"{stem}.svg", drawn + "\n")
            text.append(f"![{caption}](img/{stem}.svg)")
        else:
            text.append(part)
    path = folder / f"{page.name}.md"
    _write(path, "\n\n".join(text) + "\n")
    list_pages(folder)
    return path


def _check_more(page: Page, folder: Path) -> None:
    """Raises where the page that is there has more in its NAME.csv than this one would have."""
    path, numbers = folder / f"{page.name}.md", folder / f"{page.name}.csv"
    if page.raw is None or not path.is_file() or not numbers.is_file():
        return
    before, now = _how_much(numbers.read_text(encoding="utf-8")), _how_much(page.raw.csv())
    for kind, had, has in zip(("numbers", "scores"), before, now):
        if has < had:
            raise InputError(
                f"{path} was made from {had:,} {kind} and would have {has:,} now, so it stays as it is: complete the "
                f"store (`grash study merge`), give another folder with --out, or delete the page to have this one."
            )


def _how_much(text: str) -> tuple[int, int]:
    """Of a CSV: its filled cells, and what its column `scores` adds up to, if it has one."""
    rows = list(csv.DictReader(io.StringIO(text)))
    return sum(value != "" for row in rows for value in row.values()), sum(int(row.get("scores") or 0) for row in rows)


def _numbers(folder: Path, name: str, rows: Rows) -> str:
    """Writes a file of numbers, and gives back a link to it, or why there is none."""
    if not name.endswith(".parquet"):
        _write(folder / name, rows.csv())
        return f"[{name}]({name})"
    try:
        import polars as pl
    except ModuleNotFoundError:
        return f"{name} (polars was not there to write it)"
    frame = pl.DataFrame(rows.rows, schema=list(rows.headings), orient="row", infer_schema_length=None)
    with atomic_file(folder / name) as aside:
        frame.write_parquet(aside, compression="zstd")
    return f"[{name}]({name})"


def list_pages(folder: Path) -> None:
    """Brings the list of pages in a folder's README.md up to date, between its two marks; the rest is prose."""
    index = Path(folder) / "README.md"
    text = index.read_text(encoding="utf-8") if index.is_file() else ""
    before, begun, rest = text.partition(_BEGIN)
    _, ended, after = rest.partition(_END)
    if begun and ended:
        pages = sorted(p for p in index.parent.glob("*.md") if p != index)
        lines = [
            f"- [{p.read_text(encoding='utf-8').partition(chr(10))[0].removeprefix('# ')}]({p.name})" for p in pages
        ]
        _write(index, before + "\n".join([_BEGIN, *lines, _END]) + after)


def share_words(share: float) -> str:
    """1/64 as people write it, where it is one; else three digits."""
    whole = 1 / share
    return "1" if share == 1 else f"1/{round(whole)}" if abs(whole - round(whole)) < 1e-6 else f"{share:.3g}"


def with_interval(value: float | None, low: float | None, high: float | None, digits: int = 2) -> str | None:
    """A number with its interval, or None."""
    if value is None:
        return None
    span = "" if low is None or high is None else f" [{low:.{digits}f}, {high:.{digits}f}]"
    return f"{value:.{digits}f}{span}"


def _cell(value: Value) -> str:
    if value is None:
        return NOT_RUN
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else value.replace("|", "\\|")


def _write(path: Path, text: str) -> None:
    with atomic_file(path) as aside:
        aside.write_text(text, encoding="utf-8")
