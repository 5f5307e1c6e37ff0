"""Measure filtered ranking on a GPU: floor, reference, counting kernels; all entities, both sides.

    python benchmarks/bench_gpu_ranking.py [--only NAME …] [--packed FILE] [--record]
    python benchmarks/bench_gpu_ranking.py --trained GRAPH [--epochs 10] [--triples 2000] [--models NAME …]

One run measures the ceilings (float32 multiply-adds of a kernel that does nothing else, torch's float32 product, copy),
and for every case the floor (2·W FLOP per pair at the first ceiling), the reference (GRASH_KERNELS=reference) on some
of the triples and the kernels on all of them, and compares the ranks. Tables are random; "integers" are small integers
with many ties. `--packed` gives the test triples of DebianKG-files with their known answers (see `pack` below); without
it, triples with the same number of answers are drawn.
`--trained` trains on a dataset instead, ranks test triples with the kernels and the reference, and explains every rank
whose counts differ.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import triton
import triton.language as tl

from grash.api.dataset import load_dataset
from grash.data.known_answers import AnswerIndex, KnownAnswers
from grash.engines.trainer import TrainingData, run_trainings
from grash.evaluation.metrics import mrr
from grash.evaluation.ranking import Ranker, Ranks, ranking_bytes
from grash.kernels.count_above import exact_scores
from grash.models import MODELS, KgeModel
from grash.models.base import SIDES, Side
from grash.training.config import TrainConfig
from grash.training.loop import Training
from harness import Timing, device_timed, record

CUDA = torch.device("cuda")
WIDTH = 128
NEAR = 1e-5  # of the truth's score: candidates as near as that may be counted above it, tied or below


@dataclass(frozen=True)
class Case:
    entities: int
    relations: int
    triples: int
    model: str = "complex"
    norm: int = 1
    values: str = "floats"
    checked: int = 200  # triples that the reference ranks too
    repeats: int = 5

    @property
    def flop(self) -> float:
        return 2.0 * 2 * self.triples * self.entities * WIDTH


FILES = (6_528_162, 71, 10_000)
CASES = {
    "files complex": Case(*FILES),
    "files integers": Case(*FILES, values="integers", repeats=2, checked=20),
    "files transe l1": Case(*FILES, "transe", repeats=2, checked=20),
    "files transe l2": Case(*FILES, "transe", 2, repeats=2, checked=20),
    "files rotate": Case(*FILES, "rotate", repeats=2, checked=20),
    "fb15k-237 complex": Case(14_541, 237, 20_466, checked=20_466),
    "fb15k-237 rotate": Case(14_541, 237, 20_466, "rotate", checked=20_466),
    "round 1 complex": Case(7_800, 30, 5_000, checked=5_000, repeats=20),
}
TRAINED = {"complex": ("complex", 1), "transe l1": ("transe", 1), "transe l2": ("transe", 2), "rotate": ("rotate", 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=list(CASES), choices=list(CASES), metavar="NAME")
    parser.add_argument("--packed", type=Path)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--trained", metavar="GRAPH")
    parser.add_argument("--epochs", type=float, default=10.0)
    parser.add_argument("--triples", type=int, default=2000, help="of the test split, 65,536 at most")
    parser.add_argument("--models", nargs="*", default=list(TRAINED), choices=list(TRAINED), metavar="NAME")
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    if args.trained is not None:
        check_trained(args.trained, args.models, args.epochs, args.triples, CUDA)
        return
    fma, product, copy = ceilings()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}: multiply-adds {fma / 1e12:.1f} TFLOP/s, "
          f"float32 product {product / 1e12:.1f} TFLOP/s, copy {copy / 1e12:.2f} TB/s")  # fmt: skip
    for name in args.only:
        run(name, CASES[name], args.packed, fma, record_it=args.record)


def run(name: str, case: Case, packed: Path | None, fma: float, *, record_it: bool) -> None:
    test, known = questions(case, packed if name.startswith("files") else None)
    model = model_of(case)
    torch.cuda.synchronize()
    before, start = torch.cuda.memory_allocated(), time.perf_counter()
    ranker = Ranker(test, known, case.entities, CUDA)
    made = time.perf_counter() - start
    torch.cuda.reset_peak_memory_stats()
    ranks, first = timed(ranker, model, "triton")
    peak = torch.cuda.max_memory_allocated() - before
    n_filtered = len(known.head.answers) + len(known.tail.answers)
    planned = ranking_bytes(len(test), n_filtered, case.entities, WIDTH, CUDA)
    seconds = [timed(ranker, model, "triton")[1] for _ in range(case.repeats)]
    p20, median, p80 = np.quantile(seconds, [0.2, 0.5, 0.8])
    few = Ranker(test[: case.checked], known, case.entities, CUDA)
    plain, _ = timed(few, model, "reference")
    plain_p20, plain_median, plain_p80 = np.quantile(
        [timed(few, model, "reference")[1] for _ in range(3)], [0.2, 0.5, 0.8]
    )
    wrong = sum(int((a[: case.checked] != b).sum()) for a, b in counts(ranks, plain))
    print(f"{name:18s} floor {case.flop / fma:.4f} s, ours {median:.4f} s [{p20:.4f}, {p80:.4f}] (first {first:.2f}), "
          f"{case.flop / median / 1e12:.1f} TFLOP/s; plain {plain_median:.3f} s "
          f"[{plain_p20:.3f}, {plain_p80:.3f}] for {case.checked:,} triples; "
          f"{wrong} of {4 * case.checked:,} counts differ; filters {made:.2f} s on the host; "
          f"{peak / 2**20:.0f} MiB, planned {planned / 2**20:.0f}; MRR {mrr(ranks):.6f}", flush=True)  # fmt: skip
    if name.startswith("round 1"):
        stacked(name, ranker, case)
    if record_it:
        record("gpu ranking", "counting kernels", name, Timing(median, p20, p80, case.repeats))
        some = f"{name}, {case.checked} triples"
        record("gpu ranking", "reference", some, Timing(plain_median, plain_p20, plain_p80, 3))


def stacked(name: str, ranker: Ranker, case: Case) -> None:
    """64 models one after the other, and read together."""
    models = [model_of(case, seed) for seed in range(64)]
    os.environ["GRASH_KERNELS"] = "triton"
    for _ in range(2):
        start = time.perf_counter()
        for model in models:
            ranker.rank(model)
        each = time.perf_counter() - start
        start = time.perf_counter()
        ranker.rank_many(models)
        together = time.perf_counter() - start
    print(f"{name:18s} 64 models: {each / 64 * 1e3:.3f} ms each, {together / 64 * 1e3:.3f} ms read together")


def check_trained(graph: str, models: Sequence[str], epochs: float, n: int, device: torch.device) -> None:
    """Trains one model after the other and ranks the first n test triples by both paths."""
    data = load_dataset(graph)
    training_data, test = TrainingData(data, device), data.test[:n]
    known = KnownAnswers.of(data.train, data.valid, data.test, n_relations=data.n_relations, asked=test)
    ranker = Ranker(test, known, data.n_entities, device)
    for name in models:
        model = trained(training_data, name, epochs)
        (ours, seconds), (plain, plain_seconds) = (timed(ranker, model, kernels) for kernels in ("triton", "reference"))
        found = differences(ranker, model, ours, plain)
        fine = sum(explained for _, explained in found)
        wrong = sum(int((a != b).sum()) for a, b in counts(ours, plain))
        print(f"{data.name} {name}, {epochs:g} epochs: {wrong} of {4 * len(test):,} counts differ, in {len(found)} "
              f"ranks, {fine} of them explained by candidates within {NEAR:g} of the truth's score; "
              f"MRR {mrr(ours):.8f} by the kernels in {seconds * 1e3:.1f} ms, "
              f"{mrr(plain):.8f} by the reference in {plain_seconds * 1e3:.1f} ms", flush=True)  # fmt: skip
        for line, explained in sorted(found, key=lambda each: each[1])[:5]:
            print(f"    {'explained' if explained else 'not explained'}: {line}")


def trained(training_data: TrainingData, name: str, epochs: float) -> KgeModel:
    model, norm = TRAINED[name]
    config = TrainConfig(
        model=model, norm=norm, dim=WIDTH, epochs=epochs, valid_every=epochs, patience=None, lr=0.1,
        negatives_head=500, negatives_tail=500,
    )  # fmt: skip
    [[(_, ended)]] = run_trainings(training_data, [Training(config, interval=False)])
    if isinstance(ended, Exception):
        raise ended
    return ended.model


def differences(ranker: Ranker, model: KgeModel, one: Ranks, other: Ranks) -> list[tuple[str, bool]]:
    """Of each rank whose counts differ: what they are, and whether both follow from how near candidates are."""
    found = []
    for side in SIDES:
        a, b = getattr(one, side), getattr(other, side)
        for row in np.flatnonzero((a.above != b.above) | (a.ties != b.ties)).tolist():
            above, near = around(ranker, model, side, row)
            explained = all(above <= s.above[row] and s.above[row] + s.ties[row] <= above + near for s in (a, b))
            seen = " and ".join(f"{s.above[row]} above, {s.ties[row]} ties" for s in (a, b))
            found.append(
                (f"{side} of {one.triples[row].tolist()}: {seen}; {above} clearly above, {near} near", explained)
            )
    return found


def around(ranker: Ranker, model: KgeModel, side: Side, row: int) -> tuple[int, int]:
    """How many candidates score above the truth by more than NEAR of its score, and how many are nearer."""
    (question,) = (queries for queries in ranker.queries if queries.side == side)
    part, runs = slice(row, row + 1), question.runs(row, row + 1)
    queries, seen = model.queries(question.known[part], question.relations[part], side)
    candidates = model.candidate(model.entity, seen)
    scores = exact_scores(queries.expand(len(candidates), -1), candidates, model.pair)
    truth = int(question.truth[row])
    gap, margin = scores - scores[truth], NEAR * scores[truth].abs()
    left_out = np.append(runs.answers[runs.first[0] : runs.last[0]], truth).astype(np.int64)
    gap[torch.from_numpy(left_out).to(gap.device)] = -torch.inf
    return int((gap > margin).sum()), int((gap.abs() <= margin).sum())


def timed(ranker: Ranker, model: KgeModel, kernels: str) -> tuple[Ranks, float]:
    os.environ["GRASH_KERNELS"] = kernels
    if ranker.device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    ranks = ranker.rank(model)
    seconds = time.perf_counter() - start
    os.environ.pop("GRASH_KERNELS")  # or what is trained next takes this path too
    return ranks, seconds


def counts(one: Ranks, other: Ranks) -> list[tuple[np.ndarray, np.ndarray]]:
    sides = ((one.head, other.head), (one.tail, other.tail))
    return [pair for a, b in sides for pair in ((a.above, b.above), (a.ties, b.ties))]


def model_of(case: Case, seed: int = 0) -> KgeModel:
    generator = torch.Generator(device=CUDA).manual_seed(seed)
    shapes = (case.entities, WIDTH), (case.relations, MODELS[case.model].relation_width(WIDTH))
    if case.values == "integers":
        tables = [torch.randint(-3, 4, s, generator=generator, device=CUDA).float() for s in shapes]
    else:
        tables = [torch.randn(s, generator=generator, device=CUDA) for s in shapes]
    return MODELS[case.model](*tables, norm=case.norm)


def questions(case: Case, packed: Path | None) -> tuple[np.ndarray, KnownAnswers]:
    if packed is not None:
        content = np.load(packed)
        head, tail = (_unpacked(content, side, case.relations) for side in ("head", "tail"))
        return content["test"], KnownAnswers(head, tail)
    rng = np.random.default_rng(0)
    n = max(10 * case.triples, 2 * case.entities)
    heads, tails = ((case.entities * rng.random(n) ** 3).astype(np.int32) for _ in range(2))
    triples = np.stack([heads, rng.integers(0, case.relations, n, dtype=np.int32), tails], 1)
    test = triples[: case.triples]
    return test, KnownAnswers.of(triples, n_relations=case.relations, asked=test)


def pack(train: np.ndarray, valid: np.ndarray, test: np.ndarray, n_relations: int, file: Path) -> None:
    """Writes the test triples and their known answers, as differences byte by byte: what a GPU machine needs of a
    graph to rank on it."""
    known = KnownAnswers.of(train, valid, test, n_relations=n_relations, asked=test)
    content = {"test": test}
    for side, index in (("head", known.head), ("tail", known.tail)):
        deltas = np.diff(index.answers, prepend=0)
        deltas[index.starts[:-1]] = index.answers[index.starts[:-1]]
        bytes_ = np.ascontiguousarray(deltas.astype(np.uint32).view(np.uint8).reshape(-1, 4).T)
        content |= {f"{side}_keys": index.keys, f"{side}_starts": index.starts, f"{side}_deltas": bytes_}
    np.savez_compressed(file, **content)


def _unpacked(content: dict[str, np.ndarray], side: str, n_relations: int) -> AnswerIndex:
    keys, starts = content[f"{side}_keys"], content[f"{side}_starts"]
    deltas = np.ascontiguousarray(content[f"{side}_deltas"].T).view(np.uint32).reshape(-1).astype(np.int64)
    sums = np.cumsum(deltas)
    before = np.where(starts[:-1] > 0, sums[starts[:-1] - 1], 0)
    return AnswerIndex(keys, starts, (sums - np.repeat(before, np.diff(starts))).astype(np.int32), n_relations)


def ceilings() -> tuple[float, float, float]:
    """FLOP/s of multiply-adds alone, FLOP/s of a float32 product, bytes read and written per second of a copy."""
    out, turns, blocks = torch.zeros(132 * 64 * 1024, device=CUDA), 4096, 132 * 64
    fma = 2.0 * 1024 * 8 * turns * blocks / _seconds(lambda: _multiply_add[(blocks,)](out, turns, num_warps=8))
    torch.backends.cuda.matmul.allow_tf32 = False
    a, b = torch.randn(10_000, WIDTH, device=CUDA), torch.randn(65_536, WIDTH, device=CUDA)
    scores = torch.empty(10_000, 65_536, device=CUDA)
    product = 2.0 * scores.numel() * WIDTH / _seconds(lambda: torch.mm(a, b.T, out=scores))
    x = torch.randn(1 << 29, device=CUDA)
    y = torch.empty_like(x)
    return fma, product, 2 * x.nbytes / _seconds(lambda: y.copy_(x))


@triton.jit
def _multiply_add(out, turns):
    i = tl.program_id(0) * 1024 + tl.arange(0, 1024)
    x = tl.load(out + i)
    a, b, c, d = x, x + 1, x + 2, x + 3
    e, f, g, h = x + 4, x + 5, x + 6, x + 7
    for _ in range(turns):
        a, b, c, d = a * 0.5 + x, b * 0.5 + x, c * 0.5 + x, d * 0.5 + x
        e, f, g, h = e * 0.5 + x, f * 0.5 + x, g * 0.5 + x, h * 0.5 + x
    tl.store(out + i, ((a + b) + (c + d)) + ((e + f) + (g + h)))


def _seconds(call: Callable[[], object]) -> float:
    return device_timed(call, 5).median


if __name__ == "__main__":
    main()
