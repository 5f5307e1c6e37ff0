"""How long a driver bears that a worker says nothing about its trial.

A worker ends a trial of its own that takes too long; this is for one that cannot, because it hangs. The time of a trial
runs from the first heartbeat on, where trials have a limit: what comes before (the graph is peeled and cut, kernels are
compiled) is no time of the trial, and another worker would have to do it again. It has a limit of its own, far above
what it takes (305 million triples are peeled in 96 s); beyond it is the machine's fault, and the trial is tried again.
"""

from __future__ import annotations

import time

from grash.search.trial import Status, Task

GRACE = 30.0  # seconds beyond its limit after which a trial that says nothing is given up
UNHEARD = 7200.0  # seconds in which a worker says its first word of a trial, or more if a trial may take longer


class Silence:
    """Of the worker of one trial."""

    def __init__(self) -> None:
        self.since, self.begun = time.monotonic(), False  # the last heartbeat, or when the worker got the trial

    def heard(self) -> None:
        self.since, self.begun = time.monotonic(), True

    def verdict(self, task: Task, timeout: float | None) -> tuple[Status, str] | None:
        """How the trial is given up and why, or None; a final training that has begun has no limit."""
        silent = time.monotonic() - self.since
        if not self.begun:
            limit = max(UNHEARD, timeout or 0.0)
            why = f"Its worker said nothing for {limit:g} s, and its training had not begun."
            return ("killed", why) if silent > limit else None
        if timeout is None or task.final or silent <= timeout + GRACE:
            return None
        return (
            "timeout",
            f"It said nothing for {timeout + GRACE:g} s, where a trial may take {timeout:g} s (--trial-timeout).",
        )
