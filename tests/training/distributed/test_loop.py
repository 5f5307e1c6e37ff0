"""A distributed training: every optimizer ends as in one process, any number of ranks reads a checkpoint, and an error
on one rank is reported on all."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from grash.errors import Diverged, FormatError, InputError, OutputError
from grash.models.base import KgeModel
from grash.training.batches import Batches
from grash.training.checkpoint import TrainState, load_state, save_state, state_tensors
from grash.training.config import TrainConfig, make_config
from grash.training.distributed.checkpoint import fresh_shard, load_shard, save_shard
from grash.training.distributed.communication import ProcessGroup, Shard
from grash.training.distributed.loop import train_distributed
from grash.training.initial import initial_model
from grash.training.loop import Progress, Training
from oracles import random_triples
from training.distributed.thread_group import Threads, in_threads
from training.single import train

CPU = torch.device("cpu")
ENTITIES, RELATIONS = 23, 3
TRAIN = random_triples(0, 120, ENTITIES, RELATIONS)
SMALL = {"dim": 6, "batch_size": 16, "negatives_head": 5, "negatives_tail": 7, "epochs": 2.5, "valid_every": 0.5}
OWNER = {"config": {"dim": 6}}


def settings_of(**changes: Any) -> TrainConfig:
    return make_config({**SMALL, **changes})


def plain_state(config: TrainConfig) -> TrainState:
    return TrainState.fresh(initial_model(config, ENTITIES, RELATIONS), config)


def batches_of(config: TrainConfig) -> Batches:
    return Batches(TRAIN, ENTITIES, RELATIONS, config, CPU)


def metric(entity: Tensor) -> float:
    """Return a number that rises and falls while tables change."""
    return float(torch.sin(40 * entity.double()).mean())


def validate_shard(group: ProcessGroup, shard: Shard) -> Any:
    def validate(model: KgeModel) -> float:
        rows = model.entity.new_zeros(shard.rows_per_rank, model.dim)
        rows[: len(shard)] = model.entity
        return metric(group.all_gather(rows).flatten(0, 1)[:ENTITIES])

    return validate


def shards_of(size: int, config: TrainConfig, work: Any) -> list[Any]:
    """Return what `work(state, training, shard, group)` returns on each rank."""

    def begin(group: ProcessGroup) -> Any:
        shard = Shard(ENTITIES, group)
        state = fresh_shard(config, RELATIONS, shard, CPU)
        training = Training(config).started(state, batches_of(config), validate_shard(group, shard))
        return work(state, training, shard, group)

    return in_threads(size, begin)


@pytest.mark.parametrize("init", ["xavier_normal", "xavier_uniform", "normal", "uniform"])
@pytest.mark.parametrize("model", ["complex", "rotate"])
def test_ranks_start_with_the_rows_of_one_process(init: str, model: str) -> None:
    config = settings_of(init=init, model=model, reciprocal=True)
    wanted = initial_model(config, ENTITIES, RELATIONS)
    parts = shards_of(4, config, lambda state, *_: (state.model.entity, state.model.relation))
    entity = torch.cat([part[0] for part in parts])
    assert torch.equal(entity, wanted.entity)
    for _, relation in parts:
        assert torch.equal(relation, wanted.relation)


@pytest.mark.parametrize("optimizer", ["adagrad", "row_adagrad", "adam", "lazy_adam", "sgd"])
@pytest.mark.parametrize("training", ["negative_sampling", "1vsall", "kvsall"])
def test_every_optimizer_ends_as_in_one_process(optimizer: str, training: str) -> None:
    config = settings_of(optimizer=optimizer, training=training, lr=0.02, schedule="plateau", schedule_patience=0)
    plain = plain_state(config)
    train(plain, batches_of(config), config, validate=lambda model: metric(model.entity))

    def work(state: TrainState, training: Training, shard: Shard, group: ProcessGroup) -> TrainState:
        train_distributed(training, shard)
        return state

    states = shards_of(3, config, work)
    entity = torch.cat([state.model.entity for state in states])
    assert torch.allclose(entity, plain.model.entity, atol=2e-4)
    for state in states:
        assert torch.equal(state.model.relation, states[0].model.relation)
        assert [v.step for v in state.history] == [v.step for v in plain.history]
        assert [v.loss for v in state.history] == pytest.approx([v.loss for v in plain.history], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"model": "complex", "reciprocal": True, "relation_prediction": 0.5},
        {"model": "distmult", "training": "1vsall", "penalty": "n3", "penalty_entity": 0.1},
        {"model": "distmult", "negatives_shared": False, "dropout_entity": 0.2},
        {"model": "rotate", "loss": "self_adversarial", "margin": 3},
        {"model": "transe", "loss": "margin"},
        {"model": "transe", "norm": 2, "training": "kvsall"},
    ],
    ids=str,
)
def test_the_number_of_ranks_changes_no_bit_that_adagrad_could_make_large(changes: dict[str, Any]) -> None:
    """Adagrad's first update of a row is ±lr whatever the gradient: a flipped sign would be seen here as 0.2."""
    config = settings_of(epochs=6, lr=0.1, batch_size=24, **changes)

    def work(state: TrainState, training: Training, shard: Shard, group: ProcessGroup) -> Tensor:
        training.validate = None
        train_distributed(training, shard)
        return state.model.entity

    one, *others = (torch.cat(shards_of(size, config, work)) for size in (1, 2, 3, 5))
    for other in others:
        assert torch.allclose(other, one, atol=1e-6)


