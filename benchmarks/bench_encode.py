"""Measure the time and memory to encode a text file of triples, and compare with polars.

    python benchmarks/bench_encode.py [--lines 20000000] [--names 5000000] [--folder DIR] [--repeats 3]

One run measures, each in a separate process on the same generated file: reading its bytes (the floor), `grash prepare`
(encode, drop duplicates, split, fingerprint, write and sync), and two ways to get ids with polars (join with the
distinct names; categoricals). The polars programs write ids and names and do none of the rest.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

READ = """
with open(source, "rb", buffering=0) as file:
    buffer = bytearray(1 << 24)
    while file.readinto(buffer):
        pass
"""
GRASH = """
from grash.data.load import prepare
prepare(source, out)
"""
GRASH_ENCODE = """
from collections import Counter
from pathlib import Path
from grash.data.vocabulary import Encoder
from grash.data.readers.source import SourceOptions
from grash.data.readers.text import read_text_file
read_text_file(Path(source), Encoder(), SourceOptions(), Counter())
"""
POLARS_READ = """
import numpy as np
import polars as pl
from pathlib import Path
Path(out).mkdir()
table = pl.read_csv(source, separator="\\t", has_header=False, quote_char=None, new_columns=["h", "r", "t"],
                    schema_overrides={"column_1": pl.String, "column_2": pl.String, "column_3": pl.String})
"""
POLARS_JOIN = (
    POLARS_READ
    + """
entities = pl.concat([table["h"], table["t"]]).unique(maintain_order=True).to_frame("n").with_row_index("id")
relations = table["r"].unique(maintain_order=True).to_frame("n").with_row_index("id")
ids = table
for column, names in (("h", entities), ("r", relations), ("t", entities)):
    ids = ids.join(names, left_on=column, right_on="n", maintain_order="left").drop(column).rename({"id": column})
np.save(Path(out) / "train.npy", ids.select(pl.col("h", "r", "t").cast(pl.Int32)).to_numpy())
entities.write_parquet(Path(out) / "entities.parquet")
"""
)
POLARS_CATEGORICAL = (
    POLARS_READ
    + """
ids = table.with_columns(pl.col("h", "r", "t").cast(pl.Categorical))
names = pl.concat([ids["h"], ids["t"]]).unique()
np.save(Path(out) / "train.npy", ids.select(pl.all().to_physical().cast(pl.Int32)).to_numpy())
pl.DataFrame({"n": names.cast(pl.String), "id": names.to_physical()}).write_parquet(Path(out) / "entities.parquet")
"""
)
VARIANTS = {
    "read the bytes (floor)": READ,
    "grash prepare": GRASH,
    "grash, encode only": GRASH_ENCODE,
    "polars, join": POLARS_JOIN,
    "polars, categorical": POLARS_CATEGORICAL,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lines", type=int, default=20_000_000)
    parser.add_argument("--names", type=int, default=5_000_000)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "grash-bench-encode")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    tiny = generate(arguments.folder, 2000, 500)
    source = generate(arguments.folder, arguments.lines, arguments.names)
    print(f"{source}: {arguments.lines:,} lines, {source.stat().st_size / 1e6:,.0f} MB, {os.cpu_count()} cores")
    for code in VARIANTS.values():  # compiles what numba has not cached yet, and warms the page cache
        measure(code, tiny)
    measure(READ, source)
    print(f"{'':24} {'seconds':>24} {'M lines/s':>10} {'peak GiB':>9}")
    best = {}
    for name, code in VARIANTS.items():
        runs = [measure(code, source) for _ in range(arguments.repeats)]
        seconds, peak = [s for s, _ in runs], max(p for _, p in runs)
        best[name] = float(np.median(seconds))
        shown = " ".join(f"{s:.2f}" for s in seconds)
        print(f"{name:24} {shown:>24} {arguments.lines / best[name] / 1e6:10.2f} {peak / 2**30:9.2f}", flush=True)
    for name in list(VARIANTS)[3:]:
        print(f"grash prepare is {best[name] / best['grash prepare']:.2f} times as fast as {name}")


def generate(folder: Path, n_lines: int, n_names: int) -> Path:
    """A TSV with every name used, the low ones much more often (cube of a uniform number), 1,000 relations."""
    path = folder / f"{n_lines}_{n_names}.tsv"
    if path.exists():
        return path
    random = np.random.default_rng(0)
    with path.with_suffix(".part").open("wb") as file:
        for start in range(0, n_lines, 500_000):
            n = min(500_000, n_lines - start)
            heads, tails = (n_names * random.random((2, n)) ** 3).astype(np.int64)
            unused = np.arange(start, start + n)
            heads = np.where(unused < n_names, unused, heads)
            relations = (1000 * random.random(n) ** 3).astype(np.int64)
            spread = [(ids * 2_654_435_761 % 100_000_000_003).tolist() for ids in (heads, tails)]
            rows = zip(spread[0], relations.tolist(), spread[1])
            file.write("".join(f"Q{h}\tP{r}\tQ{t}\n" for h, r, t in rows).encode())
    path.with_suffix(".part").rename(path)
    return path


def measure(code: str, source: Path) -> tuple[float, int]:
    """(seconds, peak bytes) of code in a new process; starting Python and importing are not counted in seconds."""
    with tempfile.TemporaryDirectory(dir=source.parent) as folder:
        imports = "\n".join(line for line in code.splitlines() if line.startswith(("import ", "from ")))
        work = "\n".join(line for line in code.splitlines() if not line.startswith(("import ", "from ")))
        script = (
            f"import time\nsource, out = {str(source)!r}, {str(Path(folder) / 'out')!r}\n{imports}\n"
            f"start = time.perf_counter()\n{work}\nprint(time.perf_counter() - start)"
        )
        child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        with child.stdout:
            output = child.stdout.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise SystemExit(f"The measured process failed with exit code {child.returncode}.")
        return float(output.split()[-1]), usage.ru_maxrss * 1024


if __name__ == "__main__":
    main()
