"""A graph of any size out of nothing but a seed: written part by part, never in memory as a whole.

planted.py says which triples there are; here they are made in blocks by two threads, dealt into piles on disk,
and every pile is shuffled as it is moved to its place, so that triples that were made together are strangers. Goes
to an encoded dataset, or to a text file of names to try `grash prepare` with.
"""

from __future__ import annotations

import tempfile
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

from grash.data.arrays import ArrayWriter
from grash.data.dataset import DATASET_FILE, SPLITS, Dataset, SplitName
from grash.data.lines import as_lines
from grash.data.options import SourceOptions
from grash.data.planted import PlantedGraph, Triples
from grash.errors import ConfigError, InputError
from grash.files import mend_folder, whole_file, whole_folder

Watch = Callable[[str, float, int], None]  # told what is being done, the share that is done, triples so far

_ROWS = 1 << 22  # triples of a block, and of a pile: what is in memory at a time is a few of these
_MOST_PILES = 512  # each is an open file, and a process may usually have 1,024
_THREADS = 2
T = TypeVar("T")


def generate(
    out: Path | str,
    graph: PlantedGraph,
    *,
    n_valid: int | None = None,
    n_test: int | None = None,
    overwrite: bool = False,
    watch: Watch | None = None,
) -> Dataset:
    """Writes a graph as an encoded dataset into the folder `out`, wholly or not at all, and returns it, mapped.

    n_valid, n_test: 5 % each, at most 10,000, by default. Every entity and relation occurs in train. Ids, no names.
    The same graph and counts give the same files. About 0.4 GiB of memory up to two billion triples, beyond that
    more in proportion, and 24 bytes of disk per triple.
    """
    out = Path(out)
    held_out = _held_out(graph, n_valid, n_test)
    check_free(out, overwrite=overwrite)
    with whole_folder(out, overwrite=overwrite) as aside:
        _write_splits(aside, graph, held_out, watch)
        Dataset.seal(
            aside,
            n_entities=graph.n_entities,
            n_relations=graph.n_relations,
            name=out.name.removesuffix(".grash") or "generated",
            provenance={"generated": asdict(graph)},
        )
    return Dataset.load(out)


def generate_text(out: Path | str, graph: PlantedGraph, *, watch: Watch | None = None) -> None:
    """Writes all triples of a graph as lines of names (Q17, tab, P3, tab, Q4) into the file `out`, in random order."""
    out = Path(out)
    mend_folder(out)  # piles of a process that was killed
    with (
        whole_file(out) as aside,
        aside.open("wb") as file,
        tempfile.TemporaryDirectory(dir=aside.parent, prefix=f".{out.name}.", suffix=".part") as piles,
    ):
        for block in _shuffled(graph, Path(piles), {}, None, watch):
            file.write(as_lines(block))


def check_free(out: Path, *, overwrite: bool) -> None:
    """Says before the work what writing would say after it; a folder that a kill left aside is brought back."""
    mend_folder(out)
    if out.exists() and not overwrite:
        raise InputError(f"{out} exists already: give another place, or --overwrite (overwrite=True).")
    if out.is_dir() and not (out / DATASET_FILE).is_file():
        raise InputError(f"{out} holds no encoded dataset, so it is not overwritten: give another folder.")


def _held_out(graph: PlantedGraph, n_valid: int | None, n_test: int | None) -> dict[str, int]:
    given = SourceOptions(n_valid=n_valid, n_test=n_test)
    movable = graph.n_triples - graph.n_entities
    counts = {"valid": given.n_split_off("valid", graph.n_triples), "test": given.n_split_off("test", graph.n_triples)}
    if sum(counts.values()) > movable:
        if n_valid is not None or n_test is not None:
            raise ConfigError(
                f"{counts['valid']:,} valid and {counts['test']:,} test triples are asked for, and {movable:,} can be "
                f"held out, since every entity keeps a triple in train: give fewer, or more triples."
            )
        counts = {"valid": movable // 2, "test": movable - movable // 2}
    return counts


def _write_splits(folder: Path, graph: PlantedGraph, held_out: dict[str, int], watch: Watch | None) -> None:
    with ExitStack() as stack:
        piles = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=folder)))
        files = {s: stack.enter_context(ArrayWriter(folder / f"{s}.npy", np.int32, (3,))) for s in SPLITS}
        for block in _shuffled(graph, piles, held_out, files, watch):
            files["train"].append(block)


