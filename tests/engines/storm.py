"""Searches that are killed again and again: a program that forks a driver for every life, so torch is imported once.

By hand, random signals to drivers and workers of many small searches, each compared with an undisturbed one:

    python -m tests.engines.storm --kills 1000 --seed 1

For tests, `storm(folder, lives, **changes)` returns how every life of one search ended. A life is (where, what, count),
the moment at which the driver gets its SIGKILL, counted within that life:
    after, before, torn    a line of the ledger with this event: written, not yet written, half written
    renaming, renamed      a file or folder of this name is about to get, or has got, its name
    step                   a step of training
    seconds                at any moment, `count` seconds after the life began
    workers                after this event the workers are killed; the driver lives on
and None runs to the end.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

Life = tuple[str, str, float] | None
_LIMIT = 600.0  # seconds; a storm that takes longer hangs


def storm(folder: Path, lives: list[Life], **changes: Any) -> list[int]:
    """Exit codes of the lives, −9 for one that was killed."""
    here = Path(__file__).resolve().parents[1]
    words = json.dumps({"folder": str(folder), "lives": lives, "changes": changes})
    path = os.pathsep.join([str(here), str(here.parent / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "engines.storm", words],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=_LIMIT,
    )
    assert done.returncode == 0, done.stderr
    codes = [int(code) for code in json.loads(done.stdout.splitlines()[-1])]
    assert not {1, 2} & {*codes}, done.stderr
    return codes


def run_lives(plan: dict[str, Any]) -> None:
    """Run one search by a plan of its lives, and print how they ended."""
    from engines.searches import small_search

    # Every life needs these. Training would start numba's threads, which do not survive a fork.
    small_search(Path(plan["folder"]), **plan["changes"]).plan(probe=False)
    import_module("grash.report.progress")
    import_module("jinja2")
    codes = []
    for life in plan["lives"]:
        child = os.fork()
        if not child:
            _live(life, lambda: small_search(Path(plan["folder"]), **plan["changes"]).run())
        if life is not None and life[0] == "seconds":
            time.sleep(life[2])
            os.kill(child, signal.SIGKILL)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        assert not workers_of(plan["folder"]), "workers outlived their driver"
    print(json.dumps(codes))


def workers_of(folder: str) -> list[int]:
    """Workers at this run folder, once those that are just being ended have had ten seconds for it."""
    for _ in range(1000):
        found = [int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit() and _is_worker(p, folder)]
        if not found:
            break
        time.sleep(0.01)
    return found


def _is_worker(process: Path, folder: str) -> bool:
    try:
        words = (process / "cmdline").read_bytes()
    except OSError:
        return False
    return b"grash.engines.processes" in words and json.dumps(folder).encode() in words


def _live(life: Life, run: Callable[[], Any], log: Path | None = None) -> None:
    """One life of a driver, in its own process; never returns. Exit code 2: an error with a sentence; 1: a bug."""
    from grash.errors import GrashError

    code = 1
    try:
        for number in (signal.SIGHUP, signal.SIGTERM):  # nohup and a shell's background jobs ignore some
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if log is not None:
            handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(handle, 1)
            os.dup2(handle, 2)
        if life is not None:
            _arm(*life)
        run()
        code = 0
    except GrashError:
        traceback.print_exc()
        code = 2
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _arm(where: str, what: str, count: float) -> None:
    """Lays the trap."""
    left = [count]

    def met(name: str) -> bool:
        left[0] -= name == what
        return name == what and left[0] == 0

    if where in ("after", "before", "torn", "workers"):
        _arm_ledger(where, what, met)
    elif where in ("renaming", "renamed"):
        _arm_renames(where, met)
    elif where == "step":
        from grash.training import loop

        real = loop.train_step

        def step(*given: Any) -> Any:
            if met(what):
                die()
            return real(*given)

        loop.train_step = step
    else:
        assert where == "seconds"


def _arm_ledger(where: str, event: str, met: Callable[[str], bool]) -> None:
    from grash.search.ledger import Ledger, SearchState

    assert hasattr(SearchState, f"_on_{event}"), f"the ledger has no event {event}"
    real = Ledger.write

    def write(self: Ledger, event: str, **fields: Any) -> dict[str, Any]:
        now = met(event)
        if now and where == "before":
            die()
        size = self.path.stat().st_size
        entry = real(self, event, **fields)
        if now and where == "torn":
            os.truncate(self.path, (size + self.path.stat().st_size) // 2)
            die()
        if now and where == "after":
            die()
        if now and where == "workers":
            for worker in children_of(os.getpid()):
                os.kill(worker, signal.SIGKILL)
        return entry

    Ledger.write = write  # type: ignore[method-assign]


def _arm_renames(where: str, met: Callable[[str], bool]) -> None:
    """Files of ours get their names by Path.replace, folders by Path.rename; checkpoints are written at every step."""
    from grash.training import loop

    (loop.train_stack.__kwdefaults__ or {})["save_every_seconds"] = 0.0

    def trapped(real: Callable[..., Path]) -> Callable[..., Path]:
        def rename(self: Path, target: Path) -> Path:
            now = met(Path(target).name)
            if now and where == "renaming":
                die()
            found = real(self, target)
            if now:
                die()
            return found

        return rename

    for name in ("rename", "replace"):
        setattr(Path, name, trapped(getattr(Path, name)))


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


SIGNALS = ("KILL", "STOP", "TERM", "HUP", "INT")  # STOP is followed by CONT
CHANGES: tuple[dict[str, Any], ...] = ({}, {"variant": "epoch"}, {"warm_start": "weights"})
ENGINES: tuple[dict[str, Any], ...] = ({"engine": "sequential"}, {"engine": "processes", "workers": 2})
_MOMENTS = {"sequential": 1.0, "processes": 6.0}  # seconds: signals come at most this long after each other
_HANGS = 300.0  # seconds in which a life that nobody disturbs any more has to end


class KillStorm:
    """Sends random signals to the drivers and workers of small searches until `kills` are sent or time is over."""

    def __init__(self, kills: int, seed: int, folder: Path, max_seconds: float) -> None:
        self.kills, self.draw, self.folder = kills, random.Random(seed), folder
        self.deadline = time.monotonic() + max_seconds
        self.sent: Counter[tuple[str, str, str]] = Counter()  # by engine, target and signal
        self.codes: Counter[int] = Counter()
        self.n_searches, self.wrong = 0, list[str]()
        self.undisturbed: dict[str, dict[str, Any]] = {}

    def run(self) -> None:
        """Run searches until the storm is over; what differs from an undisturbed search is in `wrong`."""
        for changes in CHANGES:
            place = self.folder / f"undisturbed-{len(self.undisturbed)}" / "run"
            self.codes[self._life(place, {**ENGINES[0], **changes}, kills=0)] += 1
            self.undisturbed[repr(changes)] = self._essence(place)
        while self.sent.total() < self.kills and time.monotonic() < self.deadline:
            engine, changes = ENGINES[self.draw.random() < 0.3], self.draw.choice(CHANGES)
            self.n_searches += 1
            place = self.folder / str(self.n_searches) / "run"
            problem = self._search(place, engine, changes)
            if problem:
                self.wrong.append(f"search {self.n_searches} ({engine}, {changes}): {problem}")
            else:
                shutil.rmtree(place.parent)
            print(f"{self.sent.total()} kills, {self.n_searches} searches, {len(self.wrong)} wrong", flush=True)

    def _search(self, place: Path, engine: dict[str, Any], changes: dict[str, Any]) -> str:
        """Run one search through its lives; return what is wrong with it, or nothing."""
        kills = min(self.draw.randint(4, 24), self.kills - self.sent.total())
        code = 1
        while code or not self._is_finished(place):  # also after a kill behind the last event: its files are repaired
            before = self.sent.total()
            code = self._life(place, {**engine, **changes}, kills)
            kills -= self.sent.total() - before
            self.codes[code] += 1
            if code not in (0, 2, 130, -1, -2, -9, -15):
                return f"a life ended with exit code {code}"
            if workers_of(str(place)):
                return "workers outlived their driver"
            if self.sent.total() == before and code:
                return f"a life that nobody disturbed ended with exit code {code}"
        found, wanted = self._essence(place), self.undisturbed[repr(changes)]
        return ", ".join(name for name in wanted if found[name] != wanted[name])

    def _life(self, place: Path, options: dict[str, Any], kills: int) -> int:
        """Start a driver, send it and its workers up to this many signals, and return its exit code."""
        from engines.searches import small_search

        place.parent.mkdir(parents=True, exist_ok=True)
        child = os.fork()
        if not child:
            log = place.parent / "output.txt"
            _live(None, lambda: small_search(place, max_retries=100, **options).run(), log)
        quiet_since = time.monotonic()
        pause = self._pause(options["engine"])
        while True:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            if kills and time.monotonic() - quiet_since > pause:
                self._send(child, options["engine"])
                kills -= 1
                quiet_since, pause = time.monotonic(), self._pause(options["engine"])
            if time.monotonic() - quiet_since > _HANGS:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return math.inf  # type: ignore[return-value]
            time.sleep(0.005)

    def _pause(self, engine: str) -> float:
        return self.draw.random() ** 2 * _MOMENTS[engine]

    def _send(self, driver: int, engine: str) -> None:
        workers = children_of(driver)
        name = self.draw.choice(SIGNALS)
        target = self.draw.choice(("driver", "workers", "both")) if workers else "driver"
        pids = [driver] * (target != "workers") + workers * (target != "driver")
        for number in (f"SIG{name}", "SIGCONT")[: 1 + (name == "STOP")]:
            for pid in pids:
                try:
                    os.kill(pid, signal.Signals[number])
                except ProcessLookupError:
                    continue
            if number == "SIGSTOP":
                time.sleep(self.draw.uniform(0.01, 0.3))
        self.sent[engine, target, name] += 1

    def _is_finished(self, place: Path) -> bool:
        from engines.searches import state_of

        return (place / "ledger.jsonl").is_file() and state_of(place).finished

    def _essence(self, place: Path) -> dict[str, Any]:
        from engines.searches import essence

        return essence(place)

    def report(self) -> str:
        lines = [
            "| engine | target | " + " | ".join(f"SIG{name}" for name in SIGNALS) + " |",
            "|---|---|" + "---:|" * 5,
        ]
        for engine, target in sorted({key[:2] for key in self.sent}):
            counts = [self.sent[engine, target, name] for name in SIGNALS]
            lines.append(f"| {engine} | {target} | " + " | ".join(map(str, counts)) + " |")
        codes = ", ".join(f"{code}: {count}" for code, count in sorted(self.codes.items()))
        lines += ["", f"{self.sent.total()} kills, {self.n_searches} searches, lives by exit code {codes}"]
        lines += [f"{len(self.wrong)} searches differ from an undisturbed one", *self.wrong]
        return "\n".join(lines)


def children_of(process: int) -> list[int]:
    try:
        return [int(pid) for pid in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except OSError:
        return []


def main() -> None:
    import torch

    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from engines.searches import shifts

    torch.set_num_threads(1)
    shifts()  # compiles nothing that a child would have to compile again
    if len(sys.argv) == 2 and sys.argv[1].startswith("{"):
        run_lives(json.loads(sys.argv[1]))
        return
    parser = argparse.ArgumentParser(description="Kill drivers and workers of small searches.")
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--max-seconds", type=float, default=3600.0)
    parser.add_argument("--folder", type=Path, help="where runs are kept that differ (default: a temporary folder)")
    given = parser.parse_args()
    began = time.monotonic()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="storm-"))
    storm = KillStorm(given.kills, given.seed, folder, given.max_seconds)
    storm.run()
    print(f"{storm.report()}\n{time.monotonic() - began:.0f} s, seed {given.seed}")
    if storm.wrong:
        raise SystemExit(f"See {folder}.")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