def test_patience_ends_all_ranks_at_once() -> None:
    config = settings_of(patience=1, epochs=40)

    def work(state: TrainState, training: Training, shard: Shard, group: ProcessGroup) -> int:
        training.validate = lambda _: -float(state.step)
        train_distributed(training, shard)
        return state.step

    steps = shards_of(3, config, work)
    assert len(set(steps)) == 1 and steps[0] < batches_of(config).plan.n_steps


@pytest.mark.parametrize("from_size", [0, 1, 2, 5])
def test_any_number_of_ranks_reads_a_checkpoint(tmp_path: Path, from_size: int) -> None:
    """0 is a training in one process, without ranks."""
    config = settings_of()
    first = tmp_path / "first"
    plain = plain_state(config)
    train(plain, batches_of(config), config, validate=lambda model: metric(model.entity))
    save_state(plain, first, belongs_to=OWNER)
    if from_size:

        def resave(state: TrainState, _: Training, shard: Shard, group: ProcessGroup) -> None:
            load_shard(state, first, belongs_to=OWNER, shard=shard)
            save_shard(state, tmp_path / "second", belongs_to=OWNER, shard=shard)

        shards_of(from_size, config, resave)
        first = tmp_path / "second"
        assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []
    for size in (1, 2, 4, 30):

        def load(state: TrainState, _: Training, shard: Shard, group: ProcessGroup) -> TrainState:
            load_shard(state, first, belongs_to=OWNER, shard=shard)  # noqa: B023
            return state

        states = shards_of(size, config, load)
        for name, wanted in state_tensors(plain).items():
            parts = [state_tensors(state)[name] for state in states]
            spread = name in ("entity", "best.entity", "entity.squares")
            assert torch.equal(torch.cat(parts) if spread else parts[-1], wanted), name
        assert states[-1].history == plain.history and states[-1].step == plain.step
        assert states[-1].plateau == plain.plateau and states[-1].first_loss == plain.first_loss
    again = plain_state(config)
    load_state(again, first, belongs_to=OWNER)
    assert all(torch.equal(t, state_tensors(again)[name]) for name, t in state_tensors(plain).items())


