"""Compare the CPU seconds of two trees of grash, in turn: training step, driver, encoding, core numbers.

    python benchmarks/records/2026-11-18_restructuring/compare.py OLD_TREE NEW_TREE GRAPH [--repeats 5] [--only step …]

Every measurement is a separate process with one thread that imports the benchmarks of its tree. It prints the least and
the median CPU seconds of both trees: other processes on the machine disturb CPU seconds less than wall-clock seconds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

LEAST = """
import sys, time
from pathlib import Path
from unittest import mock
graph, place = sys.argv[1], Path(sys.argv[2])

def least(call, times):
    call()  # compiles and imports
    found = []
    for _ in range(times):
        began = time.process_time()
        call()
        found.append(time.process_time() - began)
    print(min(found))
"""
PROGRAMS = {
    "step": """
import bench_step, torch
torch.set_num_threads(1)
torch.set_grad_enabled(False)
step = bench_step.our_step(bench_step.load_dataset(graph))
least(lambda: [step() for _ in range(20)], 8)
""",
    "step, products alone (floor)": """
import bench_step, torch
torch.set_num_threads(1)
torch.set_grad_enabled(False)
products = bench_step.products()
least(lambda: [products() for _ in range(20)], 8)
""",
    "driver": """
import itertools, shutil
import bench_driver
settings = bench_driver.make_settings({"n_trials": 752})
graphs = bench_driver.NumberGraphs(settings, n_train=1_000_000, n_entities=100_000)
folders = (place / f"run-{n}" for n in itertools.count())
with mock.patch("os.fsync"):
    least(lambda: bench_driver.run_search(next(folders), graphs), 3)
""",
    "encode": """
import itertools
import bench_encode
source = str(bench_encode.generate(place, 4_000_000, 1_000_000))
folders = (place / f"out-{n}" for n in itertools.count())
program = compile(bench_encode.VARIANTS["grash prepare"], "prepare", "exec")
least(lambda: exec(program, {"source": source, "out": str(next(folders))}), 3)
""",
    "cores": """
import numpy as np
import bench_cores
bench_cores.generate(place / "train.npy", 4_000_000, 1_000_000)
train = np.load(place / "train.npy")
least(lambda: bench_cores.peel(train, 1_000_000, "triples"), 5)
""",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trees", nargs=2, type=Path)
    parser.add_argument("graph")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=list(PROGRAMS))
    args = parser.parse_args()
    for name in args.only:
        seconds: list[list[float]] = [[], []]
        for _ in range(args.repeats):
            for tree, found in zip(args.trees, seconds):
                found.append(measure(tree.resolve(), PROGRAMS[name], args.graph))
        before, after = map(min, seconds)
        middle = " → ".join(f"{statistics.median(found):.4f}" for found in seconds)
        print(f"{name}: {before:.4f} → {after:.4f} s, ratio {after / before:.3f}; median {middle}", flush=True)


def measure(tree: Path, program: str, graph: str) -> float:
    """Return the CPU seconds that a program prints, run with the code of a tree."""
    path = os.pathsep.join(str(tree / folder) for folder in ("src", "benchmarks", "tests"))
    with tempfile.TemporaryDirectory() as place:
        done = subprocess.run(
            [sys.executable, "-c", LEAST + program, graph, place],
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
    if done.returncode:
        raise SystemExit(done.stderr)
    return float(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
