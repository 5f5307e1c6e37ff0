"""Output: tables and JSON on stdout; messages, warnings and progress on stderr."""

from __future__ import annotations

import json
import logging
import shlex
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from grash.formatting import HIDDEN, format_duration, printable

if TYPE_CHECKING:
    from rich.text import Text

_TABLE_GAP = 2  # spaces between the columns of a table
_LEAST_CELL = 24  # characters of a text in a table before it continues below
_LENGTHS = range(_LEAST_CELL, 7, -1)  # the same, tried in turn where the table is wider than the terminal
_MOST_PADDED = 40  # characters of a column in a pipe; longer cells move what is behind them
_SECONDS_BETWEEN_LINES = {True: 0.2, False: 10.0}  # of progress: in a terminal, and elsewhere


def say(sentence: str) -> None:
    """Print a message on stderr. As everywhere here, names in it cannot act on the terminal."""
    print(_fit(printable(sentence, keep="\n"), sys.stderr), file=sys.stderr, flush=True)


def show(text: object = "") -> None:
    """Print a text on stdout."""
    print(_fit(printable(str(text), keep="\n"), sys.stdout), flush=True)


def as_json(content: Any, *, indent: int | None = 2) -> None:
    """Print one JSON document on stdout."""
    text = json.dumps(content, indent=indent, ensure_ascii=False, allow_nan=False)
    print(HIDDEN.sub(lambda m: m[0] if m[0] == "\n" else f"\\u{ord(m[0]):04x}", text))


def table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "", spare: Sequence[str] = ()
) -> None:
    """Print a table on stdout. A column whose name starts with > is aligned to the right.

    Nothing is cut. In a narrow terminal, columns in `spare` are left out, and long cells of others continue below. In a
    pipe, a row is a line, and one long name does not widen all lines.
    """
    from rich.text import Text

    cells = [[Text(column.lstrip(">")) for column in columns]]
    cells += [[Text(printable(_cell_text(value))) for value in row] for row in rows]
    widths = {i: max(row[i].cell_len for row in cells) for i in range(len(columns))}
    if title:
        show(title)
    if sys.stdout.isatty():
        _draw_table(columns, cells, widths, spare)
        return
    for row in cells:
        padded = (_padded(cell, widths[i], columns[i]) for i, cell in enumerate(row))
        print((" " * _TABLE_GAP).join(padded).rstrip())


def _draw_table(columns: Sequence[str], cells: list[list[Text]], widths: dict[int, int], spare: Sequence[str]) -> None:
    """Print a table in a terminal. cells: rows, of which the first has the names of the columns."""
    from rich.console import Console
    from rich.table import Table

    left_out: list[str] = []
    width = shutil.get_terminal_size().columns
    for column in spare:
        if _total(_least_widths(columns, widths)) > width:
            left_out.append(column)
            del widths[columns.index(column)]
    widths = _fitted(columns, cells, widths, width)
    drawn = Table(box=None, pad_edge=False, show_edge=False, header_style="bold")
    for i in widths:
        right = columns[i].startswith(">")
        drawn.add_column(
            cells[0][i], justify="right" if right else "left", no_wrap=right, overflow="fold", width=widths[i]
        )
    for row in cells[1:]:
        drawn.add_row(*(row[i] for i in widths))
    console = Console(markup=False, highlight=False, emoji=False, width=_total(widths))
    with console.capture() as captured:
        console.print(drawn)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))
    if left_out:
        show(f"\nA wider terminal also shows {' and '.join(name.lstrip('>') for name in reversed(left_out))}.")


def _padded(cell: Text, width: int, column: str) -> str:
    spaces = " " * (min(width, _MOST_PADDED) - cell.cell_len)
    return f"{spaces}{cell}" if column.startswith(">") else f"{cell}{spaces}"


def _least_widths(columns: Sequence[str], widths: dict[int, int], cell: int = _LEAST_CELL) -> dict[int, int]:
    """Return the widths of columns whose texts continue below after so many characters; numbers stay whole."""
    return {i: w if columns[i].startswith(">") else min(w, cell) for i, w in widths.items()}


def _fitted(columns: Sequence[str], cells: list[list[Text]], widths: dict[int, int], width: int) -> dict[int, int]:
    """Return the widths of columns in a terminal of this width.

    If texts of 24 characters do not fit, they are broken between words, then anywhere; if that does not help, the table
    is wider than the terminal.
    """
    words = {i: max(len(word) for row in cells for word in ("", *row[i].plain.split())) for i in widths}
    words |= {i: width for i, width in widths.items() if columns[i].startswith(">")}
    possible = [_least_widths(columns, widths), *(_least_widths(columns, words, n) for n in _LENGTHS)]
    found = dict(next((least for least in possible if _total(least) <= width), possible[0]))
    for _ in range(width - _total(found)):  # what is left goes to the narrowest of the columns that are broken
        broken = [i for i in found if found[i] < widths[i]]
        if broken:
            found[min(broken, key=lambda i: found[i])] += 1
    return found


