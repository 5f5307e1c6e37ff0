"""Measure the time and memory of core numbers and core order, and compare with igraph and networkx.

    python benchmarks/bench_cores.py [FOLDER ...] [--triples 20000000] [--entities 5000000] [--repeats 5] [--record]
    python benchmarks/bench_cores.py --dataset freebase.grash

FOLDER has train.npy (n, 3). On each graph, one run measures grash with both definitions of degree, igraph and networkx,
from the array of triples to core numbers, and compares the core numbers. Networkx is measured below two million
triples only, and by neighbors only, since it has no multigraphs. A generated graph with power law degrees follows, in a
separate process, so that its peak memory can be measured.

--dataset measures only an encoded dataset (from synthetic_graph.py), memory-mapped: the passes that build its adjacency
(the floor), core numbers, core order, the subgraphs of a default search with their splits, and the filter index.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import igraph
import networkx
import numpy as np

from grash.data.known_answers import KnownAnswers
from grash.reduction.cores import _count_ends, _fill_rows, peel
from grash.reduction.subgraph import core_order, cut
from harness import Timing, interleaved, record

NETWORKX_UP_TO = 2_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--triples", type=int, default=20_000_000)
    parser.add_argument("--entities", type=int, default=5_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--dataset", type=Path)
    parser.add_argument("--record", action="store_true", help="append the numbers to results.csv")
    parser.add_argument("--alone", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.dataset is not None:
        measure_dataset(arguments.dataset)
        return
    if arguments.alone is not None:
        measure_alone(arguments.alone, arguments.entities, record_it=arguments.record)
        return
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; igraph {igraph.__version__}, "
          f"networkx {networkx.__version__}")  # fmt: skip
    for folder in arguments.folders:
        train = np.ascontiguousarray(np.load(folder / "train.npy"))
        compare(folder.name, train, arguments.repeats, record_it=arguments.record)
    if arguments.triples:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "train.npy"
            generate(path, arguments.triples, arguments.entities)
            command = [sys.executable, __file__, "--alone", str(path), "--entities", str(arguments.entities)]
            subprocess.run(command + ["--record"] * arguments.record, check=True)
    print(f"load {os.getloadavg()[0]:.1f}")


def compare(name: str, train: np.ndarray, repeats: int, *, record_it: bool) -> None:
    n_entities = int(train[:, ::2].max()) + 1
    calls: dict[str, Callable[[], np.ndarray]] = {}
    for count in ("neighbors", "triples"):
        calls[f"grash, {count}"] = lambda count=count: peel(train, n_entities, count).core_numbers()
        calls[f"igraph, {count}"] = lambda count=count: np.array(igraph_of(train, n_entities, count).coreness())
        built = igraph_of(train, n_entities, count)
        calls[f"igraph, {count}, graph at hand"] = lambda built=built: np.array(built.coreness())
    if len(train) <= NETWORKX_UP_TO:
        calls["networkx, neighbors"] = lambda: by_networkx(train, n_entities)
    cores = {variant: call() for variant, call in calls.items()}
    for variant in cores:
        assert np.array_equal(cores[variant], cores[f"grash, {variant.split(', ')[1]}"]), variant
    print(f"\n{name}: {len(train):,} triples, {n_entities:,} entities; core numbers are equal")
    for variant, timing in interleaved(calls, repeats=repeats, warm_up=1).items():
        if record_it:
            record("cores", variant, name, timing)
        k_max = cores[variant].max()
        print(f"{variant:33} {timing.median:9.4f} s (20/80 %: {timing.p20:.4f} {timing.p80:.4f}), k up to {k_max}")


def igraph_of(train: np.ndarray, n_entities: int, count: str) -> igraph.Graph:
    edges = zip(train[:, 0].tolist(), train[:, 2].tolist())  # tuples: faster than lists, arrays and memory views
    graph = igraph.Graph(n=n_entities, edges=edges)
    if count == "neighbors":
        graph.simplify()
    return graph


def by_networkx(train: np.ndarray, n_entities: int) -> np.ndarray:
    graph = networkx.Graph()
    graph.add_nodes_from(range(n_entities))
    graph.add_edges_from(train[train[:, 0] != train[:, 2]][:, ::2].tolist())
    cores = networkx.core_number(graph)
    return np.array([cores[entity] for entity in range(n_entities)])


def generate(path: Path, n_triples: int, n_entities: int) -> None:
    """Degrees follow a power law (cube of a uniform number) over shuffled ids, so neighbors are not close in memory."""
    random = np.random.default_rng(0)
    names = random.permutation(n_entities).astype(np.int32)
    train = np.lib.format.open_memmap(path, "w+", np.int32, (n_triples, 3))
    for start in range(0, n_triples, 1 << 20):
        block = train[start : start + (1 << 20)]
        ends = names[(n_entities * random.random((2, len(block))) ** 3).astype(np.int64)]
        block[:, 0], block[:, 2] = ends
        block[:, 1] = 1000 * random.random(len(block)) ** 3
    train.flush()


def measure_alone(path: Path, n_entities: int, *, record_it: bool) -> None:
    """Seconds, and the peak of memory above the input once it has been read."""
    warm = np.array([[0, 0, 1], [1, 0, 1]], np.int32)
    for count in ("neighbors", "triples"):
        peel(warm, 2, count)
    train = np.load(path)
    print(f"\ngenerated: {len(train):,} triples, {n_entities:,} entities")
    for count in ("triples", "neighbors"):
        before = resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # reset the peak
        start = time.perf_counter()
        peeling = peel(train, n_entities, count)
        seconds = time.perf_counter() - start
        above = (resident("VmHWM") - before) / 2**30
        if record_it:
            record("cores", f"grash, {count}", f"{len(train)} triples", Timing(seconds, seconds, seconds, 1))
        print(f"grash, {count:10} {seconds:7.2f} s, {above:.2f} GiB above the input, k up to {peeling.k_max}")
    cut_once(train, n_entities, peeling)
    print(f"peak of the process {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")


def measure_dataset(folder: Path) -> None:
    """Each step of the reduction of a mapped dataset, with the peak of the process: mapped pages, and all others."""
    from grash.data.dataset import Dataset

    peel(np.array([[0, 0, 1], [1, 0, 1]], np.int32), 2)
    dataset = Dataset.load(folder)
    print(f"{dataset!r}; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    floor, _ = timed_peak("scatter passes alone", lambda: scatter(dataset.train, dataset.n_entities))
    seconds, peeling = timed_peak("core numbers and peel order", lambda: peel(dataset.train, dataset.n_entities))
    print(f"  {seconds / floor:.2f} times the scatter passes; k up to {peeling.k_max}")
    _, order = timed_peak("core order, once for all rounds", lambda: core_order(dataset, peeling))
    for fraction in (1 / 8, 1 / 4, 1 / 2):
        _, subgraph = timed_peak(
            f"subgraph of {fraction}", lambda f=fraction: cut(dataset, peeling, f, seed=0, order=order)
        )
        print(f"  {subgraph.dataset!r}, k = {subgraph.k}")
        del subgraph
    splits = (dataset.train, dataset.valid, dataset.test)
    _, known = timed_peak(
        f"filter index of {len(dataset.test):,} test triples",
        lambda: KnownAnswers.of(*splits, n_relations=dataset.n_relations, asked=dataset.test),
    )
    print(f"  {len(known.head.answers) + len(known.tail.answers):,} answers; load {os.getloadavg()[0]:.1f}")


def scatter(train: np.ndarray, n_entities: int) -> None:
    """What any use of the graph by entity begins with: counting the ends, and putting each beside its entity."""
    starts = np.empty(n_entities + 1, np.int64)
    starts.fill(0)
    _count_ends(train, starts)
    np.cumsum(starts, out=starts)
    _fill_rows(train, starts, np.empty(int(starts[-1]), np.int32))


def timed_peak(what: str, call: Callable[[], Any]) -> tuple[float, Any]:
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    start = time.perf_counter()
    result = call()
    seconds = time.perf_counter() - start
    mapped = resident("RssFile") / 2**30
    peak = resident("VmHWM") / 2**30
    print(f"{what:34} {seconds:7.1f} s, peak {peak:.2f} GiB, of which mapped files {mapped:.2f}", flush=True)
    return seconds, result


def cut_once(train: np.ndarray, n_entities: int, peeling) -> None:  # type: ignore[no-untyped-def]
    from grash.data.dataset import Dataset

    nothing = np.empty((0, 3), np.int32)
    dataset = Dataset(train, nothing, nothing, n_entities, 1000)
    start = time.perf_counter()
    order = core_order(dataset, peeling)
    middle = time.perf_counter()
    subgraph = cut(dataset, peeling, 1 / 64, seed=0, order=order)
    end = time.perf_counter()
    print(f"core order {middle - start:.2f} s; a subgraph of 1/64 {end - middle:.2f} s: {subgraph.dataset!r}")


def resident(field: str) -> int:
    """VmRSS or VmHWM of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


if __name__ == "__main__":
    main()
