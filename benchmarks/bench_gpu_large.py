"""Measure an epoch on a graph of Freebase's size, with entities in GPU memory and in host memory.

    python benchmarks/bench_gpu_large.py [device] [host] [--share 0.1] [--rank 500] [--record]

The graph is generated on the GPU: ids follow a power law and are scattered. Default size: 86,054,151 entities, 14,824
relations, 304,727,650 triples (`--entities`, `--relations`, `--triples`). ComplEx, d = 128, batch 1024, 1,000 + 1,000
shared negatives, Adagrad with full state, bf16 products. `device` runs all steps of an epoch, `host` a share of them.
One run measures the bandwidth of GPU memory and of the bus, and for each placement the seconds to create the tables,
the microseconds per step beside the floor, and peak memory beside the plan. Updated rows and ranks after the first
steps must be equal for both placements.
"""

from __future__ import annotations

import argparse
import gc
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from grash.data.known_answers import KnownAnswers
from grash.engines.memory import choose_placement, plan_memory
from grash.evaluation.ranking import Ranker
from grash.formatting import format_bytes
from grash.kernels.random import key_of, permuted
from grash.kernels.storage import Placement, cpu_view, host_rows
from grash.training.batches import Batches
from grash.training.checkpoint import TrainState
from grash.training.config import TrainConfig
from grash.training.fused import FusedSteps
from grash.training.initial import initial_model
from harness import Timing, device_timed, record

CUDA = torch.device("cuda", 0)
ROW = 512  # bytes of 128 floats
BATCH, NEGATIVES = 1024, 1000
CHECKED = 256  # steps after which the placements are compared


@dataclass(frozen=True)
class Sizes:
    entities: int
    relations: int
    triples: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("placements", nargs="*", default=[])
    parser.add_argument("--entities", type=int, default=86_054_151)
    parser.add_argument("--relations", type=int, default=14_824)
    parser.add_argument("--triples", type=int, default=304_727_650)
    parser.add_argument("--share", type=float, default=0.1, help="of an epoch, with tables in host memory")
    parser.add_argument("--rank", type=int, default=500, help="triples that are ranked")
    parser.add_argument("--record", action="store_true")
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    sizes = Sizes(args.entities, args.relations, args.triples)
    config = TrainConfig(dim=128, batch_size=BATCH, negatives_head=NEGATIVES, negatives_tail=NEGATIVES, lr=0.1,
                         epochs=1, precision="bf16", init="normal", init_std=0.1)  # fmt: skip
    began = time.perf_counter()
    graph = made_graph(sizes)
    torch.cuda.synchronize()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; the graph took "
          f"{time.perf_counter() - began:.1f} s", flush=True)  # fmt: skip
    ceilings = memory_rate(), *bus_rates()
    print(f"ceilings: card's memory {ceilings[0] / 1e12:.2f} TB/s, bus {ceilings[1] / 1e9:.1f} GB/s to the card, "
          f"{ceilings[2] / 1e9:.1f} GB/s from it", flush=True)  # fmt: skip
    auto = choose_placement(config, *vars(sizes).values(), CUDA, folder=Path.cwd(), n_valid=args.rank)
    print(f"placement=auto is {auto.placement.kind}: {auto.sentence()}", flush=True)
    seen = []
    for kind in args.placements or ["device", "host"]:
        share = 1.0 if kind == "device" else args.share
        seen.append(run(kind, sizes, config, graph, share, args.rank, ceilings, args.record))
    for other in seen[1:]:
        assert all(torch.equal(a, b) for a, b in zip(seen[0], other)), "the placements differ"
        print(f"rows moved by {CHECKED} steps, their state and {2 * args.rank} ranks: equal in both placements")


