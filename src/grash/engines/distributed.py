"""One model trained by several processes, on one machine or more, that torchrun started: join, train, test, save.

Comes from the command line, when it finds itself launched so; what the ranks do is in `training/sharded_*`. The same
steps as `run`, for one training.
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
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from grash import __version__
from grash.data.dataset import Dataset
from grash.data.known_answers import KnownAnswers
from grash.engines.device import choose_device
from grash.engines.memory import MemoryPlan, check_memory, free_disk, plan_memory
from grash.engines.trainer import TrainingData, checkpoint_fits, run_identity, warn_no_checkpoint
from grash.errors import ConfigError, InputError
from grash.evaluation.distributed import DistributedRanker, evaluate_distributed
from grash.evaluation.evaluate import check_sample, sample_triples
from grash.evaluation.metrics import mrr
from grash.files import repair_folder
from grash.models import KgeModel
from grash.models.store import check_model_folder
from grash.training.checkpoint import TrainState
from grash.training.config import TrainConfig
from grash.training.distributed.checkpoint import check_shared, fresh_shard, load_shard, save_model_shard, save_shard
from grash.training.distributed.communication import ProcessGroup, RankLost, TorchProcessGroup
from grash.training.distributed.loop import train_distributed
from grash.training.distributed.tables import Shard
from grash.training.loop import Progress, Training

log = logging.getLogger(__name__)


_PATIENCE = timedelta(minutes=10)  # with a rank that is alive and says nothing
_NAMES = {"config": "its settings", "dataset": "its graph", "valid_sample": "--valid-sample"}


@dataclass(frozen=True)
class Finished:
    """What a distributed training leaves on every rank: the model itself lies in its folder."""

    history: list[dict[str, Any]]
    evaluation: dict[str, Any]
    seconds: float


@contextmanager
def joined(device: str) -> Iterator[tuple[ProcessGroup, torch.device]]:
    """Joins the ranks that were started with this one; this rank's device, its own card if there are cards."""
    import torch.distributed as distributed

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    where, shared = _device(device, int(os.environ.get("LOCAL_RANK", rank)))
    if where.type == "cuda":
        torch.cuda.set_device(where)
    backend = "cpu:gloo,cuda:nccl" if where.type == "cuda" and not shared else "gloo"
    try:
        distributed.init_process_group(backend, timeout=_PATIENCE)
    except (RuntimeError, ValueError) as error:
        address = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        raise RankLost(
            f"Rank {rank} of {size} could not join the others at {address} ({str(error).splitlines()[0]}): check that "
            f"every machine runs the same torchrun command and reaches that address."
        ) from error
    done = False
    try:
        with farewell(rank, size, RankLost.exit_code):
            yield TorchProcessGroup(via_host=where.type == "cuda" and shared), where
        done = True
    finally:
        if done or backend == "gloo":  # after an error NCCL might wait for the others
            distributed.destroy_process_group()


def _device(name: str, local_rank: int) -> tuple[torch.device, bool]:
    """The device of a rank, and whether it is one that the others were given too."""
    if name in ("auto", "cuda") and torch.cuda.is_available():
        count = torch.cuda.device_count()
        if local_rank >= count:
            raise ConfigError(
                f"Rank {local_rank} of this machine has no card of its own, since there are {count}: start it with "
                f"--nproc-per-node {count}, or give --device cuda:0 to share one, or --device cpu."
            )
        return torch.device("cuda", local_rank), False
    return choose_device(name), True


@torch.no_grad()
def train_together(
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
) -> Finished:
    """Trains on all ranks, tests and writes the model folder; every rank calls it with the same arguments.

    checkpoint: as in `run.Training`, of any number of ranks; it goes when the model is saved. restart: what is there goes
    too, once nothing can be refused any more. watch is told by rank 0."""
    if group.rank == 0:
        for folder in (checkpoint, out):
            repair_folder(folder)  # a rank 0 that was killed while it saved; the others wait for this one below
    belongs_to = run_identity(dataset, config, valid_sample)
    others = {"--no-test": not evaluate, "--test-sample": test_sample, "--overwrite": overwrite, "grash": __version__}
    check_alike({_NAMES[name]: value for name, value in belongs_to.items()} | others, group)
    _check_storage(config)
    check_model_folder(out, overwrite=overwrite)
    check_sample(test_sample)
    check_shared(out, group)
    shard = Shard(dataset.n_entities, group)
    data = TrainingData(dataset, device, valid_sample=valid_sample, seed=config.seed)
    plan = plan_memory(
        [config], shard.rows_per_rank, dataset.n_relations, len(dataset.train), device, n_valid=data.n_valid
    )
    check_memory_of_ranks(plan, config, device, group)
    if restart and group.rank == 0:
        shutil.rmtree(checkpoint, ignore_errors=True)
    group.barrier()  # nobody looks for a checkpoint before
    state = _state(config, dataset, shard, device, checkpoint, belongs_to)
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
    history = [asdict(v) for v in state.history]
    about = {"config": config.model_dump(), "evaluation": evaluation, "history": history}
    save_model_shard(state.model, dataset, out, about=about, shard=shard, overwrite=overwrite)
    if group.rank == 0:
        shutil.rmtree(checkpoint, ignore_errors=True)
    return Finished(history, evaluation, state.seconds)


def _check_storage(config: TrainConfig) -> None:
    if config.storage != "float32":
        raise ConfigError(
            f"storage={config.storage} trains in one process, and this training is spread over several: give "
            f"storage=float32, or train without torchrun."
        )


