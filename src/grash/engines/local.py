"""Run trials in this process, one after the other or stacked: as many together as fit in memory.

Early rounds train dozens of models of a few thousand entities, each of which would leave a GPU idle. A trial's numbers
do not depend on the others in its stack (docs/decisions/0027), so both ways give the same results.
"""

from __future__ import annotations

from collections.abc import Iterator

from grash.engines.trial import Report, TrialRunner, check_device
from grash.search.trial import Trial, TrialResult


class LocalEngine:
    """With `stacked`, takes trials until memory is full, and no more until all of them have ended."""

    def __init__(self, runner: TrialRunner, *, stacked: bool = False) -> None:
        self.runner = runner
        self.n_slots = 1024 if stacked else 1
        self.devices: tuple[str, ...] = (str(runner.device),)
        self._trials: list[Trial] = []  # started and not ended
        self._results: Iterator[list[TrialResult]] | None = None

    def start(self, trial: Trial) -> str | None:
        full = self._results is not None or len(self._trials) == self.n_slots
        if full or not self.runner.fits([*self._trials, trial]):
            return None
        self._trials.append(trial)
        return self.devices[0]

    def wait(self, on_progress: Report) -> list[TrialResult | Trial]:
        """Return the next results; trials that are trained together end together."""
        if not self._trials:
            return []
        try:
            if self.runner.stopping:
                raise KeyboardInterrupt
            if self._results is None:
                self._results = self.runner.run_many(list(self._trials), on_progress)
            ended = [check_device(result) for result in next(self._results)]
        except KeyboardInterrupt:
            if not self.runner.stopping:
                raise
            stopped, self._trials, self._results = self._trials, [], None
            return [*stopped]
        keys = {(result.round, result.number) for result in ended}
        self._trials = [t for t in self._trials if (t.round, t.number) not in keys]
        if not self._trials:
            self._results = None
        return [*ended]

    def stop(self) -> None:
        self.runner.stop()

    def close(self) -> None:
        self._results = None
        self.runner.close()