def run(
    kind: str, sizes: Sizes, config: TrainConfig, graph: Tensor, share: float, n_ranked: int,
    ceilings: tuple[float, float, float], keeps: bool,
) -> list[Tensor]:  # fmt: skip
    """Rows, state and ranks after the first steps."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() - graph.nbytes  # the plan counts the triples
    placement = Placement() if kind == "device" else Placement("host")
    began = time.perf_counter()
    model = initial_model(config, sizes.entities, sizes.relations, device=CUDA, placement=placement)
    torch.cuda.synchronize()
    first = time.perf_counter()
    state = TrainState.fresh(model, config, placement)
    print(f"{kind}: entities in {first - began:.1f} s, their optimizer state in {time.perf_counter() - first:.1f} s",
          flush=True)  # fmt: skip
    length = np.broadcast_to(np.zeros((1, 3), np.int32), (sizes.triples, 3))  # only its length is looked at
    batches = Batches(length, sizes.entities, sizes.relations, config, CUDA, on_device=graph)
    fused = FusedSteps([state], batches, [config])
    losses = [fused.advance(CHECKED) for _ in range(CHECKED // 64)]
    last = batches.positives(CHECKED - 1)
    touched = torch.cat([*last.triples[:, ::2].T, *(some.ids for some in last.negatives.values())])
    kept = [model.entity[touched].cpu(), state.entity_optimizer.state["squares"][touched].cpu()]
    kept += ranks(model, sizes, graph, n_ranked, kind)
    report(kind, fused, batches.plan.n_steps, share, ceilings, losses, keeps)
    plan = plan_memory([config], sizes.entities, sizes.relations, sizes.triples, CUDA, n_valid=n_ranked,
                      placement=placement)  # fmt: skip
    peak = torch.cuda.max_memory_allocated() - before
    process = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    on_device = f"{format_bytes(peak)} (planned {format_bytes(plan.device)}, ratio {peak / plan.device:.3f})"
    on_host = (
        f"{format_bytes(process)} for the whole process (planned {format_bytes(plan.memory)} with the best weights)"
    )
    print(f"{kind}: peak device memory {on_device}; peak host memory {on_host}", flush=True)
    return kept


def report(
    kind: str, fused: FusedSteps, n_steps: int, share: float, ceilings: tuple[float, float, float],
    losses: list[Tensor], keeps: bool,
) -> None:  # fmt: skip
    """Makes the steps of a share of an epoch, those that were made before counted in."""
    begin, stop = fused.states[0].step, round(share * n_steps)
    events = [torch.cuda.Event(enable_timing=True)]
    torch.cuda.synchronize()
    began = time.perf_counter()
    events[0].record()
    counts = []
    while fused.states[0].step < stop:
        losses.append(fused.advance(stop))
        counts.append(len(losses[-1]))
        events.append(torch.cuda.Event(enable_timing=True))
        events[-1].record()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    each = [a.elapsed_time(b) / 1e3 / n for a, b, n in zip(events, events[1:], counts)]
    median, p20, p80 = (float(np.quantile(each, q)) for q in (0.5, 0.2, 0.8))
    epoch = seconds / (stop - begin) * n_steps
    mean = [float(torch.cat(some).mean()) for some in (losses[:4], losses[-4:])]
    print(f"{kind}: {stop - begin:,} steps in {seconds:.1f} s, {median * 1e6:.1f} µs a step "
          f"[{p20 * 1e6:.1f}, {p80 * 1e6:.1f}], floor {floor(kind, ceilings) * 1e6:.1f} µs; an epoch of {n_steps:,} "
          f"{'takes' if share >= 1 else 'would take'} {epoch:.1f} s; loss {mean[0]:.3f}, then {mean[1]:.3f}",
          flush=True)  # fmt: skip
    if keeps:
        size = f"{fused.batches.n_entities} entities, {n_steps} steps"
        record("gpu large, step", f"tables on {kind}", size, Timing(median, p20, p80, len(each)))
        what = "gpu large, epoch" if share >= 1 else f"gpu large, epoch from {share:g} of it"
        record(what, f"tables on {kind}", size, Timing(epoch, epoch, epoch, 1))


def floor(kind: str, ceilings: tuple[float, float, float]) -> float:
    """Every touched row and its state read once and written once: by the card's memory, or by the bus, both ways of
    which work at the same time. (Our kernels read rows of the batch three times, those of negatives twice.)"""
    touched = (2 * BATCH + 2 * NEGATIVES) * 2 * ROW
    if kind == "device":
        return 2 * touched / ceilings[0]
    return max(touched / ceilings[1], touched / ceilings[2])


def made_graph(sizes: Sizes) -> Tensor:
    """(n, 3) int32: a few entities in many triples, most in few, and no order in the ids."""
    generator = torch.Generator(CUDA).manual_seed(0)
    graph = torch.empty(sizes.triples, 3, dtype=torch.int32, device=CUDA)
    for column, (n, power, name) in enumerate(
        ((sizes.entities, 3, "entity"), (sizes.relations, 2, "relation"), (sizes.entities, 2, "entity"))
    ):
        for part in graph.split(1 << 25):
            drawn = torch.rand(len(part), generator=generator, device=CUDA, dtype=torch.float64) ** power
            part[:, column] = permuted((drawn * n).long().clamp_max(n - 1), n, key_of(0, name))
    return graph


def ranks(model: object, sizes: Sizes, graph: Tensor, n: int, kind: str) -> list[Tensor]:
    if not n:
        return []
    triples = graph[:: sizes.triples // n][:n].cpu().numpy()
    ranker = Ranker(triples, KnownAnswers.of(triples, n_relations=sizes.relations), sizes.entities, CUDA)
    ranker.rank(model)  # compiles  # type: ignore[arg-type]
    began = time.perf_counter()
    found = ranker.rank(model)  # type: ignore[arg-type]
    print(f"{kind}: {2 * n} ranks among all entities in {time.perf_counter() - began:.2f} s", flush=True)
    return [torch.from_numpy(part) for s in (found.head, found.tail) for part in (s.above, s.ties)]


def memory_rate() -> float:
    """Bytes read and written per second by a large copy."""
    a = torch.randn(1 << 28, device=CUDA)
    b = torch.empty_like(a)
    return 2 * a.nbytes / device_timed(lambda: b.copy_(a), 10).median


def bus_rates() -> tuple[float, float]:
    """Bytes per second to the card and from it, of registered memory."""
    there = host_rows(1 << 20, 256, CUDA)
    host, here = cpu_view(there), torch.empty(1 << 20, 256, device=CUDA)

    def rate(call: Callable[[], object]) -> float:
        return host.nbytes / device_timed(call, 5).median

    return (
        rate(lambda: here.copy_(host, non_blocking=True)),
        rate(lambda: host.copy_(here, non_blocking=True)),
    )


if __name__ == "__main__":
    main()
