"""One trial after the other, in this process. The plain engine that every other one must agree with."""

from __future__ import annotations

from collections.abc import Callable

from grash.engines.trial import TrialRunner, check_card
from grash.search.trial import Heartbeat, Result, Task


class SequentialEngine:
    n_slots = 1

    def __init__(self, runner: TrialRunner) -> None:
        self.runner = runner
        self.devices: tuple[str, ...] = (str(runner.device),)
        self._task: Task | None = None
        self._stopping = False

    def start(self, task: Task) -> str | None:
        if self._task is not None:
            return None
        self._task = task
        return self.devices[0]

    def wait(self, tell: Callable[[Heartbeat], None]) -> list[Result | Task]:
        if self._task is None:
            return []
        task, self._task = self._task, None

        def heard(heartbeat: Heartbeat) -> None:
            tell(heartbeat)
            if self._stopping:
                raise KeyboardInterrupt

        try:
            if self._stopping:
                return [task]
            return [check_card(self.runner.run(task, heard))]
        except KeyboardInterrupt:
            if not self._stopping:
                raise
            return [task]

    def stop(self) -> None:
        self._stopping = True

    def close(self) -> None:
        self.runner.close()
