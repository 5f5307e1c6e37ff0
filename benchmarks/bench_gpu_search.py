"""Measure a search on a GPU: a stacked first round, the same trials in turn, a whole search, a long training.

    python benchmarks/bench_gpu_search.py GRAPH [round1] [search] [project] [train] [--epochs E] [--record] …

GRAPH: any source that grash reads. The search has variant combined, n = 64, η = 4, B = 3, ComplEx, d = 128, space
`paper`, and no final training.
round1:  the 64 trials of the first round stacked, and the same trials one after the other, with the same kernels and
         data. `--some N` runs only N of those one after the other, evenly spaced in size, and extrapolates.
search:  a whole search from core numbers to the winner, with seconds by round.
project: for a search that takes too long: run it with 0.03·E and 0.09·E epochs (same graphs, stacks and validations, no
         guard rails) and extrapolate linearly to E.
train:   E epochs with 3864 + 8803 negatives and 20 validations.
Peak memory is printed beside the plan.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from grash.api.dataset import load_dataset
from grash.api.search import Search
from grash.data.dataset import Dataset
from grash.engines.driver import Driver
from grash.engines.memory import choose_device
from grash.engines.trainer import TrainingData, run_trainings
from grash.formatting import format_bytes
from grash.search.run_folder import RunFolder
from grash.search.trial import Trial
from grash.training.config import TrainConfig, make_config
from grash.training.loop import Training
from harness import Timing, record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph")
    parser.add_argument("modes", nargs="*", default=["round1", "search", "train"])
    parser.add_argument("--epochs", type=float, default=400.0)
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--cores", type=Path, help="a file in which the peel order is kept, or found")
    parser.add_argument("--some", type=int, default=None)
    parser.add_argument("--record", action="store_true")
    args = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    began = time.monotonic()
    data = load_dataset(args.graph)
    print(f"{data!r}, read in {time.monotonic() - began:.1f} s")
    for mode in args.modes:
        MODES[mode](data, args)


def search_of(data: Dataset | str, args: argparse.Namespace, folder: Path, *, guard_rails: bool = True) -> Search:
    return Search(
        data, out=folder, guard_rails=guard_rails, model="complex", n_trials=args.trials, eta=4, budget=3,
        variant="combined", max_epochs=args.epochs, dim=args.dim, space="paper", fixed={"precision": args.precision},
        final_train=False, device=args.device,
    )  # fmt: skip


def round1(data: Dataset, args: argparse.Namespace) -> None:
    """The first round's trials, stacked and in turn."""
    with tempfile.TemporaryDirectory() as place:
        search = search_of(data, args, Path(place) / "run")
        graph, tasks = first_round(search)
    keys = (torch.from_numpy(graph.entity_ids.copy()).long(), torch.from_numpy(graph.relation_ids.copy()).long())
    training_data = TrainingData(graph.dataset, choose_device(args.device), keys=keys)
    configs = [make_config(task.config) for task in tasks]
    print(f"round 1: {len(configs)} trials, {graph.dataset!r}, {configs[0].epochs:.4g} epochs")
    short = [c.changed(epochs=0.02, valid_every=0.01) for c in configs]
    dropped = [c for c in short if c.dropout_entity or c.dropout_relation][:1]
    whole = [c for c in short if not (c.dropout_entity or c.dropout_relation)][:1]
    timed(training_data, [*dropped, *whole], stacked=False)  # kernels of both kinds are compiled, filters made
    stacked = timed(training_data, configs, stacked=True)
    some = spaced(configs, args.some or len(configs))[::-1]  # the largest first, whose plan is shown
    alone = timed(training_data, some, stacked=False) * len(configs) / len(some)
    note = "" if len(some) == len(configs) else f" (from {len(some)} of them)"
    print(
        f"round 1: stacked {stacked:.2f} s, one after the other {alone:.2f} s{note}: {alone / stacked:.2f} times faster"
    )
    keep(args, "gpu round 1", {"stacked": stacked, "one after the other": alone})


def first_round(search: Search) -> tuple:
    """The graph and the tasks of round 1, as the search itself makes them."""
    with RunFolder(search.folder) as folder:
        folder.open_search(search.settings, search.dataset, search.source)
        driver = Driver(folder, search.graphs, _Nobody())  # type: ignore[arg-type]
        driver.begin()
        action = driver.advance()
        assert action is not None
        tasks: list[Trial] = [driver.make_trial(action.round, n) for n in action.numbers]
        driver.ledger.close()
    return search.graphs.subgraph(tasks[0].fractions, tasks[0].isolated), tasks


class _Nobody:
    devices = ("cpu",)


