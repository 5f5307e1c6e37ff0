"""Trials trained together: which share a stack, what memory makes of it, and a whole search equal to `sequential`."""

from __future__ import annotations

import gc
import os
import signal
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from engines.searches import SPACE, bare, essence, shifts, small_search, state_of
from engines.storm import Life, storm
from engines.test_local_trial import quiet, task
from engines.test_processes import decisions, trials
from grash.api import search as api_search
from grash.engines import local as trial_module
from grash.engines import trainer as run_module
from grash.engines.choose import choose_engine
from grash.engines.driver import Driver
from grash.engines.local import LocalEngine, TrialRunner
from grash.engines.processes import ProcessEngine
from grash.engines.trainer import TrainingData, run_training, run_trainings
from grash.errors import ConfigError, Diverged
from grash.search.callbacks import OnChange
from grash.search.graphs import SearchGraphs
from grash.search.settings import make_settings
from grash.search.trial import TrialResult
from grash.training.checkpoint import TrainState
from grash.training.config import TrainConfig, make_config
from grash.training.loop import Monitor, Progress, Training, UnfusedSteps

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
WILD = {**SPACE, "lr": {"low": 0.05, "high": 1e30, "log": True}}


@pytest.fixture
def stacks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many trainings each stack of this test had."""
    sizes: list[int] = []
    real = run_module.train_stack

    def counted(trainings: Any, **more: Any) -> Any:
        sizes.append(len(trainings))
        return real(trainings, **more)

    monkeypatch.setattr(run_module, "train_stack", counted)
    return sizes


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_a_search_that_has_ended_leaves_no_graph_on_the_device(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[TrainingData]] = []

    def watched(*args: Any, **more: Any) -> TrainingData:
        data = TrainingData(*args, **more)
        made.append(weakref.ref(data))
        return data

    monkeypatch.setattr(trial_module, "TrainingData", watched)
    gc.disable()  # memory that waits for a collection is not free
    try:
        small_search(tmp_path / "run", engine=engine, final_train=False).run()
        left = [data() for data in made if data() is not None]
    finally:
        gc.enable()
    assert len(made) > 1 and not left


def test_a_stack_that_ends_as_time_is_over_is_recorded_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record_result = Driver.record_result

    def settled(self: Driver, result: TrialResult) -> None:
        record_result(self, result)
        self.deadline = 0.0

    monkeypatch.setattr(Driver, "record_result", settled)
    small_search(tmp_path / "run", engine="stacked").run(max_seconds=1000)
    assert sorted(state_of(tmp_path / "run").rounds[0].results) == [0, 1, 2, 3, 4, 5]


@pytest.mark.slow
def test_a_stack_without_memory_is_parted_by_the_steps_of_its_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One leaves the stack at step 10, and memory runs out at step 30."""
    monkeypatch.setattr(Monitor, "_save_interval", lambda self: 0.0)
    real, once = UnfusedSteps.advance, []

    def advance(self: UnfusedSteps, stop: int) -> Any:
        step = self.trainings[0].state.step
        if step == 10 and len(self.trainings) == 4:
            self.trainings[1].error = Diverged("Training diverged.")
        if step >= 12 and not once:
            once.append(step)
            raise MemoryError("out of memory")
        return real(self, stop)

    monkeypatch.setattr(UnfusedSteps, "advance", advance)
    jobs = [Training(config_of(i, epochs=6.0), tmp_path / str(i) / "checkpoint") for i in range(4)]
    ended = dict(pair for stack in run_trainings(TrainingData(shifts(), CPU), jobs) for pair in stack)
    assert once and all(isinstance(outcome, TrainState) for outcome in ended.values()), ended


def config_of(number: int, **values: Any) -> TrainConfig:
    start = {"dim": 8, "batch_size": 64, "negatives_head": 10, "negatives_tail": 10, "epochs": 1.5, "valid_every": 0.75}
    return make_config({**start, "variation": number, **values})


def run_all(configs: list[TrainConfig], **more: Any) -> dict[int, Any]:
    data = TrainingData(shifts(), CPU)
    jobs = [Training(config, **more) for config in configs]
    return {place: ended for stack in run_trainings(data, jobs) for place, ended in stack}