def _shuffled(
    graph: PlantedGraph,
    folder: Path,
    held_out: dict[str, int],
    files: Mapping[SplitName, ArrayWriter] | None,
    watch: Watch | None,
) -> Iterator[Triples]:
    """The train triples in random order, in blocks; held-out ones go to their files as they are made."""
    bounds = _bounds(graph)
    n_blocks = len(bounds) - 1
    n_piles = min(n_blocks, _MOST_PILES)
    watch = watch or (lambda what, share, n_triples: None)
    with ExitStack() as stack:
        piles = [stack.enter_context((folder / f"{i}").open("w+b")) for i in range(n_piles)]

        def make(i: int) -> tuple[dict[str, Triples], Triples, NDArray[np.int64]]:
            parts = _block(graph, bounds[i], bounds[i + 1], held_out)
            return parts, *_dealt(parts["train"], n_piles, np.uint64(graph.seed), i)

        for i, (parts, dealt, starts) in enumerate(_threaded(make, n_blocks)):
            for split, file in (files or {}).items():
                if split != "train":
                    file.append(parts[split])
            for pile, begin, end in zip(piles, starts[:-1], starts[1:]):
                pile.write(dealt[begin:end].data)
            watch("making", (i + 1) / n_blocks, graph.rows_before(bounds[i + 1]))

        def mix(i: int) -> Triples:
            piles[i].seek(0)
            triples = np.fromfile(piles[i], np.int32).reshape(-1, 3)
            piles[i].close()
            (folder / f"{i}").unlink()
            _shuffle(triples, np.uint64(graph.seed), i)
            return triples

        for i, triples in enumerate(_threaded(mix, n_piles)):
            yield triples
            watch("shuffling", (i + 1) / n_piles, 0)


def _bounds(graph: PlantedGraph) -> list[int]:
    """Places between which heads have some _ROWS triples together."""
    n_blocks = max(1, round(graph.n_triples / _ROWS))
    places = range(graph.n_entities)
    bounds = [bisect_left(places, i * graph.n_triples // n_blocks, key=graph.rows_before) for i in range(n_blocks)]
    return [*bounds, graph.n_entities]


def _block(graph: PlantedGraph, first: int, last: int, held_out: dict[str, int]) -> dict[str, Triples]:
    """The triples of the heads of some places by split; every head keeps its first in train.

    Every block gives its share of the held-out triples, so that the counts come out exactly.
    """
    triples = graph.triples(first, last)
    movable = np.ones(len(triples), bool)
    movable[graph.first_rows(first, last)] = False
    before, after = (graph.rows_before(place) - place for place in (first, last))  # movable ones up to there
    in_all = max(1, graph.n_triples - graph.n_entities)
    ends = np.cumsum([0, held_out.get("valid", 0), held_out.get("test", 0)])
    shares = [int(after * int(end) // in_all) - int(before * int(end) // in_all) for end in ends]
    random = np.random.default_rng([graph.seed, 2, first])
    rows = np.flatnonzero(movable)[random.choice(after - before, shares[2], replace=False)]
    in_train = np.ones(len(triples), bool)
    in_train[rows] = False
    parts = (in_train, np.sort(rows[: shares[1]]), np.sort(rows[shares[1] :]))
    return {split: triples[part] for split, part in zip(SPLITS, parts)}


def _threaded(make: Callable[[int], T], n: int) -> Iterator[T]:
    """make(0), make(1), … in order, the next ones being made in threads."""
    with ThreadPoolExecutor(_THREADS) as threads:
        coming: deque[Future[T]] = deque()
        for i in range(n + _THREADS):
            if i >= _THREADS and coming:
                yield coming.popleft().result()
            if i < n:
                coming.append(threads.submit(make, i))


def _dealt(triples: Triples, n_piles: int, seed: np.uint64, block: int) -> tuple[Triples, NDArray[np.int64]]:
    """The triples by the pile that each falls to at random, and where each pile begins (n_piles + 1,)."""
    dealt, starts = np.empty_like(triples), np.zeros(n_piles + 1, np.int64)
    _deal(triples, seed, block, starts, dealt)
    return dealt, starts


@njit(cache=True, nogil=True)
def _random(state: NDArray[np.uint64]) -> np.uint64:
    """The next 64 bits (an xorshift with a multiplication)."""
    x = state[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    state[0] = x
    return (x * np.uint64(0x2545F4914F6CDD1D)) >> np.uint64(32)


@njit(cache=True, nogil=True)
def _started(seed: np.uint64, stage: int, block: int) -> NDArray[np.uint64]:
    state = np.empty(1, np.uint64)
    state[0] = (seed ^ (np.uint64(2 * block + stage + 1) * np.uint64(0x9E3779B97F4A7C15))) | np.uint64(1)
    for _ in range(8):
        _random(state)
    return state


@njit(cache=True, nogil=True)
def _deal(triples: Triples, seed: np.uint64, block: int, starts: NDArray[np.int64], dealt: Triples) -> None:
    n, n_piles = triples.shape[0], starts.size - 1
    state, pile = _started(seed, 0, block), np.empty(n, np.int32)
    for row in range(n):
        pile[row] = (_random(state) * np.uint64(n_piles)) >> np.uint64(32)
        starts[pile[row] + 1] += 1
    for i in range(n_piles):
        starts[i + 1] += starts[i]
    next_one = starts[:-1].copy()
    for row in range(n):
        to = next_one[pile[row]]
        next_one[pile[row]] += 1
        for column in range(3):
            dealt[to, column] = triples[row, column]


@njit(cache=True, nogil=True)
def _shuffle(triples: Triples, seed: np.uint64, block: int) -> None:
    state = _started(seed, 1, block)
    for row in range(triples.shape[0] - 1, 0, -1):
        other = np.int64((_random(state) * np.uint64(row + 1)) >> np.uint64(32))
        for column in range(3):
            triples[row, column], triples[other, column] = triples[other, column], triples[row, column]
