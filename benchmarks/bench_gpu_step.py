"""Measure one training step on a GPU: floor, plain PyTorch, unfused and fused step; one trial and stacks.

    python benchmarks/bench_gpu_step.py [--only NAME …] [--parts] [--record]

Random graphs of the named sizes; batch 1024, d = 128, shared negatives without replacement, softmax, Adagrad with full
state, unless the name tells otherwise. One run measures the ceilings (copy, matrix product), and for every case
- the floor (bytes and FLOPs at these ceilings),
- the same step with autograd and sparse embeddings,
- PyG's step if it is installed (`peers.pyg_steps`: one negative per positive, and all of ours if they are few enough),
- PyKEEN's step if it is installed (as many negatives per positive as we share; its loop included, batches of 20),
- the unfused step, and the fused step by precision of its products.
For our steps it prints the peak memory (creating the tables included), the memory while training, the plan, and peak
over plan. `--parts` times the kernels of the fused step one by one, each in a separate CUDA graph.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from grash.engines.memory import plan_memory
from grash.formatting import format_bytes
from grash.kernels.step import WINDOW
from grash.training.batches import Batches
from grash.training.checkpoint import TrainState
from grash.training.config import TrainConfig
from grash.training.fused import FusedSteps, stack_states
from grash.training.initial import initial_model
from grash.training.loop import train_step
from grash.training.optimizers import ADAGRAD_EPS
from harness import Timing, device_timed, record
from peers import Setting, autograd_step, pyg_steps, pykeen_step

CUDA = torch.device("cuda")
PEERS = ("autograd", "PyG")


@dataclass(frozen=True)
class Case:
    """n entities, relations, triples, negatives (heads, tails); trials in a stack."""

    entities: int
    relations: int
    triples: int
    negatives: tuple[int, int]
    settings: dict[str, Any] = field(default_factory=dict)
    trials: int = 1
    precisions: tuple[str, ...] = ("bf16",)
    plain: bool = True
    peers: tuple[str, ...] = ()

    def config(self, precision: str, variation: int = 0) -> TrainConfig:
        heads, tails = self.negatives
        values = {"negatives_head": heads, "negatives_tail": tails, "lr": 0.05, "epochs": 10_000, "dim": 128}
        return TrainConfig(**values | self.settings, precision=precision, variation=variation)

    def configs(self, precision: str) -> list[TrainConfig]:
        return [self.config(precision, i) for i in range(self.trials)]

    def setting(self, graph: np.ndarray) -> Setting:
        """The case as a peer takes it."""
        sizes = self.entities, self.relations, self.negatives
        return Setting(graph, *sizes, **self.settings, device=CUDA.type)


@dataclass(frozen=True)
class Measured:
    """Seconds a step; of ours bytes on the card: planned, at their peak, and while steps were made."""

    variant: str
    timing: Timing
    planned: int = 0
    peak: int = 0
    stepping: int = 0

    def memory(self) -> str:
        if not self.planned:
            return ""
        return (f"; {format_bytes(self.peak)} on the card ({format_bytes(self.stepping)} while stepping), "
                f"planned {format_bytes(self.planned)} ({self.peak / self.planned:.3f})")  # fmt: skip


YAGO = (123_182, 37, 1_079_040)
FB15K = (14_541, 237, 272_115)
CASES = {
    "yago complex": Case(*YAGO, (3864, 8803), precisions=("bf16", "tf32", "float32"), peers=(*PEERS, "PyKEEN")),
    "yago complex 500": Case(*YAGO, (500, 500), peers=(*PEERS, "PyKEEN")),
    "yago rotate": Case(*YAGO, (500, 500), {"model": "rotate"}, peers=PEERS),
    "yago transe l1": Case(*YAGO, (500, 500), {"model": "transe"}, peers=PEERS),
    "yago transe l2": Case(*YAGO, (500, 500), {"model": "transe", "norm": 2}, peers=PEERS),
    "yago rotate adversarial": Case(*YAGO, (500, 500), {"model": "rotate", "loss": "self_adversarial"}),
    "yago complex 512": Case(*YAGO, (500, 500), {"dim": 512}),
    "fb15k 1vsall": Case(*FB15K, (14_541, 14_541), {"training": "1vsall"}),
    "fb15k 1vsall dropout": Case(*FB15K, (14_541, 14_541), {"training": "1vsall", "dropout_entity": 0.1}, plain=False),
    "fb15k relations too": Case(*FB15K, (500, 500), {"relation_prediction": 0.5}),
    "wikidata5m complex": Case(4_594_485, 822, 21_343_681, (5735, 7467), plain=False, peers=("autograd",)),
    "round 1, alone": Case(7_800, 30, 130_000, (240, 550), plain=False),
    "round 1, 8 trials": Case(7_800, 30, 130_000, (240, 550), trials=8, plain=False),
    "round 1, 64 trials": Case(7_800, 30, 130_000, (240, 550), trials=64, plain=False),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=list(CASES), choices=list(CASES), metavar="NAME")
    parser.add_argument("--parts", action="store_true")
    parser.add_argument("--record", action="store_true")
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    copy, products = ceilings()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}: copy {copy / 1e12:.2f} TB/s, "
          f"bf16 product {products / 1e12:.0f} TFLOP/s")  # fmt: skip
    for name in args.only:
        case = CASES[name]
        print(f"{name:23s} floor                {floor(case, copy, products) * 1e6:9.1f} µs")
        for found in variants(case, args.parts):
            report(name, case, found, record_it=args.record)


def report(name: str, case: Case, found: Measured, *, record_it: bool) -> None:
    timing = found.timing
    each = f", {timing.median / case.trials * 1e6:.2f} a trial" if case.trials > 1 else ""
    print(f"{name:23s} {found.variant:20s} {timing.median * 1e6:9.1f} µs "
          f"[{timing.p20 * 1e6:.1f}, {timing.p80 * 1e6:.1f}]{each}{found.memory()}", flush=True)  # fmt: skip
    if record_it:
        record("gpu step", found.variant, name + found.memory(), timing)


def variants(case: Case, parts: bool) -> Iterator[Measured]:
    graph = random_graph(case)
    yield from peers(case, graph)
    if case.plain:
        yield plain_variant(case, graph)
    for precision in case.precisions:
        yield fused_variant(case, graph, precision, parts)


def peers(case: Case, graph: np.ndarray) -> Iterator[Measured]:
    if "autograd" in case.peers:
        yield Measured("autograd, sparse", timed(autograd_step(case.setting(graph)), 1, 30))
    if "PyG" in case.peers:
        for kind, step in pyg_steps(case.setting(graph)).items():
            yield Measured(f"PyG, {kind}", timed(step, 1, 30))
    if "PyKEEN" in case.peers and importlib.util.find_spec("pykeen") is not None:
        sizes = case.entities, case.relations, sum(case.negatives)
        yield Measured("PyKEEN", pykeen_step(graph, *sizes, 128, 1024, device=CUDA.type, batches=20))


def plain_variant(case: Case, graph: np.ndarray) -> Measured:
    os.environ["GRASH_KERNELS"] = "reference"
    planned = planned_bytes(case, "tf32")
    os.environ.pop("GRASH_KERNELS")  # draws by Triton: the path as it was before
    return watched("our unfused step", planned, lambda: plain_step(case, graph), lambda step: step(), 1)[0]


def fused_variant(case: Case, graph: np.ndarray, precision: str, parts: bool) -> Measured:
    planned = planned_bytes(case, precision)
    name = f"fused, {precision}"
    found, fused = watched(name, planned, lambda: fused_steps(case, graph, precision), run, WINDOW)
    if parts:
        print("    " + ", ".join(f"{k} {v:.1f}" for k, v in parts_of(fused).items()))
    return found


def planned_bytes(case: Case, precision: str) -> int:
    return plan_memory(case.configs(precision), case.entities, case.relations, case.triples, CUDA).device


def watched(
    variant: str, planned: int, make: Callable[[], Any], call: Callable[[Any], object], steps: int
) -> tuple[Measured, Any]:
    """Times `call` of what `make` gives, which makes so many steps; and what was made."""
    gc.collect()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    made = make()
    making = torch.cuda.max_memory_allocated() - before
    torch.cuda.reset_peak_memory_stats()
    timing = timed(lambda: call(made), steps, 30)
    stepping = torch.cuda.max_memory_allocated() - before
    return Measured(variant, timing, planned, max(making, stepping), stepping), made


def run(fused: FusedSteps) -> None:
    fused.run(WINDOW)
    fused.states[0].step += WINDOW


def timed(call: Callable[[], object], steps: int, repeats: int) -> Timing:
    return device_timed(call, repeats, steps=steps, warm_up=3)


def ceilings() -> tuple[float, float]:
    """(bytes read and written per second of a large copy, FLOP/s of a large bf16 product)."""
    a = torch.randn(1 << 29, device=CUDA)
    b = torch.empty_like(a)
    copy = 2 * a.nbytes / timed(lambda: b.copy_(a), 1, 10).median
    x, y = (torch.randn(8192, 8192, device=CUDA, dtype=torch.bfloat16) for _ in range(2))
    return copy, 2 * 8192**3 / timed(lambda: x @ y, 1, 10).median


def floor(case: Case, copy: float, products: float) -> float:
    """The larger of two times: rows touched (gathered once, updated in 20 bytes a float), and three products a side
    (distances: three passes of two operations a coordinate, at 60 TFLOP/s of plain arithmetic)."""
    rows, pairs = min(case.entities, 2 * 1024 + sum(case.negatives)), 1024 * sum(case.negatives)
    dim = case.settings.get("dim", 128)
    dot = case.settings.get("model", "complex") == "complex"
    return case.trials * max(rows * dim * 24 / copy, pairs * dim * 6 / (products if dot else 60e12))


def random_graph(case: Case) -> np.ndarray:
    """Some entities are in many triples, most in few."""
    rng = np.random.default_rng(0)
    heads, tails = ((case.entities * rng.random(case.triples) ** power).astype(np.int32) for power in (3, 2))
    return np.stack([heads, rng.integers(0, case.relations, case.triples, dtype=np.int32), tails], 1)


def plain_step(case: Case, graph: np.ndarray) -> Callable[[], object]:
    config = case.config("tf32")
    batches = Batches(graph, case.entities, case.relations, config, CUDA)
    state = TrainState.fresh(initial_model(config, case.entities, case.relations, device=CUDA), config)
    torch.backends.cuda.matmul.allow_tf32 = True
    return lambda: train_step(state, batches, config)


def fused_steps(case: Case, graph: np.ndarray, precision: str) -> FusedSteps:
    configs, sizes = case.configs(precision), (case.entities, case.relations)
    batches = Batches(graph, *sizes, configs[0], CUDA)
    fresh = (TrainState.fresh(initial_model(c, *sizes, device=CUDA), c) for c in configs)
    return FusedSteps(stack_states(fresh, n=len(configs)), batches, configs)


def parts_of(fused: FusedSteps) -> dict[str, float]:
    """µs of each launch, twenty in a graph."""
    return {name: timed(replayed(call), 20, 15).median * 1e6 for name, call in launches(fused).items()}


def launches(fused: FusedSteps) -> dict[str, Callable[[], object]]:
    """Return the launches of `step.launch_step`, each by itself."""
    from grash.kernels import step_draw_triton as drawing
    from grash.kernels import step_products_triton as products
    from grash.kernels import step_score_triton as scoring
    from grash.kernels import step_update_triton as updating

    space, plan, trials, factors, tables = fused.space, fused.plan, fused.trials, fused.factors, fused.tables
    known, keys, (entity_squares, relation_squares) = (space, plan, trials, factors), fused.keys, fused.squares
    calls: dict[str, Callable[[], object]] = {
        "draw": lambda: drawing.draw(space, plan, keys, trials, factors, fused.examples, *tables),
        "order": lambda: drawing.order(space),
    }
    if fused.shape.by_products:
        calls |= {
            "score": lambda: products.score_products(space, trials, factors),
            "merge": lambda: products.merge_products(space, plan, trials, factors),
            "weigh": lambda: products.weigh_products(space, trials, factors),
            "pulls": lambda: products.query_products(space, trials),
            "spread": lambda: products.candidate_products(space, trials),
        }
    elif fused.shape.pair == "dot":
        calls |= {
            "score": lambda: scoring.score_dot(space, trials, factors),
            "spread": lambda: scoring.candidate_gradient_dot(space, trials, factors),
        }
    else:
        calls |= {
            "score": lambda: scoring.score_distance(space, trials, factors),
            "weigh": lambda: scoring.weigh_distance(space, plan, trials, factors),
            "pulls": lambda: scoring.query_gradient_distance(space, trials),
            "spread": lambda: scoring.candidate_gradient_distance(space, trials),
        }
    gradients = updating.question_gradients if fused.shape.kvsall else updating.triple_gradients
    return calls | {
        "ends": lambda: gradients(space, plan, trials, factors, *tables),
        "relations": lambda: updating.update_relations(*known, tables[1], relation_squares, ADAGRAD_EPS),
        "entities": lambda: updating.update_entities(*known, keys, tables[0], entity_squares, ADAGRAD_EPS),
    }


def replayed(call: Callable[[], object]) -> Callable[[], object]:
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(20):
            call()
    return graph.replay


if __name__ == "__main__":
    main()
