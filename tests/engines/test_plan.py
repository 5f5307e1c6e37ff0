"""Which way trials are trained, as the plan of a search says it before anything runs."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engines.searches import shifts, small_search
from grash.engines.choose import trials_at_once
from grash.engines.plan import (
    _new_state,
    choose_implementation,
    implementation_sentence,
    largest_stack,
    probe_step,
    probe_validation,
)
from grash.engines.trainer import TrainingData
from grash.evaluation.ranking import Ranker, Ranks
from grash.training.config import TrainConfig, make_config
from grash.training.fused import work_bytes

CPU = torch.device("cpu")


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a card that serves softmax of any kind, and nothing else."""
    for module in ("plan", "trainer", "memory"):
        monkeypatch.setattr(f"grash.engines.{module}.uses_fused_step", lambda config, device: config.loss == "softmax")
    monkeypatch.setattr(
        "grash.engines.plan.why_not",
        lambda config, device: [] if config.loss == "softmax" else [f"loss={config.loss} is not softmax"],
    )


def config_of(number: int, **values: Any) -> TrainConfig:
    start = {"dim": 8, "batch_size": 64, "negatives_head": 10, "negatives_tail": 10 + number, "epochs": 1.0}
    return make_config({**start, "variation": number, **values})


@pytest.mark.slow
def test_a_plan_fits_a_terminal_and_ends_with_the_time_it_takes(tmp_path: Path) -> None:
    plan = small_search(tmp_path / "run").plan()
    heading, *rows = str(plan).splitlines()
    assert heading.split() == ["round", "trials", "entities", "triples", "epochs", "cost", "time"]
    assert all(len(line) <= 80 for line in (heading, *rows))
    assert re.fullmatch(r"about [\d.]+ m?s here: (\d trials at a time|one trial after another).*", rows[-1])
    longer = tuple(replace(r, seconds=100.0) for r in plan.rounds)
    plan = replace(plan, rounds=longer, final=None, at_once=2)
    halves = sum(100.0 * -(-r.n_trials // 2) / r.n_trials for r in longer)
    assert plan.seconds == 100.0 * len(longer) and plan.wall_seconds == halves + 4.0  # until workers have started
    assert "2 trials at a time" in str(plan)


def test_a_plan_on_a_machine_without_cuda_does_not_mention_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    plan = small_search(tmp_path / "run").plan(probe=False)
    for planned in plan.rounds:
        choice = planned.implementation
        assert (choice.fused, choice.unfused, choice.stack_size) == (0, planned.n_trials, 1)
    assert "time" not in str(plan).splitlines()[0] and ">time<" not in plan._repr_html_()  # without a probe
    for text in (str(plan), plan.details()):
        assert "cuda" not in text.lower() and "fused" not in text and " here: " not in text


def test_the_short_plan_shows_warnings_and_which_rounds_guard_rails_changed(tmp_path: Path) -> None:
    plan = small_search(tmp_path / "run").plan(probe=False)
    first = plan.rounds[0]
    notes = ("guard rail: 0.5 of the triples instead of 0.1", "warning: a trial sees only 0.20 epochs", "another note")
    plan = replace(plan, rounds=(replace(first, plan=replace(first.plan, notes=notes)),))
    lines = str(plan).splitlines()
    assert "guard rails enlarged the graph of round 1; `grash plan --verbose` shows why" in lines
    assert "round 1: warning: a trial sees only 0.20 epochs" in lines and "another note" not in str(plan)
    twice = replace(plan, rounds=(*plan.rounds, replace(first, plan=replace(first.plan, number=2, notes=notes))))
    assert "rounds 1, 2: warning: a trial sees only 0.20 epochs" in str(twice).splitlines()


def test_trials_run_at_the_same_time_only_in_worker_processes() -> None:
    assert trials_at_once("auto", "cpu", 3, threads=1) == 3
    assert trials_at_once("sequential", "cpu", 3, threads=1) == 1
    assert trials_at_once("ray", "auto", None, threads=1) == 1


@pytest.mark.parametrize(("slow", "n_steps"), [(-1.0, 1), (1e9, 3)])
def test_a_slow_first_step_is_not_repeated(monkeypatch: pytest.MonkeyPatch, slow: float, n_steps: int) -> None:
    made: list[Any] = []
    monkeypatch.setattr("grash.engines.plan._SLOW_SECONDS", slow)
    monkeypatch.setattr("grash.engines.plan._new_state", lambda *given: made.append(_new_state(*given)) or made[-1])
    assert probe_step(TrainingData(shifts(), CPU), [config_of(0)], 0.0) > 0
    assert made[0].step == n_steps


def test_reasons_are_counted(served: None) -> None:
    data = TrainingData(shifts(), CPU)
    configs = [config_of(i) for i in range(5)] + [config_of(i, loss=loss) for i, loss in ((5, "bce"), (6, "bce"))]
    choice = choose_implementation(data, [*configs, config_of(7, loss="margin")])
    assert (choice.fused, choice.unfused, choice.stack_size) == (5, 3, 5)
    assert choice.reasons == (("loss=bce is not softmax", 2), ("loss=margin is not softmax", 1))
    assert implementation_sentence(choice) == (
        "5 use the fused step, 5 together, 3 use the unfused implementation: loss=bce is not softmax (2); "
        "loss=margin is not softmax (1)"
    )


def test_a_stack_takes_its_tables_and_one_work_space(served: None) -> None:
    data = TrainingData(shifts(), CPU)
    configs = [config_of(i) for i in range(5)]
    plan = data.plan_memory(configs)
    one = data.plan_memory(configs[:1])
    assert plan.tables == 5 * one.tables and plan.optimizer == 5 * one.optimizer and plan.triples == one.triples
    assert plan.step == work_bytes(configs, *data.sizes) and plan.step_stays
    assert plan.device == plan.tables + plan.optimizer + plan.triples + plan.step + plan.ranking
    assert choose_implementation(data, configs).n_bytes == plan.device


def test_the_probe_measures_as_many_together_as_fit(served: None, monkeypatch: pytest.MonkeyPatch) -> None:
    data = TrainingData(shifts(), CPU)
    monkeypatch.setattr(
        "grash.engines.trainer.fits", lambda plan, device: plan.tables <= 2 * data.plan_memory([config_of(0)]).tables
    )
    assert [c.variation for c in largest_stack(data, [config_of(i) for i in range(5)])] == [4, 3]
    monkeypatch.setattr("grash.engines.plan._PROBE_SECONDS", 0.01)
    assert 0 < probe_step(data, [config_of(0), config_of(1)]) < 5
    assert 0 < probe_validation(data, config_of(0)) < 60


def test_the_time_of_a_validation_is_not_that_of_compiling_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a fresh machine a plan once predicted 664 s for 20."""
    now, takes, real = 0.0, iter([600.0, 2.0]), Ranker.rank

    def first_compiles(self: Ranker, *args: Any, **more: Any) -> Ranks:
        nonlocal now
        now += next(takes)
        return real(self, *args, **more)

    monkeypatch.setattr(Ranker, "rank", first_compiles)
    monkeypatch.setattr("grash.engines.plan.time", SimpleNamespace(monotonic=lambda: now))
    assert probe_validation(TrainingData(shifts(), CPU), config_of(0)) == 2.0 and next(takes, None) is None


@pytest.mark.slow
def test_a_plan_measures_each_graph_once_and_few_triples_of_a_large_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranked, real = [], Ranker.rank

    def counting(self: Ranker, *args: Any, **more: Any) -> Ranks:
        ranked.append((self.n_entities, len(self.triples)))
        return real(self, *args, **more)

    monkeypatch.setattr(Ranker, "rank", counting)
    monkeypatch.setattr("grash.engines.plan._PROBE_SCORES", 250)
    search = small_search(tmp_path / "run")
    plan = search.plan()
    graphs = {(r.plan.fractions, r.plan.n_entities) for r in plan.all_rounds}
    assert len(ranked) == 2 * len(graphs)  # twice each: the first one compiles
    assert all(n <= 1 + 250 // n_entities for n_entities, n in ranked)


@pytest.mark.slow
def test_a_plan_with_kernels_names_the_stacks_of_each_round(
    tmp_path: Path, served: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = small_search(tmp_path / "run", final_train=False)
    lines = search.plan(probe=False).details().splitlines()
    assert "round 1: 6 use the fused step, 6 together" in lines
    monkeypatch.setattr("grash.engines.plan._PROBE_SECONDS", 0.01)
    assert search.plan().seconds


def test_the_reference_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRASH_KERNELS", "reference")
    assert choose_implementation(TrainingData(shifts(), CPU), [config_of(0)]).reasons == (
        ("GRASH_KERNELS=reference", 1),
    )
