"""Compare training steps of one model on several ranks with one process: losses, seconds and bytes sent.

    python benchmarks/bench_distributed.py GRAPH -o plain.json                                  # one process
    torchrun --nproc-per-node 2 benchmarks/bench_distributed.py GRAPH -o two.json               # two ranks
    python benchmarks/bench_distributed.py --compare plain.json two.json

GRAPH: any source that grash reads. --set name=value changes the configuration (ComplEx, d = 128, 500 + 500 negatives).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from grash.cli.options import parse_assignment
from grash.cli.train import launched
from grash.data.load import load_dataset
from grash.engines.memory import choose_device
from grash.engines.trainer import TrainingData
from grash.training.checkpoint import TrainState
from grash.training.config import make_config
from grash.training.initial import initial_model
from grash.training.loop import Training, train_step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", nargs="?")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--device", default="auto", help="as of grash train")
    parser.add_argument("--set", action="append", default=[], metavar="name=value")
    parser.add_argument("-o", "--out", type=Path, default=Path("losses.json"))
    parser.add_argument(
        "--compare", nargs="+", type=Path, help="files of earlier runs, the first of which the others meet"
    )
    args = parser.parse_args()
    if args.compare:
        compare(args.compare)
        return
    with torch.no_grad(), stepping(args) as (name, step, sums, sent):
        for _ in range(3):
            step()  # compiles, and joins the ranks
        losses, seconds, before = [], [], sent()
        for _ in range(args.steps):
            began = time.monotonic()
            losses.append(step())
            if losses[-1].is_cuda:
                torch.cuda.synchronize()
            seconds.append(time.monotonic() - began)
        totals = sums(torch.stack(losses)).tolist()
        if name.endswith("rank 0") or name == "one process":
            found = {"name": name, "ms": statistics.median(seconds) * 1e3, "losses": totals}
            args.out.write_text(json.dumps(found))
            megabytes = (sent() - before) / args.steps / 1e6
            print(f"{name}: {found['ms']:.2f} ms a step, {megabytes:.2f} MB sent a step, last loss {totals[-1]:.6f}")


@contextmanager
def stepping(
    args: argparse.Namespace,
) -> Iterator[tuple[str, Callable[[], Any], Callable[[Any], Any], Callable[[], int]]]:
    """Its name, one step (this process' share of the loss), the sum of such shares, and bytes sent so far."""
    dataset, config = load_dataset(args.dataset), make_config(dict(parse_assignment(text) for text in args.set))
    if not launched():
        device = choose_device(args.device)
        data = TrainingData(dataset, device)
        state = TrainState.fresh(initial_model(config, *data.sizes, device=device), config)
        batches = data.batches(config)

        yield "one process", lambda: train_step(state, batches, config), lambda losses: losses, lambda: 0
        return
    from grash.engines.distributed import join_group
    from grash.training.distributed.checkpoint import fresh_shard
    from grash.training.distributed.communication import Shard
    from grash.training.distributed.loop import distributed_step

    with join_group(args.device) as (group, device):
        shard, data = Shard(dataset.n_entities, group), TrainingData(dataset, device)
        state = fresh_shard(config, dataset.n_relations, shard, device)
        training = Training(config).started(state, data.batches(config))
        count = [0]
        plain_exchange = group.all_to_all

        def counted(rows: Any, sent: Any, received: Any) -> Any:
            away = sum(sent) - sent[group.rank]  # what stays here is not sent
            count[0] += away * rows[:1].numel() * rows.element_size()
            return plain_exchange(rows, sent, received)

        group.all_to_all = counted  # type: ignore[method-assign]
        name = f"{group.size} rank{'s' * (group.size > 1)} on {device.type}, rank {group.rank}"
        yield name, lambda: distributed_step(training, shard), group.all_reduce, lambda: count[0]


def compare(files: list[Path]) -> None:
    first, *others = (json.loads(file.read_text()) for file in files)
    for other in others:
        pairs = list(zip(first["losses"], other["losses"]))
        worst = max(abs(a - b) / abs(a) for a, b in pairs)
        print(f"{other['name']} against {first['name']}: {len(pairs)} losses, largest relative difference {worst:.1e}")


if __name__ == "__main__":
    main()