def _total(widths: dict[int, int]) -> int:
    return sum(widths.values()) + _TABLE_GAP * (len(widths) - 1)


def wrapped(text: str, *, indent: str = "", width: int = 80) -> str:
    """Return a paragraph in lines that fit a terminal of so many characters."""
    return textwrap.fill(
        text, width, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def show_log(*, verbose: bool = False) -> None:
    """Print the warnings that grash logs; with `verbose`, also its messages."""
    logger = logging.getLogger("grash")
    logger.handlers = [handler for handler in logger.handlers if not isinstance(handler, _ToStderr)]
    logger.addHandler(_ToStderr())
    logger.setLevel(logging.INFO if verbose else logging.WARNING)


def say_when_compiling() -> None:
    """Say once why nothing happens, if loops have to be compiled first."""
    from grash.kernels.device import call_when_compiling

    call_when_compiling(lambda: say("Compiling, once after an installation: up to a minute in all …"))


def command(*words: object) -> str:
    """Return a command line with quotes where they are needed; control characters as in $'\\x1b' of Bash and Zsh."""
    return " ".join(_quoted(str(word)) for word in words)


@contextmanager
def status_line(*, keep: bool) -> Iterator[Callable[[str], None]]:
    """Yield a function that prints a line on stderr; in a terminal it replaces the line before.

    keep: whether the last line stays in the terminal.
    """
    terminal, shown = sys.stderr.isatty(), False

    def show(line: str) -> None:
        nonlocal shown
        shown = True
        line = printable(line)
        line = line[: shutil.get_terminal_size().columns - 1] if terminal else line  # a wrapped line cannot be replaced
        print(f"\r{line}\x1b[K" if terminal else line, end="" if terminal else "\n", file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        if terminal and shown:
            print("\n" if keep else "\r\x1b[K", end="", file=sys.stderr, flush=True)


def seldom(draw: Callable[[str], None]) -> Callable[[str], None]:
    """Return `draw` for frequent calls: in a terminal at once and five lines a second, elsewhere one in ten seconds."""
    terminal = sys.stderr.isatty()
    drawn = 0.0 if terminal else time.monotonic()

    def draw_seldom(line: str) -> None:
        nonlocal drawn
        if time.monotonic() - drawn >= _SECONDS_BETWEEN_LINES[terminal]:
            drawn = time.monotonic()
            draw(line)

    return draw_seldom


@contextmanager
def share_display(*, quiet: bool = False) -> Iterator[Callable[[str, float, int], None] | None]:
    """Yield a function watch(step, share, n_triples) that shows the progress of a preparation; None if quiet."""
    if quiet:
        yield None
        return
    started = time.monotonic()
    with status_line(keep=False) as draw_now:
        draw = seldom(draw_now)
        yield lambda step, share, n_triples: draw(share_line(step, share, n_triples, time.monotonic() - started))


def share_line(step: str, share: float, n_triples: int, seconds: float) -> str:
    """Return a line of progress, e.g. "reading: 46%, 12,345 triples, 2 min"."""
    triples = f", {n_triples:,} triples" if n_triples else ""
    return f"{step}: {share:.0%}{triples}, {format_duration(seconds)}"


def _fit(text: str, stream: TextIO) -> str:
    """Return a text whose sentences are wrapped between words if they are printed to a terminal.

    Tables (with two spaces in a row) and commands, which people copy, stay as they are.
    """
    if not stream.isatty():
        return text
    width = shutil.get_terminal_size().columns
    return "\n".join(_fit_line(line, width) for line in text.split("\n"))


def _fit_line(line: str, width: int) -> str:
    words = line.lstrip(" ")
    if len(line) <= width or "  " in words or "grash " in words:
        return line
    return wrapped(words, indent=" " * (len(line) - len(words)), width=width)


def _quoted(word: str) -> str:
    if printable(word) == word:
        return shlex.quote(word)
    return "$'" + printable(word.replace("\\", "\\\\").replace("'", "\\'")) + "'"


def _cell_text(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.4f}"
    return str(value)


class _ToStderr(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        prefix = "warning: " if record.levelno >= logging.WARNING else ""
        say(f"{prefix}{record.getMessage()}")
