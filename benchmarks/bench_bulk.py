"""Questions per second of `grash predict --questions FILE -o answers.parquet`.

    python benchmarks/bench_bulk.py MODEL --n 1000000 [-k 10] [--out answers.parquet] [--threads 2]

Draws questions (h, r, ?) and (?, r, t) from the triples of train, writes them to a file, and times the command in a new
process, with reading names, ranking among all entities, probabilities and writing.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import grash


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--n", type=int, default=1_000_000)
    parser.add_argument("-k", type=int, default=10)
    parser.add_argument("--suffix", default=".parquet")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--device", default="auto")
    parser.add_argument("--like-known", action="store_true", help="rank like-known entities, not all")
    given = parser.parse_args()
    model = grash.load_model(given.model, device="cpu")
    generator = np.random.default_rng(0)
    triples = model.dataset.train[generator.integers(0, len(model.dataset.train), given.n)].tolist()
    heads = (generator.random(given.n) < 0.5).tolist()
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder) / "questions.tsv", Path(folder) / f"answers{given.suffix}"
        with path.open("w", encoding="utf-8") as file:
            for (h, r, t), ask_head in zip(triples, heads):
                ends = ("?", model.entity_name(t)) if ask_head else (model.entity_name(h), "?")
                file.write(f"{ends[0]}\t{model.relation_name(r)}\t{ends[1]}\n")
        command = [
            sys.executable,
            "-m",
            "grash",
            "predict",
            str(given.model),
            "--questions",
            str(path),
            "-k",
            str(given.k),
        ]
        command += ["-o", str(out), "--threads", str(given.threads), "--device", given.device]
        began = time.monotonic()
        subprocess.run([*command, *(["--like-known"] if given.like_known else [])], check=True)
        seconds, size = time.monotonic() - began, out.stat().st_size
    found = {"model": str(model), "questions": given.n, "k": given.k, "seconds": round(seconds, 1)}
    found |= {"per second": round(given.n / seconds), "bytes": size, "threads": given.threads}
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    found |= {"CPU seconds": round(used.ru_utime + used.ru_stime, 1), "peak MiB": used.ru_maxrss // 1024}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
