"""Measure one training step on a CPU: ComplEx, d = 128, batch 1024, 500 + 500 shared negatives, softmax, Adagrad.

    python benchmarks/bench_step.py FB15K-237 [--threads 2]

FB15K-237: any source that grash reads. One run measures the floor (only the six matrix products of the step), the same
step with torch autograd and sparse embeddings, PyKEEN's sLCWA loop with as many negatives per positive, and ours.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F

from grash.data.dataset import Dataset
from grash.data.load import load_dataset
from grash.training.batches import Batches
from grash.training.checkpoint import TrainState
from grash.training.config import TrainConfig
from grash.training.initial import initial_model
from grash.training.loop import train_step
from harness import interleaved, record
from peers import pykeen_step

BATCH, NEGATIVES, DIM = 1024, 500, 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--together", type=int, default=20, help="steps of one variant in a row, as in training")
    parser.add_argument("--no-pykeen", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    dataset = load_dataset(args.dataset)
    calls = {"products": products(), "autograd": autograd_step(dataset), "ours": our_step(dataset)}
    timings = interleaved(calls, repeats=args.repeats, together=args.together)
    if not args.no_pykeen:
        sizes = dataset.n_entities, dataset.n_relations
        timings["pykeen"] = pykeen_step(dataset.train, *sizes, 2 * NEGATIVES, DIM, BATCH)
    ours = timings["ours"].median
    print(f"{dataset}, {args.threads} threads, {args.repeats} × {args.together} steps in turn")
    for name, timing in timings.items():
        record("step", name, f"B={BATCH} N={NEGATIVES}+{NEGATIVES} d={DIM}", timing)
        rate = BATCH / timing.median
        print(
            f"{name:10s} {timing.median * 1e3:9.2f} ms [{timing.p20 * 1e3:.2f}, {timing.p80 * 1e3:.2f}]"
            f"  {rate:10,.0f} triples/s  {timing.median / ours:8.2f} × ours"
        )


def products() -> Callable[[], object]:
    """Per side: queries × candidates, shares × candidates, sharesᵀ × queries."""
    queries, candidates = torch.randn(BATCH, DIM), torch.randn(NEGATIVES, DIM)
    shares = torch.randn(BATCH, NEGATIVES)

    def call() -> None:
        for _ in range(2):
            _ = queries @ candidates.T, shares @ candidates, shares.T @ queries

    return call


def our_step(dataset: Dataset) -> Callable[[], object]:
    config = TrainConfig(
        dim=DIM, batch_size=BATCH, negatives_head=NEGATIVES, negatives_tail=NEGATIVES, lr=0.1, epochs=1000
    )
    state = TrainState.fresh(initial_model(config, dataset.n_entities, dataset.n_relations), config)
    batches = Batches(dataset.train, dataset.n_entities, dataset.n_relations, config, torch.device("cpu"))
    return lambda: train_step(state, batches, config)


def autograd_step(dataset: Dataset) -> Callable[[], object]:
    """The same step as one writes it first: sparse embeddings, autograd, torch's Adagrad."""
    entity = torch.nn.Embedding(dataset.n_entities, DIM, sparse=True)
    relation = torch.nn.Embedding(dataset.n_relations, DIM, sparse=True)
    for table in (entity, relation):
        torch.nn.init.xavier_normal_(table.weight)
    optimizer = torch.optim.Adagrad([*entity.parameters(), *relation.parameters()], lr=0.1)
    train = torch.from_numpy(np.array(dataset.train)).long()
    order = torch.randperm(len(train))
    at = [0]

    def times(a: torch.Tensor, b: torch.Tensor, conjugate: bool) -> torch.Tensor:
        (ar, ai), (br, bi) = a.chunk(2, -1), b.chunk(2, -1)
        if conjugate:
            return torch.cat([ar * br + ai * bi, ai * br - ar * bi], -1)
        return torch.cat([ar * br - ai * bi, ar * bi + ai * br], -1)

    def call() -> None:
        at[0] = (at[0] + BATCH) % (len(train) - BATCH)
        heads, relations, tails = train[order[at[0] : at[0] + BATCH]].T
        optimizer.zero_grad()
        h, r, t = entity(heads), relation(relations), entity(tails)
        loss = 0.0
        for known, truth, answer, conjugate in ((h, t, tails, False), (t, h, heads, True)):
            queries = times(known, r, conjugate)
            drawn = torch.randperm(dataset.n_entities)[:NEGATIVES]
            negative = queries @ entity(drawn).T
            negative = negative.masked_fill(drawn == answer[:, None], -torch.inf)
            scores = torch.cat([(queries * truth).sum(-1, keepdim=True), negative], 1)
            loss = loss + F.cross_entropy(scores, torch.zeros(BATCH, dtype=torch.long))
        loss.backward()  # type: ignore[attr-defined]
        optimizer.step()

    return call


if __name__ == "__main__":
    main()