def equal(outcome: Any, config: TrainConfig) -> bool:
    straight = run_training(shifts(), config, device="cpu")
    tables = torch.equal(outcome.model.entity, straight.model.entity)
    rest = (outcome.history, outcome.best_validation, outcome.step)
    same_interval = outcome.interval == straight.interval or config.seed != 0  # drawn by the seed of the graph
    return tables and same_interval and rest == (straight.history, straight.best_validation, straight.step)


class TestWhoSharesAStack:
    def test_those_that_differ_in_numbers_only(self, stacks: list[int]) -> None:
        configs = [config_of(0), config_of(1, lr=0.3, negatives_tail=40), config_of(2, dropout_entity=0.2, patience=1)]
        found = run_all(configs)
        assert stacks == [3]
        assert all(equal(found[i], config) for i, config in enumerate(configs))

    @pytest.mark.parametrize(
        "other",
        [{"dim": 6}, {"batch_size": 32}, {"epochs": 2.0}, {"model": "distmult"}, {"seed": 1}, {"precision": "tf32"},
         {"optimizer": "row_adagrad"}, {"training": "1vsall"}, {"reciprocal": True}],
    )  # fmt: skip
    def test_not_those_of_another_shape_or_plan(self, stacks: list[int], other: dict[str, Any]) -> None:
        configs = [config_of(0), config_of(1, **other), config_of(2)]
        found = run_all(configs)
        assert stacks == [2, 1] and equal(found[1], configs[1]) and equal(found[2], configs[2])

    def test_not_those_that_stand_elsewhere(self, stacks: list[int], tmp_path: Path) -> None:
        jobs = [Training(config_of(i), checkpoint=tmp_path / str(i)) for i in range(3)]

        def stop(progress: Any) -> None:
            raise KeyboardInterrupt

        with pytest.MonkeyPatch.context() as patch:
            clock = iter(range(10**9))
            patch.setattr("grash.training.loop.time.monotonic", lambda: float(next(clock)))
            with pytest.raises(KeyboardInterrupt):
                list(run_trainings(TrainingData(shifts(), CPU), [Training(jobs[1].config, jobs[1].checkpoint, stop)]))
        stacks.clear()
        ended = dict(pair for stack in run_trainings(TrainingData(shifts(), CPU), jobs) for pair in stack)
        assert stacks == [2, 1] and all(equal(ended[i], job.config) for i, job in enumerate(jobs))


