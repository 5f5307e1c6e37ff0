"""One trial after the other, in this process. The plain engine that every other one must agree with."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from grash.engines.trial import TrialRunner, check_device
from grash.search.trial import Trial, TrialProgress, TrialResult


class SequentialEngine:
    n_slots = 1

    def __init__(self, runner: TrialRunner) -> None:
        self.runner = runner
        self.devices: tuple[str, ...] = (str(runner.device),)
        self._task: Trial | None = None
        self._stopping = False

    def start(self, task: Trial) -> str | None:
        if self._task is not None:
            return None
        self._task = task
        return self.devices[0]

    def wait(self, tell: Callable[[TrialProgress], None]) -> list[TrialResult | Trial]:
        if self._task is None:
            return []
        task, self._task = self._task, None

        def heard(heartbeat: TrialProgress) -> None:
            tell(heartbeat)
            if self._stopping:
                raise KeyboardInterrupt

        try:
            if self._stopping:
                return [task]
            return [check_device(self.runner.run(task, heard))]
        except KeyboardInterrupt:
            if not self._stopping:
                raise
            return [task]

    def stop(self) -> None:
        self._stopping = True

    def close(self) -> None:
        self.runner.close()


# = Trials that are alike in shape, trained together in this process: as many as memory admits share every launch.
# =
# = Early rounds train dozens of models of a few thousand entities, each of which would leave a card idle. A trial's numbers
# = do not depend on its neighbors (docs/decisions/0027), so results are those of `sequential`.


class StackedEngine:
    """Takes tasks until memory is full, then runs them all; takes no more until every one of them has ended."""

    n_slots = 1024

    def __init__(self, runner: TrialRunner) -> None:
        self.runner = runner
        self.devices: tuple[str, ...] = (str(runner.device),)
        self._tasks: list[Trial] = []  # taken and not ended
        self._results: Iterator[list[TrialResult]] | None = None
        self._tell: Callable[[TrialProgress], None] = lambda heartbeat: None
        self._stopping = False

    def start(self, task: Trial) -> str | None:
        if self._results is not None or not self.runner.fits([*self._tasks, task]):
            return None
        self._tasks.append(task)
        return self.devices[0]

    def wait(self, tell: Callable[[TrialProgress], None]) -> list[TrialResult | Trial]:
        """The next results: trials that are trained together end together."""
        if not self._tasks:
            return []
        self._tell = tell
        try:
            if self._stopping:
                return self._give_up()
            if self._results is None:
                self._results = self.runner.run_many(list(self._tasks), self._heard)
            ended = [check_device(result) for result in next(self._results)]
        except KeyboardInterrupt:
            if not self._stopping:
                raise
            return self._give_up()
        over = {(result.round, result.number) for result in ended}
        self._tasks = [t for t in self._tasks if (t.round, t.number) not in over]
        if not self._tasks:
            self._results = None
        return [*ended]

    def stop(self) -> None:
        self._stopping = True

    def close(self) -> None:
        self._results = None
        self.runner.close()

    def _heard(self, heartbeat: TrialProgress) -> None:
        self._tell(heartbeat)
        if self._stopping:
            raise KeyboardInterrupt

    def _give_up(self) -> list[TrialResult | Trial]:
        given_up, self._tasks, self._results = list(self._tasks), [], None
        return [*given_up]
