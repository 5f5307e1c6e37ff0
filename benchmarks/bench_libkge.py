"""Measure LibKGE beside grash and a floor, in one run: 500 + 500 shared negatives, 1vsAll, filtered ranking; ComplEx.

    python benchmarks/bench_libkge.py FB15K-237 --libkge FOLDER [--device cuda] [--steps 50] [--only NAME …]

FB15K-237: any source that grash reads. FOLDER: a checkout of github.com/uma-pi1/kge that runs with the installed torch.
Every variant of LibKGE that could be its fastest is measured: dense or sparse gradients, batches made by the process
itself or by workers, on a GPU also tf32 products. All do the same work as ours: batches of 1024, negatives shared by
the batch, without replacement and never the true answer, softmax, Adagrad; ranks of the same embeddings against all
entities, filtered by all splits. The floor is the products alone, in the precision of ours: six for a training step,
two for a batch of ranks. Variants take turns, each with so many steps (default: an epoch).
"""

from __future__ import annotations

import argparse
import itertools
import logging
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grash.data.dataset import Dataset
from grash.data.known_answers import KnownAnswers
from grash.data.load import load_dataset
from grash.evaluation.metrics import mrr
from grash.evaluation.ranking import Ranker
from grash.kernels.device import matmul_precision
from grash.models.base import KgeModel
from grash.training.batches import Batches
from grash.training.checkpoint import TrainState
from grash.training.config import TrainConfig
from grash.training.initial import initial_model
from grash.training.loop import Training, steps_for
from harness import Timing, device_name, record

