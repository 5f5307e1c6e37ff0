"""One training step on a GPU: floor, plain PyTorch, our plain path, the fused step; one trial and stacks of them.

    python benchmarks/bench_gpu_step.py [--only NAME …] [--parts] [--record]

Random graphs of the named sizes; batch 1024, d = 128, shared negatives without replacement, softmax, Adagrad with full
state, unless the name says otherwise. In one run: the measured ceilings (copy, matrix product), for every case the
floor (bytes and FLOPs over them), the same step with autograd and sparse embeddings, PyG's step where it is installed
(one negative for each positive, which is all it offers), PyKEEN's where it is (as many negatives for each positive as
we share among them; the loop with its own overheads, batches of 20), our plain path and the fused step by
precision of its products. `--parts` times the fused step's kernels one by one, each in a graph of its own.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from grash.kernels.step import WINDOW
from grash.training.batches import Batches
from grash.training.config import TrainConfig
from grash.training.fused import FusedSteps
from grash.training.initial import initial_model
from grash.training.loop import train_step
from grash.training.stack import stack_states
from grash.training.state import TrainState
from harness import Timing, device_timed, record
from peers import pykeen_step

CUDA = torch.device("cuda")


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

    def config(self, precision: str, variation: int = 0) -> TrainConfig:
        heads, tails = self.negatives
        values = {"negatives_head": heads, "negatives_tail": tails, "lr": 0.05, "epochs": 10_000, "dim": 128}
        return TrainConfig(**values | self.settings, precision=precision, variation=variation)


YAGO = (123_182, 37, 1_079_040)
FB15K = (14_541, 237, 272_115)
CASES = {
    "yago complex": Case(*YAGO, (3864, 8803), precisions=("bf16", "tf32", "float32")),
    "yago complex 500": Case(*YAGO, (500, 500)),
    "yago rotate": Case(*YAGO, (500, 500), {"model": "rotate"}),
    "yago transe l1": Case(*YAGO, (500, 500), {"model": "transe"}),
    "yago transe l2": Case(*YAGO, (500, 500), {"model": "transe", "norm": 2}),
    "yago rotate adversarial": Case(*YAGO, (500, 500), {"model": "rotate", "loss": "self_adversarial"}),
    "yago complex 512": Case(*YAGO, (500, 500), {"dim": 512}),
    "fb15k 1vsall": Case(*FB15K, (14_541, 14_541), {"training": "1vsall"}),
    "fb15k 1vsall dropout": Case(*FB15K, (14_541, 14_541), {"training": "1vsall", "dropout_entity": 0.1}, plain=False),
    "fb15k relations too": Case(*FB15K, (500, 500), {"relation_prediction": 0.5}),
    "wikidata5m complex": Case(4_594_485, 822, 21_343_681, (5735, 7467), plain=False),
    "round 1, alone": Case(7_800, 30, 130_000, (240, 550), plain=False),
    "round 1, 8 trials": Case(7_800, 30, 130_000, (240, 550), trials=8, plain=False),
    "round 1, 64 trials": Case(7_800, 30, 130_000, (240, 550), trials=64, plain=False),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(CASES))
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
        for variant, timing in variants(case, args.parts):
            each = f", {timing.median / case.trials * 1e6:.2f} a trial" if case.trials > 1 else ""
            print(f"{name:23s} {variant:20s} {timing.median * 1e6:9.1f} µs "
                  f"[{timing.p20 * 1e6:.1f}, {timing.p80 * 1e6:.1f}]{each}", flush=True)  # fmt: skip
            if args.record:
                record("gpu step", variant, name, timing)


def variants(case: Case, parts: bool) -> list[tuple[str, Timing]]:
    found = []
    graph = random_graph(case)
    if case.plain:
        if not case.settings:
            found.append(("autograd, sparse", timed(autograd_step(case, graph), 1, 30)))
            found += [(f"PyG, {kind}", timed(step, 1, 30)) for kind, step in pyg_steps(case, graph).items()]
            if importlib.util.find_spec("pykeen") is not None:
                sizes = case.entities, case.relations, sum(case.negatives)
                found.append(("PyKEEN", pykeen_step(graph, *sizes, 128, 1024, device="cuda", batches=20)))
        found.append(("our plain path", timed(plain_step(case, graph), 1, 30)))
    for precision in case.precisions:
        fused = fused_steps(case, graph, precision)
        found.append((f"fused, {precision}", timed(lambda f=fused: run(f), WINDOW, 30)))
        if parts:
            print("    " + ", ".join(f"{k} {v:.1f}" for k, v in parts_of(fused).items()))
    return found


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
    """The larger of two times: rows touched (gathered once, updated in 20 bytes a float), and three products a slot
    (distances: three passes of two operations a coordinate, at 60 TFLOP/s of plain arithmetic)."""
    rows, pairs = min(case.entities, 2 * 1024 + sum(case.negatives)), 1024 * sum(case.negatives)
    dim = case.settings.get("dim", 128)
    dot = case.settings.get("model", "complex") == "complex"
    return case.trials * max(rows * dim * 24 / copy, pairs * dim * 6 / (products if dot else 60e12))


def random_graph(case: Case) -> np.ndarray:
    """Some entities stand in many triples, most in few."""
    rng = np.random.default_rng(0)
    heads, tails = ((case.entities * rng.random(case.triples) ** power).astype(np.int32) for power in (3, 2))
    return np.stack([heads, rng.integers(0, case.relations, case.triples, dtype=np.int32), tails], 1)


def plain_step(case: Case, graph: np.ndarray) -> Callable[[], object]:
    config = case.config("tf32")
    batches = Batches(graph, case.entities, case.relations, config, CUDA)
    state = TrainState.fresh(initial_model(config, case.entities, case.relations, device=CUDA), config)
    torch.backends.cuda.matmul.allow_tf32 = True
    os.environ.pop("GRASH_KERNELS", None)  # draws by Triton: the path as it was before
    return lambda: train_step(state, batches, config)


def fused_steps(case: Case, graph: np.ndarray, precision: str) -> FusedSteps:
    configs = [case.config(precision, i) for i in range(case.trials)]
    batches = Batches(graph, case.entities, case.relations, configs[0], CUDA)
    models = [initial_model(c, case.entities, case.relations, device=CUDA) for c in configs]
    states = [TrainState.fresh(m, c) for m, c in zip(models, configs)]
    stack_states(states, n=len(states))
    return FusedSteps(states, batches, configs)


def autograd_step(case: Case, graph: np.ndarray) -> Callable[[], object]:
    """The same step as one writes it first: sparse embeddings, autograd, torch's Adagrad."""
    entity = torch.nn.Embedding(case.entities, 128, sparse=True, device=CUDA)
    relation = torch.nn.Embedding(case.relations, 128, sparse=True, device=CUDA)
    optimizer = torch.optim.Adagrad([entity.weight, relation.weight], lr=0.05)
    triples = torch.from_numpy(graph).to(CUDA).long()
    torch.backends.cuda.matmul.allow_tf32 = True

    def call() -> None:
        with torch.enable_grad():
            head, kind, tail = triples[torch.randint(len(triples), (1024,), device=CUDA)].T
            h, r, t = (
                torch.view_as_complex(x.reshape(1024, 64, 2)) for x in (entity(head), relation(kind), entity(tail))
            )
            positive = (h * r * t.conj()).real.sum(1, keepdim=True)
            loss = torch.zeros((), device=CUDA)
            for queries, count in (((r.conj() * t), case.negatives[0]), ((h * r), case.negatives[1])):
                others = entity(torch.randperm(case.entities, device=CUDA)[:count])
                scores = torch.view_as_real(queries).reshape(1024, 128) @ others.T
                logits = torch.cat([positive, scores], 1)
                loss = loss + F.cross_entropy(logits, torch.zeros(1024, dtype=torch.int64, device=CUDA))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return call