class TestMemory:
    def test_a_group_that_does_not_fit_is_split_evenly(
        self, stacks: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one = TrainingData(shifts(), CPU).plan_memory([config_of(0, negatives_tail=50)])
        both = TrainingData(shifts(), CPU).plan_memory([config_of(0, negatives_tail=50)] * 2)
        room = both.device + both.best_tables + (both.tables - one.tables)  # for two, and a little
        monkeypatch.setattr("grash.engines.memory.free_bytes", lambda device: room / 0.9)
        configs = [config_of(i, negatives_tail=10 * (i + 1)) for i in range(5)]
        found = run_all(configs)
        assert stacks == [2, 2, 1] and sorted(found) == [0, 1, 2, 3, 4]
        assert all(equal(found[i], config) for i, config in enumerate(configs))

    @pytest.mark.slow
    def test_a_stack_that_runs_out_of_memory_is_halved(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real, sizes = run_module.train_stack, []

        def narrow(trainings: Any, **more: Any) -> Any:
            sizes.append(len(trainings))
            if len(trainings) > 1:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            if trainings[0].config.variation == 1:
                raise MemoryError("not even one")
            return real(trainings, **more)

        monkeypatch.setattr(run_module, "train_stack", narrow)
        found = run_all([config_of(i) for i in range(3)])
        assert sizes == [3, 1, 2, 1, 1] and isinstance(found[1], MemoryError)
        assert equal(found[0], config_of(0)) and equal(found[2], config_of(2))

    def test_models_of_a_stack_are_gone_when_the_next_is_made(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real, alive, models = run_module._initial_state, [], []

        def counted(*given: Any) -> Any:
            alive.append(sum(model() is not None for model in models))
            state = real(*given)
            models.append(weakref.ref(state.model))
            return state

        monkeypatch.setattr(run_module, "_initial_state", counted)
        results = [
            r for some in runner_of(tmp_path).run_many([task(n, dim=4 + 2 * n) for n in range(3)], quiet) for r in some
        ]
        assert [r.status for r in results] == ["ok"] * 3 and alive == [0, 0, 0]

    def test_trials_of_different_shapes_are_planned_apart(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        planned: list[int] = []
        monkeypatch.setattr(trial_module, "fits", lambda plan, device: bool(planned.append(plan.tables)) or True)
        wide, narrow = [task(n, dim=40) for n in (1, 2)], [task(n, dim=4) for n in (3, 4)]
        assert runner_of(tmp_path).fits([narrow[0], *wide, narrow[1]]) and planned[1] == 10 * planned[0]

    def test_the_plan_counts_the_model_that_is_moved_in(self) -> None:
        data = TrainingData(shifts(), CPU)
        one, two = data.plan_memory([config_of(0)]), data.plan_memory([config_of(0)] * 2)
        assert (one.building, two.building) == (0, one.tables + one.optimizer)

    def test_the_engine_takes_as_many_as_fit(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        engine = LocalEngine(runner_of(tmp_path), stacked=True)
        monkeypatch.setattr(trial_module, "fits", lambda plan, device: plan.tables <= 3.5 * one_table)
        one_table = engine.runner._data_of(engine.runner.graphs.subgraph((0.5,))).plan_memory([config_of(0)]).tables
        taken = [engine.start(task(n)) for n in range(5)]
        assert taken == ["cpu"] * 3 + [None, None]
        assert [r.number for r in engine.wait(quiet)] == [0, 1, 2] and engine.wait(quiet) == []
        assert engine.start(task(3)) == "cpu" == engine.start(task(4, dim=10))
        assert [r.number for r in engine.wait(quiet)] == [3]
        assert engine.start(task(5)) is None  # those taken are under way
        assert [r.number for r in engine.wait(quiet)] == [4]


def runner_of(folder: Path) -> TrialRunner:
    return TrialRunner(SearchGraphs(shifts(), make_settings({"max_epochs": 5.0})), folder, device="cpu")


class TestTrials:
    def test_each_is_as_if_it_were_alone(self, tmp_path: Path, stacks: list[int]) -> None:
        tasks = [task(1), task(2, lr=1e25), task(3, dropout_entity=0.3), task(4, fractions=(0.8,)), task(5, dim=6)]
        results = [r for some in runner_of(tmp_path / "stacked").run_many(tasks, quiet) for r in some]
        assert stacks == [3, 1, 1] and [r.number for r in results] == [1, 2, 3, 5, 4]
        plain = runner_of(tmp_path / "plain")
        expected = {t.number: bare(plain.run(t, quiet)) for t in tasks}
        assert {r.number: bare(r) for r in results} == expected
        assert [r.status for r in results] == ["ok", "diverged", "ok", "ok", "ok"]
        assert not list(tmp_path.rglob("*.safetensors")) and results[0].seconds == results[2].seconds > 0

    def test_a_damaged_checkpoint_is_discarded_and_the_trial_trained_again(self, tmp_path: Path, caplog: Any) -> None:
        expected = [bare(r) for r in next(runner_of(tmp_path / "plain").run_many([task(n) for n in (1, 2, 3)], quiet))]
        place = tmp_path / task(2).folder / "checkpoint"
        place.mkdir(parents=True)
        (place / "state.json").write_text("{")
        [results] = runner_of(tmp_path).run_many([task(n) for n in (1, 2, 3)], quiet)
        assert [bare(r) for r in results] == expected
        assert "cfg-0002/checkpoint" in caplog.text and "the trial is trained again from its start" in caplog.text

    def test_a_time_limit_counts_each_trials_share(self, tmp_path: Path) -> None:
        runner = runner_of(tmp_path)
        runner.timeout = 0.2
        tasks = [task(n, epochs=4000.0, valid_every=4000.0) for n in range(4)]
        began = time.monotonic()
        results = [r for some in runner.run_many(tasks, quiet) for r in some]
        assert [r.status for r in results] == ["timeout"] * 4
        assert all(r.seconds >= 0.2 for r in results) and sum(r.seconds for r in results) <= time.monotonic() - began


@pytest.mark.slow
def test_two_interrupts_save_the_stack_and_the_search_goes_on(tmp_path: Path) -> None:
    long: dict[str, Any] = {"n_trials": 3, "eta": 3, "max_epochs": 60, "final_train": False}
    small_search(tmp_path / "plain" / "run", **long).run()
    sent: list[int] = []

    def watch(state: Any, progress: dict[tuple[int, int], Progress], *rest: Any) -> None:
        if progress and not sent:
            for _ in range(2):
                sent.append(1)
                os.kill(os.getpid(), signal.SIGINT)

    state = small_search(tmp_path / "run", engine="stacked", **long).run(callbacks=[OnChange(watch)]).state
    assert state.stopped == "interrupted" and not state.rounds[0].results
    assert len(list(tmp_path.glob("run/round-1/*/checkpoint/state.json"))) == 3
    small_search(tmp_path / "run", engine="stacked", **long).run()
    assert essence(tmp_path / "run") == essence(tmp_path / "plain" / "run")


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [{}, {"variant": "epoch"}, {"warm_start": "weights"}, {"space": WILD, "n_trials": 8}]
)
def test_a_search_is_that_of_sequential(tmp_path: Path, stacks: list[int], changes: dict[str, Any]) -> None:
    small_search(tmp_path / "plain" / "run", **changes).run()
    stacks.clear()
    small_search(tmp_path / "run", engine="stacked", **changes).run()
    assert max(stacks) > 2
    assert essence(tmp_path / "run") == essence(tmp_path / "plain" / "run")
    assert decisions(tmp_path / "run") == decisions(tmp_path / "plain" / "run")
    assert trials(tmp_path / "run") == trials(tmp_path / "plain" / "run")


@pytest.mark.slow
def test_a_search_of_stacks_that_is_killed_again_and_again_ends_as_if_nothing_had_been(
    tmp_path: Path, sequential: Any
) -> None:
    lives: list[Life] = [
        ("after", "trial_started", 2),
        ("step", "any", 5),
        ("renamed", "checkpoint", 4),
        ("renaming", "checkpoint", 9),
        ("before", "trial_ended", 1),
        ("torn", "trial_ended", 2),
        ("after", "trial_ended", 3),
        ("after", "round_closed", 1),
        ("step", "any", 7),
        ("renamed", "checkpoint", 5),
        ("after", "trial_ended", 1),
        ("after", "round_closed", 1),
        ("after", "winner_chosen", 1),
        ("renamed", "checkpoint", 6),
    ]
    codes = storm(tmp_path / "run", [*lives, None], engine="stacked")
    assert codes == [-9] * len(lives) + [0]
    found, expected = essence(tmp_path / "run"), essence(sequential())
    assert found.pop("spent") == pytest.approx(expected.pop("spent"), rel=1e-12)  # results came in another order
    assert found == expected


def test_one_card_gets_stacks_and_the_rest_what_they_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Runner:
        def __init__(self, *given: Any, device: str, **more: Any) -> None:
            self.device = device

    monkeypatch.setattr("grash.engines.choose.TrialRunner", Runner)
    monkeypatch.setattr(ProcessEngine, "__init__", lambda self, *given, **more: None)
    graphs = SearchGraphs(shifts(), make_settings({}))

    def chosen(devices: list[str], **more: Any) -> str:
        monkeypatch.setattr("grash.engines.choose.worker_devices", lambda *given, **more: devices)
        engine = choose_engine(more.pop("name", "auto"), graphs, tmp_path, **more)
        if isinstance(engine, ProcessEngine):
            return "processes"
        return "stacked" if engine.max_running > 1 else "sequential"

    assert chosen(["cuda:0"]) == "stacked" and chosen(["cuda:0"] * 3) == "stacked"
    assert chosen(["cuda:0"] * 3, workers=3) == "processes" and chosen(["cuda:0", "cuda:1"]) == "processes"
    assert chosen(["cpu"]) == "sequential" and chosen(["cpu"] * 2) == "processes"
    assert chosen(["cpu"] * 2, name="stacked") == "stacked"
    with pytest.raises(ConfigError, match="stacked uses one device"):
        chosen(["cuda:0", "cuda:1"], name="stacked")


def test_what_a_search_finds_can_be_told_by_anyone(tmp_path: Path) -> None:
    """An engine's results are records; the ledger of a stacked search replays as any other."""
    small_search(tmp_path / "run", engine="stacked", n_trials=4, final_train=False).run()
    state = state_of(tmp_path / "run")
    assert all(isinstance(r, TrialResult) and r.device == "cpu" for r in state.rounds[0].results.values())
    assert api_search.Search.open(tmp_path / "run").result.state.winner == state.winner
