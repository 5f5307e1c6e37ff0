"""Train one model with several processes, on one machine or more, that torchrun started.

The command line calls it when it finds itself started by torchrun. The steps are those of `trainer.py`, for one
training; `training/distributed` has what each rank computes.

Ranks of answers: every process embeds a part of the queries and sends it to all, with the exact scores of the true
answers; each counts its own rows. Counts are integers decided by exact scores, so their sum over the processes equals
the count of one process.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grash import __version__
from grash.data.dataset import Dataset, SplitName
from grash.data.known_answers import KnownAnswers
from grash.engines.memory import check_memory, choose_device, free_disk, plan_memory
from grash.engines.trainer import TrainingData, checkpoint_fits, has_checkpoint, run_identity, warn_no_checkpoint
from grash.errors import ConfigError, Diverged, InputError, RankLost
from grash.evaluation.evaluate import check_sample, evaluation_of, sample_triples, select_triples
from grash.evaluation.metrics import Evaluation, mrr
from grash.evaluation.ranking import NOT_FINITE, Ranker, Ranks, SideQueries, default_work_bytes, is_finite, plan_tiles
from grash.files import repair_folder
from grash.kernels.count_above import CountBatch, count_above, exact_scores, largest_row
from grash.models import KgeModel, model_class
from grash.models.autograd import AutogradModel
from grash.models.store import check_model_folder
from grash.training.checkpoint import TrainState
from grash.training.config import TrainConfig
from grash.training.distributed.checkpoint import check_shared, fresh_shard, load_shard, save_model_shard, save_shard
from grash.training.distributed.communication import ProcessGroup, RowExchange, Shard, TorchProcessGroup
from grash.training.distributed.loop import train_distributed
from grash.training.loop import Progress, Training

log = logging.getLogger(__name__)

_TIMEOUT = timedelta(minutes=10)  # for a rank that is alive and does not answer
_NAMES = {"config": "its settings", "dataset": "its graph", "valid_sample": "--valid-sample"}


@dataclass(frozen=True)
class DistributedResult:
    """What a distributed training returns on every rank; the model is in its folder."""

    history: list[dict[str, Any]]
    evaluation: dict[str, Any]
    seconds: float


@contextmanager
def join_group(device: str) -> Iterator[tuple[ProcessGroup, torch.device]]:
    """Join the ranks that were started with this one; yield the group and this rank's device, its own GPU if
    there are GPUs."""
    import torch.distributed as distributed

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    own_device, shared = _rank_device(device, int(os.environ.get("LOCAL_RANK", rank)))
    if own_device.type == "cuda":
        torch.cuda.set_device(own_device)
    backend = "cpu:gloo,cuda:nccl" if own_device.type == "cuda" and not shared else "gloo"
    try:
        distributed.init_process_group(backend, timeout=_TIMEOUT)
    except (RuntimeError, ValueError) as error:
        address = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        raise RankLost(
            f"Rank {rank} of {size} could not join the others at {address} ({str(error).splitlines()[0]}): check that "
            f"every machine runs the same torchrun command and reaches that address."
        ) from error
    done = False
    try:
        with exit_on_sigterm(rank, size, RankLost.exit_code):
            yield TorchProcessGroup(via_host=own_device.type == "cuda" and shared), own_device
        done = True
    finally:
        if done or backend == "gloo":  # after an error NCCL might wait for the others
            distributed.destroy_process_group()


@torch.no_grad()
def run_distributed_training(
    dataset: Dataset,
    config: TrainConfig,
    group: ProcessGroup,
    device: torch.device,
    *,
    out: Path,
    checkpoint: Path,
    overwrite: bool = False,
    restart: bool = False,
    evaluate: bool = True,
    valid_sample: int | None = None,
    test_sample: int | None = None,
    watch: Callable[[Progress], None] | None = None,
    save_every_seconds: float = 120.0,
) -> DistributedResult:
    """Train on all ranks, test, and write the model folder. Every rank calls it with the same arguments.

    checkpoint: folder to resume from, written by any number of ranks; removed when the model is saved. restart: remove
    an existing checkpoint after all checks have passed. watch: called on rank 0.
    """
    if group.rank == 0:
        for folder in (checkpoint, out):
            repair_folder(folder)  # rank 0 may have been killed while it saved; the others wait for it below
    belongs_to = run_identity(dataset, config, valid_sample)
    others = {"--no-test": not evaluate, "--test-sample": test_sample, "--overwrite": overwrite, "grash": __version__}
    check_same_arguments({_NAMES[name]: value for name, value in belongs_to.items()} | others, group)
    if config.storage != "float32":
        raise ConfigError(
            f"storage={config.storage} can be trained in one process only: give storage=float32, or train without "
            f"torchrun."
        )
    if issubclass(model_class(config.model), AutogradModel):
        raise ConfigError(f"model={config.model} can be trained in one process only: train without torchrun.")
    check_model_folder(out, overwrite=overwrite)
    check_sample(test_sample)
    check_shared(out, group)
    shard = Shard(dataset.n_entities, group)
    data = TrainingData(dataset, device, valid_sample=valid_sample, seed=config.seed)
    plan = plan_memory(
        [config], shard.rows_per_rank, dataset.n_relations, len(dataset.train), device, n_valid=data.n_valid
    )
    check_memory(plan, config, device, n_ranks=n_ranks_on(device, group))
    group.barrier()  # no rank allocates before all have checked their memory
    if restart and group.rank == 0:
        shutil.rmtree(checkpoint, ignore_errors=True)
    group.barrier()  # no rank looks for a checkpoint before
    state = fresh_shard(config, dataset.n_relations, shard, device)
    if has_checkpoint(checkpoint):
        load_shard(state, checkpoint, belongs_to=belongs_to, shard=shard)
        log.info("resuming from %s at step %d", checkpoint, state.step)
    check_same_step(state.step, checkpoint, group)
    save = _saver(checkpoint, belongs_to, shard, group)
    validate = _validator(dataset, shard, group, device, valid_sample, config.seed)
    training = Training(config, watch=watch if group.rank == 0 else None)
    training = training.started(state, data.batches(config), validate, save)
    train_distributed(training, shard, save_every_seconds=save_every_seconds)
    evaluation: dict[str, Any] = {}
    if evaluate and len(dataset.test):
        tested = evaluate_distributed(state.model, dataset, shard, group, sample=test_sample, seed=config.seed)
        evaluation = tested.to_dict()
    history = [v.to_json() for v in state.history]
    about = {"config": config.model_dump(), "evaluation": evaluation, "history": history}
    save_model_shard(state.model, dataset, out, about=about, shard=shard, overwrite=overwrite)
    if group.rank == 0:
        shutil.rmtree(checkpoint, ignore_errors=True)
    return DistributedResult(history, evaluation, state.seconds)


def check_same_arguments(given: Mapping[str, Any], group: ProcessGroup) -> None:
    """Raise InputError if ranks differ in what they were given, by the names that users know. Ranks that differ would
    wait for each other, or train something else."""
    digests = [hashlib.sha256(json.dumps(value, sort_keys=True).encode()).digest() for value in given.values()]
    of_ranks = group.all_gather(torch.tensor([list(digest) for digest in digests], dtype=torch.uint8))
    differs = (of_ranks != of_ranks[0]).any(2)  # (ranks, names)
    ranks = differs.any(1).nonzero()[:, 0].tolist()
    if ranks:
        names = [name for name, other in zip(given, differs[ranks[0]].tolist()) if other]
        raise InputError(
            f"Rank {ranks[0]} differs from rank 0 in {', '.join(names)}: give every machine the same command, the same "
            f"graph and the same grash."
        )


def n_ranks_on(device: torch.device, group: ProcessGroup) -> int:
    """Return how many ranks of this machine use the device's memory; all of them use that of a CPU."""
    shared = device.type == "cpu" or group.via_host
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if shared else 1


