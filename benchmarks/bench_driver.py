"""Measure the overhead of a search: the driver runs with a table of results instead of training.

    python benchmarks/bench_driver.py [--trials 752] [--parallel 1] [--repeats 3] [--folder DIR]

One run measures a whole search in a real run folder (decisions, ledger with its syncs, cleanup), resuming the finished
search (reading the ledger), and its views (the Optuna journal, the report), in wall-clock and CPU seconds. With η = 4,
752 configurations make 752 + 188 + 47 + 12 + 3 = 1,002 trials and a final training. The time of the same number of
syncs on this disk is printed for comparison.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from harness import Timing, device_name, record

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from grash.search.ledger import (
    LEDGER_FILE,
    SearchState,  # noqa: E402
    read_ledger,  # noqa: E402
)
from grash.search.settings import make_settings  # noqa: E402
from table_engine import (
    NumberGraphs,
    run_search,  # noqa: E402
)

Seconds = dict[str, list[float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=752)
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--folder", type=Path, default=None, help="on the disk that is meant; a temporary one by default"
    )
    arguments = parser.parse_args()
    settings = make_settings({"n_trials": arguments.trials})
    graphs = NumberGraphs(settings, n_train=1_000_000, n_entities=100_000)
    views = imported_views()
    seconds: Seconds = {}
    computed: Seconds = {}
    for _ in range(arguments.repeats):
        with tempfile.TemporaryDirectory(dir=arguments.folder) as place:
            measure(Path(place), graphs, arguments.parallel, views, (seconds, computed))
    n_trials, n_lines = (int(np.median(seconds.pop(what))) for what in ("trials", "lines"))
    size = f"{n_trials:,} trials, {arguments.parallel} at a time, {n_lines:,} lines of ledger"
    print(f"{size}, {device_name()}, load {load()}")
    for what, values in seconds.items():
        timing = Timing(*(float(np.quantile(values, q)) for q in (0.5, 0.2, 0.8)), len(values))
        shown = " ".join(f"{v:.2f}" for v in values)
        print(f"{what:34} {timing.median:7.2f} s   ({shown})   computing {np.median(computed[what]):.2f} s")
        record("driver", what, f"{n_trials} trials", timing)


def measure(
    place: Path,
    graphs: NumberGraphs,
    max_running: int,
    views: dict[str, Callable[[Path], object]],
    clocks: tuple[Seconds, Seconds],
) -> None:
    """Appends what one search took, each step by its name: (wall clock, computing)."""
    folder = place / "run"
    _, engine = clocked(clocks, "search", lambda: run_search(folder, graphs, max_running=max_running))
    lines = read_ledger(folder / LEDGER_FILE)
    n_synced = sum(event["event"] != "trial_started" for event in lines)
    clocked(clocks, "of these, syncs (measured alone)", lambda: sync(place / "alone", n_synced, 600))
    clocked(clocks, "reading the ledger", lambda: SearchState.replay(read_ledger(folder / LEDGER_FILE)))
    clocked(clocks, "resume a finished search", lambda: run_search(folder, graphs))
    for what, write in views.items():
        clocked(clocks, what, lambda write=write: write(folder))
    clocks[0].setdefault("trials", []).append(len(engine.ran) - 1)
    clocks[0].setdefault("lines", []).append(len(lines))


def clocked(clocks: tuple[Seconds, Seconds], what: str, call: Callable[[], Any]) -> Any:
    began, begun = time.perf_counter(), time.process_time()
    found = call()
    clocks[0].setdefault(what, []).append(time.perf_counter() - began)
    clocks[1].setdefault(what, []).append(time.process_time() - begun)
    return found


def imported_views() -> dict[str, Callable[[Path], object]]:
    """What is written after a search, its packages imported (which is not measured)."""
    import optuna.importance

    from grash.report.optuna import OptunaView
    from grash.report.page import write_report
    from grash.report.summary import read_state

    assert optuna.importance.PedAnovaImportanceEvaluator
    return {
        "Optuna's journal": lambda folder: OptunaView(folder).update(read_state(folder)),
        "report.html": lambda folder: write_report(folder),
    }


def sync(path: Path, n_lines: int, n_bytes: int) -> None:
    """Appends lines to a file, each synced."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for _ in range(n_lines):
        os.write(file, b"x" * n_bytes)
        os.fsync(file)
    os.close(file)


def load() -> str:
    return " ".join(f"{part:.1f}" for part in os.getloadavg())


if __name__ == "__main__":
    main()
