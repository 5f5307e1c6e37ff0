"""Measure filtered ranking of a test set on a CPU, both sides, and compare with PyKEEN's evaluator.

    python benchmarks/bench_ranking.py FB15K-237 [--threads 2] [--model MODEL_FOLDER]

One run measures the floor (only the score products, in our tiles), PyKEEN's RankBasedEvaluator (realistic ranks), and
ours, on three sets of embeddings: small integers (all ranks must be equal), random numbers, and trained ones (a model
folder, or ten epochs trained here). Where ranks differ, it checks that the scores of the candidates in between differ
from the score of the true answer by float32 rounding only.
"""

from __future__ import annotations

import argparse
import time
import warnings

import numpy as np
import torch

from grash.data.dataset import Dataset
from grash.data.known_answers import KnownAnswers
from grash.data.load import load_dataset
from grash.engines.trainer import run_training
from grash.evaluation.metrics import metrics_of
from grash.evaluation.ranking import Ranker, Ranks
from grash.kernels.pair_scores import pair_scores
from grash.models.base import KgeModel
from grash.models.complex import ComplEx
from grash.training.config import TrainConfig
from harness import Timing, record

DIM = 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--epochs", type=float, default=10)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    warnings.simplefilter("ignore")
    dataset = load_dataset(args.dataset)
    known = KnownAnswers.of(dataset.train, dataset.valid, dataset.test, n_relations=dataset.n_relations)
    integers = _integers(dataset)
    start = time.perf_counter()
    trained = run_training(dataset, TrainConfig(dim=DIM, epochs=args.epochs, valid_every=args.epochs)).model
    print(f"{dataset}; trained {args.epochs:g} epochs in {time.perf_counter() - start:.0f} s")
    for name, model in (("integers", integers), ("trained", trained)):
        compare(name, model, dataset, known)


def compare(name: str, model: KgeModel, dataset: Dataset, known: KnownAnswers) -> None:
    start = time.perf_counter()
    ranker = Ranker(dataset.test, known, dataset.n_entities, torch.device("cpu"))
    set_up = time.perf_counter() - start
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        ranks = ranker.rank(model)
        seconds.append(time.perf_counter() - start)
    ours = Timing(sorted(seconds)[1], min(seconds), max(seconds), 3)
    floor = _products(model, len(dataset.test))
    theirs, their_seconds, their_mrr = _pykeen(model, dataset)
    mine = metrics_of(ranks.head, ranks.tail)
    record("ranking", "ours", name, ours)
    record("ranking", "pykeen", name, Timing(their_seconds, their_seconds, their_seconds, 1))
    print(
        f"{name:9s} products {floor:.2f} s, ours {ours.median:.2f} s (+ {set_up:.2f} s set-up once), "
        f"PyKEEN {their_seconds:.2f} s = {their_seconds / (ours.median + set_up):.1f} × ours with set-up"
    )
    differ = _differences(ranks, theirs)
    print(
        f"          MRR ours {mine.mrr:.6f}, PyKEEN {their_mrr:.6f}; "
        f"{len(differ)} of {2 * len(dataset.test)} ranks differ"
    )
    if differ:
        worst = max(_gap(model, ranks.triples[i], side, abs(a - b)) for i, side, a, b in differ)
        print(f"          largest relative distance between the truth and a candidate that changes sides: {worst:.1e}")


def _integers(dataset: Dataset) -> KgeModel:
    generator = torch.Generator().manual_seed(0)
    draw = lambda n: torch.randint(-3, 4, (n, DIM), generator=generator).float()  # noqa: E731
    return ComplEx(draw(dataset.n_entities), draw(dataset.n_relations))


def _products(model: KgeModel, n: int) -> float:
    """Seconds of the bare score products, both sides, in tiles of 1024 × 2048."""
    queries = torch.randn(1024, model.dim)
    start = time.perf_counter()
    for _ in range(2 * -(-n // 1024)):
        for tile in model.entity.split(2048):
            pair_scores(queries, tile, "dot")
    return time.perf_counter() - start


def _pykeen(model: KgeModel, dataset: Dataset) -> tuple[dict[str, np.ndarray], float, float]:
    """PyKEEN's realistic ranks by side, the evaluator's seconds, its MRR."""
    from pykeen.evaluation import RankBasedEvaluator
    from pykeen.models import ComplEx as Peer
    from pykeen.triples import CoreTriplesFactory

    splits = [torch.from_numpy(np.array(dataset.split(s))).long() for s in ("train", "valid", "test")]
    factory = CoreTriplesFactory(splits[0], num_entities=dataset.n_entities, num_relations=dataset.n_relations)
    peer = Peer(triples_factory=factory, embedding_dim=DIM // 2)
    for module, table in (
        (peer.entity_representations[0], model.entity),
        (peer.relation_representations[0], model.relation),
    ):
        real, imaginary = table.chunk(2, 1)
        weight = module._embeddings.weight
        pairs = torch.stack([real, imaginary], -1)
        weight.data.copy_(pairs.reshape(weight.shape))
    evaluator = RankBasedEvaluator(filtered=True, clear_on_finalize=False)
    start = time.perf_counter()
    result = evaluator.evaluate(peer, splits[2], additional_filter_triples=splits[:2], batch_size=256, use_tqdm=False)
    seconds = time.perf_counter() - start
    ranks = {side: np.concatenate(evaluator.ranks[side, "realistic"]) for side in ("head", "tail")}
    return ranks, seconds, float(result.get_metric("both.realistic.inverse_harmonic_mean_rank"))


def _differences(ours: Ranks, theirs: dict[str, np.ndarray]) -> list[tuple[int, str, float, float]]:
    found = []
    for side in ("head", "tail"):
        mine = getattr(ours, side).mean
        for i in np.flatnonzero(mine != theirs[side]).tolist():
            found.append((i, side, float(mine[i]), float(theirs[side][i])))
    return found


def _gap(model: KgeModel, triple: np.ndarray, side: str, moved: float) -> float:
    """Relative distance of the ⌈moved⌉-th nearest candidate's exact score from the truth's."""
    h, r, t = (torch.tensor([int(x)]) for x in triple)
    known, answer = (h, t) if side == "tail" else (t, h)
    queries, seen = model.queries(known, r, side)  # type: ignore[arg-type]
    scores = pair_scores(queries.double(), model.candidate(model.entity, seen).double(), "dot")[0]
    distance = (scores - scores[answer]).abs().sort().values
    return float(distance[int(np.ceil(moved))] / scores.abs().max())


if __name__ == "__main__":
    main()
