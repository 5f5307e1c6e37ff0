"""Time the search of names as a person types: the pass that makes the index, and queries with and without errors.

    python benchmarks/bench_name_search.py --names 6500000

Names are one to four words drawn from 200,000 invented ones (letters follow each other as in the bundled graph's
names), common words more often. Queries are beginnings of names or of words, with up to two typing errors.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np
from numpy.typing import NDArray

import grash
from grash.data.name_search import NameSearch
from grash.data.vocabulary import Vocabulary, concatenate_names

N_WORDS = 200_000


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--names", type=int, default=6_500_000)
    parser.add_argument("--queries", type=int, default=100, help="queries of each kind")
    given = parser.parse_args()
    generator = np.random.default_rng(0)
    names = invented_names(given.names, generator)
    weights = generator.zipf(1.8, given.names).clip(max=1_000_000)
    began = time.monotonic()
    search = NameSearch(names, weights)
    report: dict[str, object] = {"names": given.names, "bytes": int(names.arrays[1][-1])}
    report["seconds to build"] = round(time.monotonic() - began, 3)
    search("warm", 10), search("wramup of two", 10)
    kinds = ("one letter", "three letters", "whole name", "second word", "one error", "two errors", "nothing like it")
    for kind in kinds:
        seconds, cpu, hits = [], [], 0
        for _ in range(given.queries):
            wanted = int(generator.integers(given.names))
            text = query_of(names.name(wanted), kind, generator)
            began, used = time.monotonic(), time.process_time()
            found = search(text, 10)
            seconds.append(time.monotonic() - began)
            cpu.append(time.process_time() - used)
            hits += bool(len(found))
        found_times: dict[str, float] = {}
        for kind_of, values in (("", seconds), ("CPU ", cpu)):
            for name, value in zip(("median ms", "p95 ms", "max ms"), np.quantile(values, [0.5, 0.95, 1.0])):
                found_times[kind_of + name] = round(1000 * float(value), 1)
        report[kind] = found_times | {"found": hits}
    print(json.dumps(report, indent=2))


def invented_names(n: int, generator: np.random.Generator) -> Vocabulary:
    words = invented_words(generator)
    raw = [f"{word} ".encode() for word in words]
    lengths = np.array([len(word) for word in raw])
    starts = np.cumsum(lengths) - lengths
    buffer = np.frombuffer(b"".join(raw), np.uint8)
    n_words = generator.integers(1, 5, n)
    chosen = np.minimum(generator.zipf(1.3, int(n_words.sum())) - 1, N_WORDS - 1)
    chosen = np.where(generator.random(len(chosen)) < 0.2, chosen, generator.integers(0, N_WORDS, len(chosen)))
    text = concatenate_names(buffer, starts[chosen], lengths[chosen])
    ends = np.cumsum(lengths[chosen])[np.cumsum(n_words) - 1]
    return Vocabulary(text, np.concatenate([[0], ends]), np.zeros(1, np.int32))


def invented_words(generator: np.random.Generator) -> list[str]:
    world = grash.load_dataset("world")
    assert world.entities is not None
    counts = np.zeros((27, 27))
    for name in world.entities:
        letters = [ord(c) - 96 if "a" <= c <= "z" else 0 for c in f" {name.lower()} "]
        np.add.at(counts, (letters[:-1], letters[1:]), 1)
    counts[0, 0] = 0
    steps = np.cumsum(counts / counts.sum(1, keepdims=True), 1)
    return [one_word(steps, generator) for _ in range(N_WORDS)]


def one_word(steps: NDArray[np.float64], generator: np.random.Generator) -> str:
    word, at = "", 0
    for draw in generator.random(12):
        at = int(np.searchsorted(steps[at], draw))
        if at == 0 and len(word) > 2:
            break
        word += chr(96 + at) if at else ""
    return word.capitalize()


def query_of(name: str, kind: str, generator: np.random.Generator) -> str:
    name = name.strip()
    if kind == "one letter":
        return name[:1]
    if kind == "three letters":
        return name[:3]
    if kind == "second word":
        return name.split()[-1]
    if kind == "nothing like it":
        return "".join(generator.permutation(list("qxzjvkwyqxzj")))
    errors = {"one error": 1, "two errors": 2}.get(kind, 0)
    letters = list(name)
    for place in generator.integers(1, max(2, len(letters)), errors):
        letters[min(int(place), len(letters) - 1)] = "q"
    return "".join(letters)


if __name__ == "__main__":
    main()
