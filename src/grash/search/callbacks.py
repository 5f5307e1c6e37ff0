"""Callbacks of a search: live views, files, trackers and your own code receive what happens in it.

`grash.engines.driver` calls every callback after each event of the ledger. `docs/how-to/track-a-search.md` shows some.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from grash.search.ledger import Event, SearchState
from grash.search.trial import TrialResult

if TYPE_CHECKING:
    from grash.training.loop import Progress


@dataclass
class RunningSearch:
    """A search while it runs. The same object is passed to every call; read it, and keep copies of what you need."""

    folder: Path  # the run folder
    state: SearchState
    devices: Sequence[str] = ()  # of the engine
    progress: dict[tuple[int, int], Progress] = field(default_factory=dict)  # running trials, by (round, number)


class Callback:
    """Receives what happens in a search: override what you need, and pass it to `Search.run(callbacks=[…])`.

    round: 1, 2, …; 0 is the final training. number: of the configuration. An error that a method raises stops the
    search, and `run` raises it; the next `run` resumes the search.
    """

    def on_plan(self, search: RunningSearch) -> None:
        """The search has started or resumed: settings, dataset and number of trials per round are known."""
        self.on_change(search)

    def on_trial_start(self, search: RunningSearch, round: int, number: int) -> None:
        """A trial has started."""
        self.on_change(search)

    def on_progress(self, search: RunningSearch, round: int, number: int, progress: Progress) -> None:
        """A running trial reports its progress, up to several times a second."""
        self.on_change(search)

    def on_trial_end(self, search: RunningSearch, result: TrialResult) -> None:
        """A trial has ended, with a score or with an error; if the machine failed, another attempt follows."""
        self.on_change(search)

    def on_round_end(self, search: RunningSearch, round: int) -> None:
        """All trials of a round have ended, and the configurations that advance are chosen."""
        self.on_change(search)

    def on_end(self, search: RunningSearch) -> None:
        """The search has finished, was stopped, or failed. Called once, also if an error is raised."""
        self.on_change(search)

    def on_change(self, search: RunningSearch) -> None:
        """Anything has changed. The other methods call it unless they are overridden; by default it does nothing."""


class OnChange(Callback):
    """Calls a function with state, progress and devices of the search after every change."""

    def __init__(self, function: Callable[[SearchState, dict[tuple[int, int], Progress], Sequence[str]], None]) -> None:
        self._function = function

    def on_change(self, search: RunningSearch) -> None:
        self._function(search.state, search.progress, search.devices)


def report_event(callbacks: Iterable[Callback], search: RunningSearch, event: Event) -> None:
    """Call the method of each callback that belongs to an event of the ledger, which `search.state` includes."""
    kind = event["event"]
    for callback in callbacks:
        if kind in ("search_started", "search_resumed"):
            callback.on_plan(search)
        elif kind == "trial_started":
            callback.on_trial_start(search, event["round"], event["number"])
        elif kind == "trial_ended":
            callback.on_trial_end(search, TrialResult.from_json(event["result"]))
        elif kind == "round_closed":
            callback.on_round_end(search, event["round"])
        else:
            callback.on_change(search)