def pyg_steps(case: Case, graph: np.ndarray) -> dict[str, Callable[[], object]]:
    """A step as in PyG's own example: `loss` of one negative for each positive, autograd, torch's Adagrad."""
    if importlib.util.find_spec("torch_geometric") is None:
        print("    PyG is not installed")
        return {}
    from torch_geometric.nn.kge import ComplEx

    triples = torch.from_numpy(graph).to(CUDA).long()

    def step(sparse: bool) -> Callable[[], object]:
        model = ComplEx(case.entities, case.relations, hidden_channels=64, sparse=sparse).to(CUDA)
        optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)

        def call() -> None:
            with torch.enable_grad():
                head, kind, tail = triples[torch.randint(len(triples), (1024,), device=CUDA)].T
                optimizer.zero_grad()
                model.loss(head, kind, tail).backward()
                optimizer.step()

        return call

    return {"dense": step(False), "sparse": step(True)}


def parts_of(fused: FusedSteps) -> dict[str, float]:
    """µs of each launch, twenty in a graph."""
    from grash.kernels import step_distance_triton as distance
    from grash.kernels import step_dot_triton as dot
    from grash.kernels import step_draw_triton as drawing
    from grash.kernels import step_ends_triton as ending
    from grash.kernels import step_update_triton as updating

    space, plan, trials, factors, tables = fused.space, fused.plan, fused.trials, fused.factors, fused.tables
    known = space, plan, trials, factors
    calls: dict[str, Callable[[], object]] = {
        "draw": lambda: drawing.draw(space, plan, fused.keys, trials, factors, fused.batches.train, *tables),
        "order": lambda: drawing.order(space),
    }
    if fused.shape.pair == "dot":
        calls |= {
            "score": lambda: dot.score(space, trials, factors),
            "spread": lambda: dot.spread(space, trials, factors),
        }
    else:
        calls |= {
            "score": lambda: distance.score(space, trials, factors),
            "weigh": lambda: distance.weigh(space, plan, trials, factors),
            "pulls": lambda: distance.pulls(space, trials),
            "spread": lambda: distance.spread(space, trials),
        }
    calls |= {
        "ends": lambda: ending.ends(space, plan, trials, factors, *tables),
        "relations": lambda: updating.update_relations(*known, tables[1], fused.squares[1], 1e-10),
        "entities": lambda: updating.update_entities(*known, tables[0], fused.squares[0], 1e-10),
    }
    return {name: timed(replayed(call), 20, 15).median * 1e6 for name, call in calls.items()}


def replayed(call: Callable[[], object]) -> Callable[[], object]:
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(20):
            call()
    return graph.replay


if __name__ == "__main__":
    main()