BATCH, NEGATIVES = 1024, 500
DIM = {"negatives": 128, "1vsall": 512, "ranking": 128}
RANKED = 512  # questions of a side at a time, in the floor and in LibKGE's larger batches
Run = Callable[[], object]  # takes the steps of one turn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--libkge", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, help="training steps of a turn (default: an epoch)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", type=int, nargs="*", help="(default: 0 and 4 on a GPU, 0 on a CPU)")
    parser.add_argument("--only", nargs="*", default=list(DIM), choices=list(DIM), metavar="NAME")
    parser.add_argument("--record", action="store_true")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.INFO)
    sys.path.insert(0, str(args.libkge))
    dataset, device = load_dataset(args.dataset), torch.device(args.device)
    workers = args.workers or ([0, 4] if device.type == "cuda" else [0])
    print(f"{dataset}; {device_name()}, torch {torch.__version__}, numpy {np.__version__}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        peer = LibKGE(dataset, Path(folder), device)
        for task in args.only:
            if task == "ranking":
                measure(task, 1, args, rankings(dataset, peer, device, workers))
            else:
                steps = args.steps or -(-len(dataset.train) // BATCH)
                measure(task, steps, args, trainings(task, steps, dataset, peer, device, workers))


def measure(task: str, steps: int, args: argparse.Namespace, calls: Iterator[tuple[str, Run]]) -> None:
    """Time variants in turn; seconds are those of a step, or of the whole ranking. CPU seconds are of this process."""
    runs = dict(calls)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for _ in range(args.repeats):
        for name, run in runs.items():
            synchronize(args.device)
            start, worked = time.perf_counter(), time.process_time()
            run()
            synchronize(args.device)
            found[name].append(((time.perf_counter() - start) / steps, (time.process_time() - worked) / steps))
    median = {name: float(np.median([wall for wall, _ in values])) for name, values in found.items()}
    best = min((name for name in runs if name.startswith("LibKGE")), key=median.__getitem__, default="grash")
    for name, values in found.items():
        walls, worked = zip(*values)
        print(
            f"{task:9s} {'*' if name == best else ' '} {name:50s} {median[name] * 1e3:10.3f} ms "
            f"[{min(walls) * 1e3:.3f}, {max(walls) * 1e3:.3f}], CPU {np.median(worked) * 1e3:.3f} ms, "
            f"{median[name] / median['grash']:8.2f} x grash",
            flush=True,
        )
        if args.record:
            record(f"libkge {task}", name, f"d={DIM[task]}", Timing(median[name], min(walls), max(walls), len(walls)))


def trainings(
    task: str, steps: int, dataset: Dataset, peer: LibKGE, device: torch.device, workers: list[int]
) -> Iterator[tuple[str, Run]]:
    n_candidates = dataset.n_entities if task == "1vsall" else NEGATIVES
    yield "floor: products", products(steps, BATCH, n_candidates, DIM[task], device, trains=True)
    options: dict[str, Any] = {"train.batch_size": BATCH, "lookup_embedder.dim": DIM[task]}
    if task == "1vsall":
        options["train.type"] = "1vsAll"
    else:
        options |= {
            "train.type": "negative_sampling", "negative_sampling.num_samples.s": NEGATIVES,
            "negative_sampling.num_samples.o": NEGATIVES, "negative_sampling.shared": True,
            "negative_sampling.shared_type": "default", "negative_sampling.with_replacement": False,
            "negative_sampling.implementation": "batch",
        }  # fmt: skip
    for sparse, n in itertools.product((False,) if task == "1vsall" else (False, True), workers):
        variant = {"lookup_embedder.sparse": sparse, "train.num_workers": n, "train.pin_memory": n > 0}
        run = peer.training(steps, options | variant)
        name = f"LibKGE, {'sparse' if sparse else 'dense'} gradients, {n} workers"
        yield name, run
        if device.type == "cuda" and task == "1vsall":
            yield f"{name}, tf32", in_tf32(run)
    training = (
        {"training": "1vsall"} if task == "1vsall" else {"negatives_head": NEGATIVES, "negatives_tail": NEGATIVES}
    )
    config = TrainConfig(**training, dim=DIM[task], batch_size=BATCH, lr=0.1, epochs=10_000)
    yield "grash", our_training(config, steps, dataset, device)[0]


def rankings(dataset: Dataset, peer: LibKGE, device: torch.device, workers: list[int]) -> Iterator[tuple[str, Run]]:
    n_batches = -(-len(dataset.test) // RANKED)
    yield "floor: products", products(n_batches, RANKED, dataset.n_entities, DIM["ranking"], device, trains=False)
    config = TrainConfig(dim=DIM["ranking"], batch_size=BATCH, lr=0.1, negatives_head=500, negatives_tail=500)
    run, model = our_training(config, 500, dataset, device)
    run()
    for batch, n in itertools.product((100, RANKED), workers):
        ranking, their_mrr = peer.ranking(model, {"eval.batch_size": batch, "eval.num_workers": n})
        yield f"LibKGE, batches of {batch}, {n} workers", ranking
    splits = dataset.train, dataset.valid, dataset.test
    ranker = Ranker(dataset.test, KnownAnswers.of(*splits, n_relations=dataset.n_relations), dataset.n_entities, device)
    print(f"ranking   MRR of the same embeddings: LibKGE {their_mrr:.6f}, grash {mrr(ranker.rank(model)):.6f}")
    yield "grash", lambda: ranker.rank(model)


def products(times: int, batch: int, n: int, dim: int, device: torch.device, *, trains: bool) -> Run:
    """Queries × candidates of both sides; in training also weights × candidates and weightsᵀ × queries."""
    kind = torch.bfloat16 if trains and device.type == "cuda" else torch.float32
    queries, candidates, weights = (
        torch.randn(shape, device=device, dtype=kind) for shape in ((batch, dim), (n, dim), (batch, n))
    )
    scores, for_queries, for_candidates = (torch.empty_like(x) for x in (weights, queries, candidates))

    def run() -> None:
        for _ in range(2 * times):
            torch.mm(queries, candidates.T, out=scores)
            if trains:
                torch.mm(weights, candidates, out=for_queries)
                torch.mm(weights.T, queries, out=for_candidates)

    run()
    return run


def our_training(config: TrainConfig, steps: int, dataset: Dataset, device: torch.device) -> tuple[Run, KgeModel]:
    sizes = dataset.n_entities, dataset.n_relations
    state = TrainState.fresh(initial_model(config, *sizes, device=device), config)
    taken = steps_for([Training(config).started(state, Batches(dataset.train, *sizes, config, device))])

    def run() -> None:
        with torch.no_grad(), matmul_precision(config.precision):
            stop = state.step + steps
            while state.step < stop:
                taken.advance(stop)

    run()
    return run, state.model


def in_tf32(run: Run) -> Run:
    def call() -> None:
        torch.set_float32_matmul_precision("high")
        run()
        torch.set_float32_matmul_precision("highest")

    return call


class LibKGE:
    """Jobs of LibKGE on the dataset. What it reads and writes is in `folder`."""

    def __init__(self, dataset: Dataset, folder: Path, device: torch.device) -> None:
        self.folder, self.device, self.numbers = folder, device, itertools.count()
        self._write(dataset)

    def training(self, steps: int, options: dict[str, Any]) -> Run:
        """Return a call of so many steps; ten were taken before."""
        from kge.job import Job

        config = self._config({"job.type": "train", "train.loss": "kl", **options})
        job = Job.create(config, self._dataset(config))
        job._prepare()
        loader, job.epoch = job.loader, 0

        def run(n: int = steps) -> None:
            job.loader = loader if n >= len(loader) else FirstBatches(loader, n)
            job.epoch += 1
            with torch.enable_grad():
                job.run_epoch()

        run(10)
        return run

    def ranking(self, model: KgeModel, options: dict[str, Any]) -> tuple[Run, float]:
        """Return a call that ranks the test split with the embeddings of the model, and the MRR that it finds. Its
        indexes are built before."""
        from kge.job import EvaluationJob
        from kge.model import KgeModel as TheirModel

        config = self._config({"job.type": "eval", "eval.split": "test", "lookup_embedder.dim": model.dim, **options})
        config.set("entity_ranking.filter_splits", ["train", "valid", "test"])
        # Equal scores are ties, no others, as in grash. On a GPU its two ways to score a triple differ in the last
        # bits, and ranks would be out of range, so it keeps its own tolerances there.
        for tolerance in ("atol", "rtol") if self.device.type == "cpu" else ():
            config.set(f"entity_ranking.tie_handling.{tolerance}", "0.0")
        dataset = self._dataset(config)
        theirs = TheirModel.create(config, dataset).eval()
        for embedder, table in ((theirs.get_s_embedder(), model.entity), (theirs.get_p_embedder(), model.relation)):
            embedder._embeddings.weight.data.copy_(table)
        job = EvaluationJob.create(config, dataset, model=theirs)
        return job.run, float(job.run()["mean_reciprocal_rank_filtered"])

    def _config(self, options: dict[str, Any]) -> Any:
        from kge import Config

        config = Config()
        config.folder = str(self.folder / f"job{next(self.numbers)}")
        config.set("model", "complex")
        config._import("complex")
        fixed: dict[str, Any] = {
            "job.device": str(self.device), "console.quiet": True, "dataset.name": "peer", "dataset.pickle": False,
            "train.optimizer.default.type": "Adagrad", "train.optimizer.default.args.lr": 0.1,
            "lookup_embedder.regularize": "",
        }  # fmt: skip
        for key, value in {**fixed, **options}.items():
            config.set(key, value, create=True)
        config.init_folder()
        return config

    def _dataset(self, config: Any) -> Any:
        from kge import Dataset as TheirDataset

        return TheirDataset.create(config, folder=str(self.folder))

    def _write(self, dataset: Dataset) -> None:
        """Write the folder that LibKGE reads. Entities and relations are called by their ids."""
        lines = ["dataset:", "  name: peer"]
        for split in ("train", "valid", "test"):
            np.savetxt(self.folder / f"{split}.del", dataset.split(split), fmt="%d", delimiter="\t")
            lines += [f"  files.{split}.filename: {split}.del", f"  files.{split}.type: triples"]
        for kind, n in (("entity", dataset.n_entities), ("relation", dataset.n_relations)):
            (self.folder / f"{kind}_ids.del").write_text("".join(f"{i}\t{i}\n" for i in range(n)))
            lines += [f"  files.{kind}_ids.filename: {kind}_ids.del", f"  files.{kind}_ids.type: map"]
        (self.folder / "dataset.yaml").write_text("\n".join(lines) + "\n")


class FirstBatches:
    """The first n batches of a loader."""

    def __init__(self, loader: Any, n: int) -> None:
        self.loader, self.n = loader, n

    def __len__(self) -> int:
        return self.n

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return itertools.islice(iter(self.loader), self.n)


def synchronize(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