def test_a_run_that_was_stopped_and_saved_resumes_to_the_same_numbers(tmp_path: Path) -> None:
    config = settings_of(epochs=20, patience=None)

    def whole(state: TrainState, training: Training, shard: Shard, group: ProcessGroup) -> Tensor:
        train_distributed(training, shard)
        return state.model.entity

    def stopped(state: TrainState, training: Training, shard: Shard, group: ProcessGroup) -> None:
        def save(state: TrainState) -> None:
            save_shard(state, tmp_path / "c", belongs_to=OWNER, shard=shard)
            if state.step > 10:
                raise KeyboardInterrupt

        training.save = save
        with pytest.raises(KeyboardInterrupt):
            train_distributed(training, shard, save_every_seconds=0)

    def resumed(state: TrainState, training: Training, shard: Shard, group: ProcessGroup) -> Tensor:
        load_shard(state, tmp_path / "c", belongs_to=OWNER, shard=shard)
        assert 10 < state.step < training.batches.plan.n_steps
        train_distributed(training, shard)
        return state.model.entity

    wanted = torch.cat(shards_of(2, config, whole))
    shards_of(2, config, stopped)
    assert torch.equal(torch.cat(shards_of(2, config, resumed)), wanted)


def test_all_ranks_detect_divergence_at_the_same_step() -> None:
    config = settings_of(lr=1e30, optimizer="sgd")

    def work(state: TrainState, training: Training, shard: Shard, group: ProcessGroup) -> str:
        training.validate = None
        with pytest.raises(Diverged) as found:
            train_distributed(training, shard)
        return str(found.value)

    messages = shards_of(3, config, work)
    assert len(set(messages)) == 1 and "Training diverged at step" in messages[0]


def test_watchers_receive_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grash.training.distributed.loop._MOST_STEPS", 1)
    reports: list[Progress] = []

    def work(state: TrainState, training: Training, shard: Shard, group: ProcessGroup) -> None:
        training.watch = reports.append if group.rank == 0 else None
        train_distributed(training, shard)

    shards_of(2, settings_of(epochs=20, valid_every=20, patience=None), work)
    last, mrr = reports[-1], reports[-1].best_mrr
    assert len(reports) > 1 and last.step == last.n_steps == 160 and last.seconds_left == 0 and mrr is not None


