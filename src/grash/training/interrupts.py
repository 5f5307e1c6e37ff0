"""Ctrl-C during a training: it waits until no table is half updated, so what is saved then can be resumed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def delayed_interrupts() -> Iterator[None]:
    """Install one handler of SIGINT for all `uninterrupted` blocks inside; does nothing outside the main thread."""
    before = signal.getsignal(signal.SIGINT)
    nested = _Handler.current is not None
    if nested or threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    handler = _Handler.current = _Handler(before)
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        _Handler.current = None
        signal.signal(signal.SIGINT, before)
        handler.pass_on()


class uninterrupted:  # noqa: N801 (reads as a word in `with uninterrupted():`)
    """Inside `delayed_interrupts`, Ctrl-C waits for the end of the (outermost) block.

    It only counts: setting and restoring a handler at every step would cost a few percent of a step."""

    def __enter__(self) -> None:
        if _Handler.current is not None:
            _Handler.current.blocks += 1

    def __exit__(self, *_: object) -> None:
        if _Handler.current is not None:
            _Handler.current.blocks -= 1
            _Handler.current.pass_on()


class _Handler:
    """A handler of SIGINT that waits while `blocks` is not 0, then calls the handler before it."""

    current: _Handler | None = None

    def __init__(self, before: Callable[[int, FrameType | None], object]) -> None:
        self.before, self.blocks = before, 0
        self.received: list[tuple[int, FrameType | None]] = []

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.received.append((number, frame))
        self.pass_on()

    def pass_on(self) -> None:
        while self.received and not self.blocks:
            self.before(*self.received.pop(0))
