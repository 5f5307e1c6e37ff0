"""What every benchmark shares: medians with 20/80 percentiles, and a line in results.csv for each number."""

from __future__ import annotations

import csv
import platform
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

RESULTS = Path(__file__).parent / "results.csv"
FIELDS = ["date", "what", "variant", "size", "median_seconds", "p20", "p80", "repeats", "device", "torch", "commit"]


@dataclass(frozen=True)
class Timing:
    median: float
    p20: float
    p80: float
    repeats: int


def measure(call: Callable[[], object], *, repeats: int = 50, warm_up: int = 5) -> Timing:
    """Wall-clock seconds of a call on the CPU."""
    for _ in range(warm_up):
        call()
    return timed(call, repeats)


def interleaved(
    calls: dict[str, Callable[[], object]], *, repeats: int = 50, together: int = 1, warm_up: int = 5
) -> dict[str, Timing]:
    """The same for several variants in turn, so that a change of the machine's mood meets all of them; `together`
    calls of one variant follow each other and count as one repeat, divided by their number."""
    for call in calls.values():
        for _ in range(warm_up):
            call()
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(together):
                call()
            seconds[name].append((time.perf_counter() - start) / together)
    return {name: _summary(values) for name, values in seconds.items()}


def timed(call: Callable[[], object], repeats: int) -> Timing:
    values = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        values.append(time.perf_counter() - start)
    return _summary(values)


def device_timed(call: Callable[[], object], repeats: int, *, steps: int = 1, warm_up: int = 1) -> Timing:
    """Seconds per step on a CUDA device, by its events around each call of so many steps."""
    for _ in range(warm_up):
        call()
    values = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        values.append(start.elapsed_time(end) / 1e3 / steps)
    return _summary(values)


def record(what: str, variant: str, size: str, timing: Timing) -> None:
    """Appends the number to results.csv."""
    fresh = not RESULTS.exists()
    with RESULTS.open("a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        if fresh:
            writer.writeheader()
        writer.writerow(
            {
                "date": time.strftime("%Y-%m-%d"), "what": what, "variant": variant, "size": size,
                "median_seconds": f"{timing.median:.6g}", "p20": f"{timing.p20:.6g}", "p80": f"{timing.p80:.6g}",
                "repeats": timing.repeats, "device": device_name(), "torch": torch.__version__, "commit": _commit(),
            }
        )  # fmt: skip


def device_name() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{platform.machine()} {torch.get_num_threads()} threads"


def _summary(values: list[float]) -> Timing:
    p20, median, p80 = np.quantile(values, [0.2, 0.5, 0.8])
    return Timing(float(median), float(p20), float(p80), len(values))


def _commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip()
