"""A search that is killed again and again: a program that forks a driver for every life, so torch is imported once.

`storm(folder, lives, **changes)` starts it and says how every life ended. A life is (where, what, count), the moment at
which the driver gets its SIGKILL, counted within that life:
    after, before, torn    a line of the ledger with this event: written, not yet written, half written
    renaming, renamed      a file or folder of this name is about to get, or has got, its name
    step                   a step of training
    seconds                at any moment, `count` seconds after the life began
    workers                after this event the workers are killed; the driver lives on
and None goes on to the end.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

Life = tuple[str, str, float] | None
_LIMIT = 240.0  # seconds; a storm that takes longer hangs


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
    assert 1 not in codes, done.stderr
    return codes


def main() -> None:
    import torch

    from engines.searches import small_search

    torch.set_num_threads(1)
    plan = json.loads(sys.argv[1])
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
    """Workers at this run folder, once those that are just being ended have had a second for it."""
    for _ in range(100):
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


def _live(life: Life, run: Callable[[], Any]) -> None:
    """One life of a driver, in a process of its own; never returns."""
    try:
        if life is not None:
            _arm(*life)
        run()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


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
            for worker in workers_of_driver():
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


def workers_of_driver() -> list[int]:
    """Children of this process."""
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