def spaced(configs: Sequence[TrainConfig], n: int) -> list[TrainConfig]:
    ordered = sorted(configs, key=lambda c: c.negatives_head + c.negatives_tail)
    return [ordered[i * len(ordered) // n] for i in range(n)]


def timed(training_data: TrainingData, configs: Sequence[TrainConfig], *, stacked: bool) -> float:
    """Seconds of all these trainings with their validations."""
    groups = [list(configs)] if stacked else [[config] for config in configs]
    settle(training_data.device)
    before = 0
    if training_data.device.type == "cuda":
        before = torch.cuda.memory_allocated(training_data.device)
        torch.cuda.reset_peak_memory_stats(training_data.device)
    began = time.monotonic()
    ends = []
    for group in groups:
        for ended in run_trainings(training_data, [Training(config) for config in group]):
            ends += [type(e).__name__ for _, e in ended]
            del ended  # or the models of a stack stay in memory
    settle(training_data.device)
    seconds = time.monotonic() - began
    print(f"    {len(configs)} trials {'stacked' if stacked else 'in turn'}: {seconds:.2f} s, "
          f"{ends.count('TrainState')} ended well; {peak(training_data, configs if stacked else configs[:1])}; "
          f"before it {format_bytes(before)}")  # fmt: skip
    if ends.count("TrainState") < len(configs):
        raise SystemExit("some trials failed: the time means nothing")
    return seconds


def whole_search(data: Dataset, args: argparse.Namespace) -> None:
    """From cores to winner."""
    with tempfile.TemporaryDirectory() as place:
        search = search_of(args.graph, args, Path(place) / "run")
        search.graphs.keep_cores(args.cores)
        seconds, rounds = timed_search(search)
    keep(args, "gpu search", {"whole": seconds, "trials": sum(rounds)})


def timed_search(search: Search) -> tuple[float, list[float]]:
    """Seconds of the whole, and of each round's trials."""
    began = time.monotonic()
    result = search.run()
    seconds = time.monotonic() - began
    rounds = []
    for past in result.state.rounds:
        ended = list(past.results.values())
        rounds.append(sum(r.seconds for r in ended))
        peaks = format_bytes(max(r.peak_bytes for r in ended))
        good = sum(r.status == "ok" for r in ended)
        print(f"    round {past.plan.number}: {len(ended)} trials ({good} ok), {past.plan.n_entities:,} entities, "
              f"{past.plan.epochs:.4g} epochs: {rounds[-1]:.2f} s, peak {peaks}")  # fmt: skip
    print(f"search: {seconds:.2f} s, {sum(rounds):.2f} s of it in trials; winner {result.state.winner}", flush=True)
    return seconds, rounds


def project(data: Dataset, args: argparse.Namespace) -> None:
    """Two short searches on the same graphs, and the line through them."""
    with tempfile.TemporaryDirectory() as place:
        search = search_of("world", args, Path(place) / "compiled")
        search.run()  # kernels are compiled
        first = search_of(data, args, Path(place) / "graphs")
        first.graphs.keep_cores(args.cores)
        began = time.monotonic()
        _ = first.graphs.peeling
        cores = time.monotonic() - began
        _ = first.graphs.order
        before = time.monotonic() - began
        print(f"cores {cores:.1f} s, core order {before - cores:.1f} s", flush=True)
        seen = []
        for share in (0.03, 0.09):
            short = argparse.Namespace(**{**vars(args), "epochs": args.epochs * share})
            search = search_of(args.graph, short, Path(place) / str(share), guard_rails=False)
            search.graphs.share_cores(first.graphs)
            print(f"{short.epochs:g} epochs instead of {args.epochs:g}:", flush=True)
            seen.append((share, *timed_search(search)))
    (low, seconds, rounds), (high, more_seconds, more_rounds) = seen

    def at_full(one: float, other: float) -> float:
        return one + (other - one) / (high - low) * (1 - low)

    whole = before + at_full(seconds, more_seconds)
    by_round = [at_full(one, other) for one, other in zip(rounds, more_rounds)]
    print(f"projected for {args.epochs:g} epochs: {whole:.1f} s with core numbers and core order; trials of the rounds "
          f"{', '.join(f'{r:.1f}' for r in by_round)} s")  # fmt: skip
    keep(args, "gpu search, projected", {"whole": whole, "trials": sum(by_round)})


def long_training(data: Dataset, args: argparse.Namespace) -> None:
    config = TrainConfig(
        dim=args.dim, epochs=args.epochs, valid_every=args.epochs / 20, patience=None, precision=args.precision,
        negatives_head=3864, negatives_tail=8803, lr=0.1,
    )  # fmt: skip
    training_data = TrainingData(data, choose_device(args.device))
    seconds = timed(training_data, [config], stacked=True)
    print(f"train: {args.epochs:g} epochs in {seconds:.2f} s")
    keep(args, "gpu training", {f"{args.epochs:g} epochs": seconds})


def peak(training_data: TrainingData, configs: Sequence[TrainConfig]) -> str:
    if training_data.device.type != "cuda":
        return "no device memory"
    used, planned = torch.cuda.max_memory_allocated(training_data.device), training_data.plan_memory(configs).device
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(training_data.device)
    return f"peak {format_bytes(used)}, planned {format_bytes(planned)} ({used / planned:.3f})"


def settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def keep(args: argparse.Namespace, what: str, seconds: dict[str, float]) -> None:
    for variant, value in seconds.items() if args.record else ():
        record(what, f"{variant}, {args.precision}", Path(args.graph).name, Timing(value, value, value, 1))


MODES = {"round1": round1, "search": whole_search, "project": project, "train": long_training}

if __name__ == "__main__":
    main()
