"""How long a driver bears that a worker says nothing about its trial, when trials have a time limit.

A worker ends a trial of its own that takes too long; this is for one that cannot, because it hangs. Its time runs from
the first heartbeat on: what comes before (the graph is peeled and cut, kernels are compiled) is no time of the trial,
and another worker would have to do it again.
"""

from __future__ import annotations

import time

from grash.search.trial import Task

GRACE = 30.0  # seconds beyond its limit after which a trial that says nothing is given up


class Silence:
    """Of the worker of one trial."""

    def __init__(self) -> None:
        self.since: float | None = None  # the last heartbeat; None before its training begins

    def heard(self) -> None:
        self.since = time.monotonic()

    def verdict(self, task: Task, timeout: float | None) -> str | None:
        """Why the trial is given up, or None; the final training has no limit."""
        if timeout is None or task.final or self.since is None or time.monotonic() - self.since <= timeout + GRACE:
            return None
        return f"It said nothing for {timeout + GRACE:g} s, where a trial may take {timeout:g} s (--trial-timeout)."
