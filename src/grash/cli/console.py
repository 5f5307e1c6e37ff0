"""What people see: tables and JSON on stdout, sentences on stderr, warnings of the library as sentences."""

from __future__ import annotations

import json
import logging
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

WIDE = 400  # columns of output that no terminal bounds


def say(sentence: str) -> None:
    """A line for people, on stderr."""
    print(sentence, file=sys.stderr, flush=True)


def as_json(content: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "") -> None:
    """A table on stdout; a column whose name starts with > is aligned to the right. Names are shown as they are."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    terminal = sys.stdout.isatty()
    drawn = Table(box=SIMPLE_HEAD if terminal else None, pad_edge=False, show_edge=False)
    for column in columns:
        drawn.add_column(Text(column.lstrip(">")), justify="right" if column.startswith(">") else "left")
    for row in rows:
        drawn.add_row(*(Text(_cell(value)) for value in row))
    console = Console(markup=False, highlight=False, emoji=False, width=None if terminal else WIDE)
    if title:
        print(title)
    with console.capture() as captured:
        console.print(drawn)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def listen(*, verbose: bool = False) -> None:
    """Shows what the library logs: warnings, and with `verbose` what it does."""
    logger = logging.getLogger("grash")
    logger.handlers = [handler for handler in logger.handlers if not isinstance(handler, _ToStderr)]
    logger.addHandler(_ToStderr())
    logger.setLevel(logging.INFO if verbose else logging.WARNING)


def command(*words: object) -> str:
    """A command as one types it."""
    return shlex.join(str(word) for word in words)


def _cell(value: object) -> str:
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


# = The progress of what is done in steps with known shares: one rewritten line in a terminal, a line now and then
# = elsewhere.

_EVERY = {True: 0.2, False: 10.0}  # seconds between two lines, in a terminal and elsewhere


@contextmanager
def share_display(*, quiet: bool = False) -> Iterator[Callable[[str, float, int], None] | None]:
    """Yields what to give as `watch`: it is told what is being done, the share of that, and the triples so far."""
    if quiet:
        yield None
        return
    terminal = sys.stderr.isatty()
    begun, shown, any_shown = time.monotonic(), 0.0, False

    def watch(what: str, share: float, n_triples: int) -> None:
        nonlocal shown, any_shown
        now = time.monotonic()
        if now - max(shown, 0.0 if terminal else begun) < _EVERY[terminal]:
            return
        shown, any_shown = now, True
        line = share_line(what, share, n_triples, now - begun)
        print(f"\r{line}\x1b[K" if terminal else line, end="" if terminal else "\n", file=sys.stderr, flush=True)

    try:
        yield watch
    finally:
        if terminal and any_shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def share_line(what: str, share: float, n_triples: int, seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    triples = f", {n_triples:,} triples" if n_triples else ""
    return f"{what}: {share:.0%}{triples}, {minutes}:{rest:02}"
