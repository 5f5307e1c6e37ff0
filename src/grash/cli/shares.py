"""The progress of what is done in steps with known shares: one rewritten line in a terminal, a line now and then
elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

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
