"""A watcher's own errors: they stop the search and reach whoever gave the watcher, and are no trial's failure.

Engines that train in the driver's process call the watcher from inside a training, whose errors are the trial's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from grash.engines.drive import Watch
from grash.search.state import SearchState
from grash.search.trial import Heartbeat


class _Slip(KeyboardInterrupt):
    """Ends what runs as Ctrl-C does, so that trainings are saved and the search can go on."""


@contextmanager
def heeded(watch: Watch | None) -> Iterator[Watch | None]:
    """The watcher to give to a search that runs inside; what it raised is raised at the end, as it was."""
    slips: list[Exception] = []

    def guarded(state: SearchState, heartbeats: dict[tuple[int, int], Heartbeat], devices: Sequence[str]) -> None:
        if slips or watch is None:
            return
        try:
            watch(state, heartbeats, devices)
        except Exception as error:
            slips.append(error)
            raise _Slip from error

    with suppress(_Slip):
        yield None if watch is None else guarded
    if slips:  # also where an engine that was stopping took the slip for the interrupt
        raise slips[0] from None