def _state(
    config: TrainConfig,
    dataset: Dataset,
    shard: Shard,
    device: torch.device,
    checkpoint: Path,
    belongs_to: dict[str, Any],
) -> TrainState:
    """Fresh, or where the checkpoint stands."""
    state = fresh_shard(config, dataset.n_relations, shard, device)
    if (checkpoint / "state.json").is_file():
        load_shard(state, checkpoint, belongs_to=belongs_to, shard=shard)
        log.info("goes on from %s at step %d", checkpoint, state.step)
    elif checkpoint.is_file() or (checkpoint.is_dir() and any(checkpoint.iterdir())):
        raise InputError(f"{checkpoint} holds no checkpoint, so it is not overwritten: give another folder.")
    return state


def _saver(
    checkpoint: Path, belongs_to: dict[str, Any], shard: Shard, group: ProcessGroup
) -> Callable[[TrainState], None]:
    """A disk without room for the checkpoint does not end the training: it goes on without one, and says so once."""
    said = False

    def save(state: TrainState) -> None:
        nonlocal said
        need, free = int(group.all_reduce(torch.tensor(state.nbytes))), free_disk(checkpoint) if group.rank == 0 else 0
        if not group.any(group.rank == 0 and not checkpoint_fits(need, free)):
            save_shard(state, checkpoint, belongs_to=belongs_to, shard=shard)
        elif not said:
            said = True
            warn_no_checkpoint(checkpoint, need, free)

    return save


def _validator(
    dataset: Dataset, shard: Shard, group: ProcessGroup, device: torch.device, sample: int | None, seed: int
) -> Callable[[KgeModel], float] | None:
    """Filtered MRR on the valid split, as `data.Validator`."""
    if not len(dataset.valid):
        return None
    triples = sample_triples(dataset.valid, sample, seed)
    known = KnownAnswers.of(dataset.train, dataset.valid, n_relations=dataset.n_relations, asked=triples)
    ranker = DistributedRanker(triples, known, shard, group, device)
    return lambda model: mrr(ranker.rank(model))


# = What the ranks of one training make sure of together, before hours are spent: the same command, memory for all of
# = them, a disk that all see, the same checkpoint.
# =
# = Comes from `distributed`. Ranks that differ in any of it would wait for each other, or train something else.


def check_alike(given: Mapping[str, Any], group: ProcessGroup) -> None:
    """given: what all ranks must have been given alike, by the names that a person knows it by."""
    digests = [hashlib.sha256(json.dumps(value, sort_keys=True).encode()).digest() for value in given.values()]
    told = group.all_gather(torch.tensor([list(digest) for digest in digests], dtype=torch.uint8))
    differs = (told != told[0]).any(2)  # (ranks, names)
    ranks = differs.any(1).nonzero()[:, 0].tolist()
    if ranks:
        names = [name for name, other in zip(given, differs[ranks[0]].tolist()) if other]
        raise InputError(
            f"Rank {ranks[0]} differs from rank 0 in {', '.join(names)}: give every machine the same command, the same "
            f"graph and the same grash."
        )


def check_memory_of_ranks(plan: MemoryPlan, config: TrainConfig, device: torch.device, group: ProcessGroup) -> None:
    """`check_memory` for all ranks that take from the same memory; nobody allocates before all have looked."""
    check_memory(plan, config, device, n_ranks=ranks_on(device, group))
    group.barrier()


def ranks_on(device: torch.device, group: ProcessGroup) -> int:
    """How many ranks of this machine take from the device's memory: all of them from that of a CPU."""
    shared = device.type == "cpu" or group.via_host
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if shared else 1


def check_same_step(step: int, checkpoint: Path, group: ProcessGroup) -> None:
    """All ranks go on from the same checkpoint, or all begin."""
    steps = group.all_gather(torch.tensor([step]))[:, 0].tolist()
    if len(set(steps)) > 1:
        rank = next(rank for rank, other in enumerate(steps) if other != steps[0])
        raise InputError(
            f"Not all ranks see {checkpoint}: rank 0 stands at step {steps[0]:,} and rank {rank} at step "
            f"{steps[rank]:,}. Give a model folder on a disk that all of them share."
        )


# = A sentence and an exit code when a rank is told to end (SIGTERM), even while it waits for others.
# =
# = torchrun ends all ranks as soon as one has died. The main thread may then stand in a call that never comes back and
# = runs no signal handler, so a thread of its own listens to the pipe into which the interpreter writes signals.


@contextmanager
def farewell(rank: int, size: int, exit_code: int) -> Iterator[None]:
    """Inside, SIGTERM ends this process with a sentence on stderr and that code."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    here, there = socket.socketpair()
    there.setblocking(False)
    sentence = (
        f"error: Rank {rank} of {size} was told to end, as all are when one of them or the launcher has ended. "
        f"The same command goes on from its last checkpoint, if there is one.\n"
    )
    threading.Thread(target=_listen, args=(here, sentence.encode(), exit_code), daemon=True).start()
    before_fd = signal.set_wakeup_fd(there.fileno(), warn_on_full_buffer=False)
    before = signal.signal(signal.SIGTERM, lambda *_: None)  # without a handler nothing is written to the pipe
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.set_wakeup_fd(before_fd)
        there.close()


def _listen(pipe: socket.socket, sentence: bytes, exit_code: int) -> None:
    with pipe:
        while numbers := pipe.recv(64):
            if signal.SIGTERM in numbers:
                os.write(2, sentence)
                os._exit(exit_code)
