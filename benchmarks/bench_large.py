"""Measure `grash prepare` on a text file larger than its memory limit, and what polars needs for the same.

    python benchmarks/synthetic_graph.py big.tsv --entities 30000000 --relations 2000 --triples 100000000
    python benchmarks/bench_large.py big.tsv [--memory 8G 2G] [--kills 5] [--polars]

Each measurement is a separate process: `prepare` within each limit; the same, killed repeatedly with SIGKILL after an
eighth of the time of the first run, and started again; with --polars, the streaming engine of polars, which gets ids by
a join with the distinct names and writes only ids and names, in at most 12 GiB of data.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

GRASH = """
import sys
from grash.data.load import prepare
print(prepare(sys.argv[1], sys.argv[2], memory=sys.argv[3]).fingerprint)
"""
POLARS = """
import resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_DATA, (12 << 30, 12 << 30))
import polars as pl
source, out = sys.argv[1], Path(sys.argv[2])
out.mkdir()
lines = pl.scan_csv(source, separator="\\t", has_header=False, quote_char=None, new_columns=["h", "r", "t"])
def numbered(*columns):
    names = pl.concat([lines.select(n=c) for c in columns]).unique(maintain_order=True).with_row_index("id")
    path = out / f"{columns[0]}.parquet"
    names.sink_parquet(path, engine="streaming")
    return pl.scan_parquet(path)
entities, relations = numbered("h", "t"), numbered("r")
ids = lines
for column, names in (("h", entities), ("r", relations), ("t", entities)):
    ids = ids.join(names, left_on=column, right_on="n", maintain_order="left").drop(column).rename({"id": column})
ids.sink_parquet(out / "train.parquet", engine="streaming")
print(pl.scan_parquet(out / "train.parquet").select(pl.len()).collect().item())
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("--memory", nargs="*", default=["8G"])
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--polars", action="store_true")
    arguments = parser.parse_args()
    source, out = arguments.source, arguments.source.with_suffix(".bench")
    n_lines, floor = count_lines(source)
    print(f"{source.name}: {n_lines:,} lines, {source.stat().st_size / 1e9:.2f} GB; load {os.getloadavg()[0]:.1f} on "
          f"{os.cpu_count()} cores; reading and counting lines {floor:.1f} s")  # fmt: skip
    seconds = [report(f"grash, {m}", n_lines, out, run(GRASH, source, out, m)) for m in arguments.memory]
    if arguments.kills:
        killed(source, out, arguments.memory[0], n_lines, seconds[0] / 8, arguments.kills)
    if arguments.polars:
        report("polars, streaming", n_lines, out, run(POLARS, source, out))
    print(f"load {os.getloadavg()[0]:.1f}")


def run(code: str, *words: object, kill_after: float | None = None) -> tuple[int, str, float, float]:
    """(exit status, what was printed, seconds, peak GiB) of code in a separate process."""
    start = time.perf_counter()
    child = subprocess.Popen([sys.executable, "-c", code, *map(str, words)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    if kill_after is not None:
        time.sleep(kill_after)
        child.send_signal(signal.SIGKILL)
    with child.stdout:
        printed = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    return child.returncode, printed.strip(), time.perf_counter() - start, usage.ru_maxrss / 2**20


def report(variant: str, n_lines: int, out: Path, ran: tuple[int, str, float, float]) -> float:
    code, printed, seconds, peak = ran
    shutil.rmtree(out, ignore_errors=True)
    end = printed[:16] if code == 0 else f"ended with {code}"
    rate = n_lines / seconds / 1e6
    print(f"{variant:24} {seconds:7.1f} s {rate:6.2f} M lines/s, peak {peak:.2f} GiB; {end}", flush=True)
    return seconds


def killed(source: Path, out: Path, limit: str, n_lines: int, after: float, times: int) -> None:
    start = time.perf_counter()
    for _ in range(times):
        code, *_ = run(GRASH, source, out, limit, kill_after=after)
        assert code == -signal.SIGKILL, code
    code, printed, _, peak = run(GRASH, source, out, limit)
    report(f"killed {times} times", n_lines, out, (code, printed, time.perf_counter() - start, peak))


def count_lines(path: Path) -> tuple[int, float]:
    start, n = time.perf_counter(), 0
    with path.open("rb", buffering=0) as file:
        while block := file.read(1 << 24):
            n += block.count(b"\n")
    return n, time.perf_counter() - start


if __name__ == "__main__":
    main()