def check_same_step(step: int, checkpoint: Path, group: ProcessGroup) -> None:
    """Raise InputError unless all ranks resume from the same checkpoint, or all start."""
    steps = group.all_gather(torch.tensor([step]))[:, 0].tolist()
    if len(set(steps)) > 1:
        rank = next(rank for rank, other in enumerate(steps) if other != steps[0])
        raise InputError(
            f"Not all ranks see {checkpoint}: rank 0 is at step {steps[0]:,} and rank {rank} at step "
            f"{steps[rank]:,}. Give a model folder on a disk that all of them share."
        )


@contextmanager
def exit_on_sigterm(rank: int, size: int, exit_code: int) -> Iterator[None]:
    """Inside, SIGTERM ends this process with a message on stderr and that code, even while it waits for other ranks.

    torchrun ends all ranks as soon as one has died. The main thread may then be in a call that never returns and runs
    no signal handler, so another thread listens to the pipe into which the interpreter writes signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    receiver, sender = socket.socketpair()
    sender.setblocking(False)
    message = (
        f"error: Rank {rank} of {size} received SIGTERM, as all ranks do when one of them or the launcher has ended. "
        f"The same command resumes from the last checkpoint, if there is one.\n"
    )
    threading.Thread(target=_exit_on_signal, args=(receiver, message.encode(), exit_code), daemon=True).start()
    previous_fd = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
    previous = signal.signal(signal.SIGTERM, lambda *_: None)  # without a handler nothing is written to the pipe
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
        signal.set_wakeup_fd(previous_fd)
        sender.close()


def _exit_on_signal(pipe: socket.socket, message: bytes, exit_code: int) -> None:
    with pipe:
        while numbers := pipe.recv(64):
            if signal.SIGTERM in numbers:
                os.write(2, message)
                os._exit(exit_code)


def _rank_device(name: str, local_rank: int) -> tuple[torch.device, bool]:
    """Return the device of a rank, and whether other ranks may use it, too."""
    if name in ("auto", "cuda") and torch.cuda.is_available():
        count = torch.cuda.device_count()
        if local_rank >= count:
            raise ConfigError(
                f"Rank {local_rank} of this machine has no GPU: there are {count}, one per rank. Start it with "
                f"--nproc-per-node {count}, or give --device cuda:0 to share one, or --device cpu."
            )
        return torch.device("cuda", local_rank), False
    return choose_device(name), True


def _saver(
    checkpoint: Path, belongs_to: dict[str, Any], shard: Shard, group: ProcessGroup
) -> Callable[[TrainState], None]:
    """Return the function that saves checkpoints, and warns once if the disk is too full."""
    warned = False

    def save(state: TrainState) -> None:
        nonlocal warned
        need, free = int(group.all_reduce(torch.tensor(state.nbytes))), free_disk(checkpoint) if group.rank == 0 else 0
        if not group.any(group.rank == 0 and not checkpoint_fits(need, free)):
            save_shard(state, checkpoint, belongs_to=belongs_to, shard=shard)
        elif not warned:
            warned = True
            warn_no_checkpoint(checkpoint, need, free)

    return save


def _validator(
    dataset: Dataset, shard: Shard, group: ProcessGroup, device: torch.device, sample: int | None, seed: int
) -> Callable[[KgeModel], float] | None:
    """Return the function that computes the filtered MRR of the valid split, as `trainer.Validator` does."""
    if not len(dataset.valid):
        return None
    triples = sample_triples(dataset.valid, sample, seed)
    known = KnownAnswers.of(dataset.train, dataset.valid, n_relations=dataset.n_relations, asked=triples)
    ranker = DistributedRanker(triples, known, shard, group, device)
    return lambda model: mrr(ranker.rank(model))


class DistributedRanker:
    """Ranks the same triples under several models; all processes call it together and get the same ranks."""

    def __init__(
        self, triples: NDArray[np.int32], known: KnownAnswers, shard: Shard, group: ProcessGroup, device: torch.device
    ) -> None:
        self.ranker = Ranker(triples, known, shard.n_rows, device)  # for its queries
        self.shard, self.group, self.device = shard, group, device

    @torch.no_grad()
    def rank(self, model: KgeModel) -> Ranks:
        """Return the ranks; the model holds the entity rows of this process, and all relations."""
        finite = is_finite(model)
        if self.group.any(not finite):
            raise Diverged("The rows of another process contain NaN or infinite numbers." if finite else NOT_FINITE)
        work_bytes = default_work_bytes(self.device)
        batch, tile = plan_tiles(len(self.ranker.triples), max(1, len(self.shard)), work_bytes)
        batch = int(self.group.all_gather(torch.tensor(batch)).min())
        return self.ranker.ranks_of([self._count(model, side, batch, tile) for side in self.ranker.queries])

    def _count(self, model: KgeModel, side: SideQueries, batch: int, tile: int) -> NDArray[np.int64]:
        """Return (2, B), above and ties, counted by all processes."""
        _, seen = model.asked(side.relations[:0], side.side)
        candidates = model.candidate(model.entity, seen)
        largest = self.group.all_gather(largest_row(candidates, model.pair)).max()
        counts = torch.zeros(2, len(side), dtype=torch.int64, device=self.device)
        for first in range(0, len(side), batch):
            rows = slice(first, min(first + batch, len(side)))
            queries, exact = self._queries(model, side, rows)
            some = CountBatch(queries, side.answers[rows], exact, side.runs(rows.start, rows.stop), counts[:, rows])
            count_above(some, candidates, model.pair, tile=tile, largest=largest, first=self.shard.first)
        return self.group.all_reduce(counts).cpu().numpy()

    def _queries(self, model: KgeModel, side: SideQueries, rows: slice) -> tuple[Tensor, Tensor]:
        """Return the queries (B, W) and the exact scores (B,) of their answers, each process computing a part."""
        group, size = self.group, rows.stop - rows.start
        ids = [group.split(ids[rows]) for ids in (side.known, side.answers)]
        fetched = RowExchange([torch.cat(pair) for pair in zip(*ids)], self.shard).fetch(model.entity)
        part = group.own_slice(size)
        known, answers = fetched.split([part.stop - part.start] * 2)
        relations, seen = model.asked(side.relations[rows][part], side.side)
        queries = model.query_to_rank(known, model.relation[relations], seen)
        exact = exact_scores(queries, model.candidate(answers, seen), model.pair)
        gathered = group.gather_slices(torch.cat([queries, exact[:, None]], 1), size)
        return gathered[:, :-1].contiguous(), gathered[:, -1].contiguous()


def evaluate_distributed(
    model: KgeModel, dataset: Dataset, shard: Shard, group: ProcessGroup, *, sample: int | None = None, seed: int = 0
) -> Evaluation:
    """Evaluate the test split like `evaluate`, by all processes together."""
    triples, n_unseen = select_triples(dataset, "test", sample, "keep", seed)
    names: tuple[SplitName, ...] = ("train", "valid", "test")
    known = KnownAnswers.of(*(dataset.split(n) for n in names), n_relations=dataset.n_relations, asked=triples)
    ranks = DistributedRanker(triples, known, shard, group, model.entity.device).rank(model)
    about: dict[str, Any] = {"n_unseen": n_unseen, "filter": names, "known": known}
    return evaluation_of(ranks, dataset, split="test", unseen="keep", **about, seed=seed)