def test_a_disk_that_cannot_be_written_is_reported_on_all_ranks(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    def work(state: TrainState, _: Training, shard: Shard, group: ProcessGroup) -> str:
        with pytest.raises(OutputError) as found:
            save_shard(state, tmp_path / "file" / "c", belongs_to=OWNER, shard=shard)
        return str(found.value)

    messages = shards_of(3, settings_of(), work)
    assert "could not be written" in messages[0] and "rank 0 cannot write there" in messages[2]


def test_a_full_disk_on_one_rank_keeps_the_checkpoint_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from grash.training.distributed import checkpoint

    config, write = settings_of(), checkpoint._write_rows

    def work(state: TrainState, _: Training, shard: Shard, group: ProcessGroup) -> str:
        save_shard(state, tmp_path / "c", belongs_to=OWNER, shard=shard)

        def no_room(file: Any, table: Tensor) -> None:
            if len(table) == 5:  # the last rank's rows
                raise OSError(28, "No space left on device")
            write(file, table)

        monkeypatch.setattr(checkpoint, "_write_rows", no_room)
        state.step = 7
        with pytest.raises(OutputError) as found:
            save_shard(state, tmp_path / "c", belongs_to=OWNER, shard=shard)
        return str(found.value)

    messages = shards_of(4, config, work)  # 6, 6, 6 and 5 rows
    assert "another rank could not write" in messages[0] and "No space left" in messages[3]
    state = plain_state(config)
    load_state(state, tmp_path / "c", belongs_to=OWNER)
    assert state.step == 0 and sorted(p.name for p in tmp_path.iterdir()) == ["c"]


def test_checkpoints_of_others_and_damaged_ones_are_refused(tmp_path: Path) -> None:
    config = settings_of()
    save_state(plain_state(config), tmp_path / "c", belongs_to=OWNER)
    shard = Shard(ENTITIES, Threads(1, 2, None))
    fresh = fresh_shard(config, RELATIONS, shard, CPU)
    with pytest.raises(InputError, match="dim: 6 there, 8 now"):
        load_shard(fresh, tmp_path / "c", belongs_to={"config": {"dim": 8}}, shard=shard)
    other = Shard(ENTITIES + 1, Threads(1, 2, None))
    with pytest.raises(FormatError, match="entity has 23 rows, expected 24"):
        load_shard(fresh_shard(config, RELATIONS, other, CPU), tmp_path / "c", belongs_to=OWNER, shard=other)
    content = bytearray((tmp_path / "c" / "tensors.safetensors").read_bytes())
    (tmp_path / "c" / "tensors.safetensors").write_bytes(content[:-40])
    with pytest.raises(FormatError, match="damaged checkpoint"):
        load_shard(fresh, tmp_path / "c", belongs_to=OWNER, shard=shard)


def test_the_end_is_saved_once_and_not_again_after_resuming_there(tmp_path: Path) -> None:
    config = settings_of()
    n_steps = batches_of(config).plan.n_steps

    def work(state: TrainState, training: Training, shard: Shard, group: ProcessGroup) -> tuple[list[int], Tensor]:
        saved = []

        def save(state: TrainState) -> None:
            saved.append(state.step)
            save_shard(state, tmp_path / "c", belongs_to=OWNER, shard=shard)

        training.save = save
        if (tmp_path / "c").is_dir():
            load_shard(state, tmp_path / "c", belongs_to=OWNER, shard=shard)
        group.barrier()
        train_distributed(training, shard)
        return saved, state.model.entity

    first, again = shards_of(2, config, work), shards_of(2, config, work)
    assert [steps for steps, _ in first] == [[n_steps]] * 2 and [steps for steps, _ in again] == [[]] * 2
    assert all(torch.equal(one, other) for (_, one), (_, other) in zip(first, again))


def test_ctrl_c_while_the_end_is_saved_reaches_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grash.training.distributed.loop._interrupts_noted", _pressed_at_the_end)
    config = settings_of(epochs=0.5)

    def work(state: TrainState, training: Training, shard: Shard, group: ProcessGroup) -> None:
        training.save = lambda _: setattr(_PRESSED[group.rank], "ctrl_c", group.rank == 1)
        with pytest.raises(KeyboardInterrupt):
            train_distributed(training, shard)

    shards_of(2, config, work)


_PRESSED: dict[int, Any] = {}


@contextmanager
def _pressed_at_the_end(agreement: Any) -> Iterator[None]:
    """Instead of a signal, which only a main thread has."""
    _PRESSED[agreement.group.rank] = agreement
    yield


def test_a_slow_checkpoint_is_reported_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("grash.training.distributed.loop._LONG_SAVE_SECONDS", 0.01)
    config = settings_of()

    def work(state: TrainState, training: Training, shard: Shard, group: ProcessGroup) -> None:
        training.save = lambda _: time.sleep(0.02)
        train_distributed(training, shard, save_every_seconds=0)

    shards_of(1, config, work)
    assert len([r for r in caplog.records if "torchrun kills ranks 30 s after Ctrl-C" in r.message]) == 1


def test_checkpoints_of_ranks_hold_the_interval_of_the_best_validation(tmp_path: Path) -> None:
    config = settings_of()

    def save(state: TrainState, _: Training, shard: Shard, group: ProcessGroup) -> None:
        state.interval = (0.25, 0.5)
        save_shard(state, tmp_path / "c", belongs_to=OWNER, shard=shard)

    def load(state: TrainState, _: Training, shard: Shard, group: ProcessGroup) -> Any:
        load_shard(state, tmp_path / "c", belongs_to=OWNER, shard=shard)
        return state.interval

    shards_of(2, config, save)
    assert shards_of(3, config, load) == [(0.25, 0.5)] * 3
