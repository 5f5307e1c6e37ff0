"""One trial, from task to result: what it says when it goes well, and every way in which it does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engines.searches import bare, shifts
from grash.engines import local as trial_module
from grash.engines.local import LocalEngine, TrialRunner
from grash.engines.trainer import run_training
from grash.errors import Diverged, GrashError, MemoryPlanError, OutputError, is_memory_error
from grash.evaluation.evaluate import evaluate
from grash.models.store import load_model
from grash.search.graphs import SearchGraphs
from grash.search.settings import make_settings
from grash.search.trial import Trial, TrialResult
from grash.training.config import make_config
from grash.training.loop import Progress

CONFIG: dict[str, Any] = {
    "dim": 8, "batch_size": 64, "negatives_head": 10, "negatives_tail": 10, "epochs": 2.5, "valid_every": 1.25,
    "patience": None,
}  # fmt: skip


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def runner(tmp_path: Path) -> TrialRunner:
    return TrialRunner(SearchGraphs(shifts(), make_settings({"max_epochs": 5.0})), tmp_path, device="cpu")


def task(number: int = 3, *, final: bool = False, fractions: tuple[float, ...] = (0.5,), **values: Any) -> Trial:
    config = make_config({**CONFIG, "variation": number, **values})
    folder = "final" if final else f"round-1/cfg-{number:04}"
    return Trial(
        0 if final else 1, number, 1, config.model_dump(), () if final else fractions, folder=folder, final=final
    )


def quiet(trial: Trial, progress: Progress) -> None:
    pass


def test_a_trial_is_validated_on_what_its_round_holds_out(runner: TrialRunner) -> None:
    usual, apart = (replace(task(), isolated=a) for a in (False, True))
    results = [result for some in runner.run_many([usual, apart], quiet) for result in some]
    assert [r.status for r in results] == ["ok", "ok"] and results[0].mrr != results[1].mrr
    alone = [TrialRunner(runner.graphs, runner.folder, device="cpu").run(one, quiet) for one in (apart, usual)]
    assert [r.mrr for r in alone] == [results[1].mrr, results[0].mrr]
    held_out = [runner.graphs.subgraph((0.5,), one.isolated).dataset.valid for one in (usual, apart)]
    assert {tuple(row) for row in held_out[0].tolist()} != {tuple(row) for row in held_out[1].tolist()}


def test_a_trial_says_what_it_found_saw_and_cost(runner: TrialRunner, tmp_path: Path) -> None:
    result = runner.run(task(), quiet)
    graph = runner.graphs.subgraph((0.5,)).dataset
    assert (result.status, result.round, result.number, result.attempt, result.device) == ("ok", 1, 3, 1, "cpu")
    assert [v["epoch"] for v in result.history] == pytest.approx([1.25, 2.5], abs=64 / len(graph.train))
    assert result.mrr == max(v["mrr"] for v in result.history)
    assert result.interval is not None and result.interval[0] < result.mrr < result.interval[1]
    assert result.positives == round(2.5 * len(graph.train))
    assert result.cost == pytest.approx(result.positives / (5 * len(shifts().train)))
    assert result.scores == result.positives * (10 + 1 + 10 + 1) * 8
    assert result.seconds > 0 and result.peak_bytes > 1 << 20 and result.evaluation is None
    assert TrialResult.from_json(result.to_json()) == result
    assert list(tmp_path.iterdir()) in ([], [tmp_path / "round-1"]) and not list(tmp_path.rglob("*.safetensors"))


def test_a_trial_does_not_depend_on_those_before_it(runner: TrialRunner, tmp_path: Path) -> None:
    tasks = [task(1), task(2, lr=0.3), task(3, fractions=(0.8,)), task(4, dropout_entity=0.2)]
    forwards = {t.number: bare(runner.run(t, quiet)) for t in tasks}
    other = TrialRunner(runner.graphs, tmp_path / "other", device="cpu")
    assert {t.number: bare(other.run(t, quiet)) for t in reversed(tasks)} == forwards
    assert len({r["mrr"] for r in forwards.values()}) == 4


def test_a_score_is_the_filtered_mrr_on_the_subgraphs_own_validation_triples(runner: TrialRunner) -> None:
    graph = runner.graphs.subgraph((0.5,))
    keys = (torch.from_numpy(graph.entity_ids).long(), torch.from_numpy(graph.relation_ids).long())
    outcome = run_training(graph.dataset, make_config(task().config), device="cpu", threads=1, keys=keys)
    found = evaluate(outcome.model, graph.dataset, split="valid")
    assert runner.run(task(), quiet).mrr == pytest.approx(found.both.mrr, rel=1e-12)


def test_the_final_training_saves_the_model_and_is_tested_once(runner: TrialRunner, tmp_path: Path) -> None:
    result = runner.run(replace(task(final=True), billed=False), quiet)
    stored = load_model(tmp_path / "model")
    assert result.status == "ok" and result.cost == 0.0 and result.positives == round(2.5 * len(shifts().train))
    assert result.evaluation is not None and "per_relation" not in result.evaluation
    assert result.evaluation["both"] == evaluate(stored.model, shifts()).to_dict()["both"] == stored.evaluation["both"]
    assert stored.history == result.history and not (tmp_path / "final").exists()


def test_a_graph_without_test_triples_is_trained_and_not_tested(tmp_path: Path) -> None:
    data = replace(shifts(), test=shifts().test[:0])
    runner = TrialRunner(SearchGraphs(data, make_settings({})), tmp_path, device="cpu")
    result = runner.run(task(final=True, epochs=0.5), quiet)
    assert (result.status, result.evaluation) == ("ok", {})


def test_a_diverged_trial_is_billed_what_it_saw(runner: TrialRunner, tmp_path: Path) -> None:
    result = runner.run(task(lr=1e25), quiet)
    assert result.status == "diverged" and "diverged at step" in result.message and result.mrr is None
    whole = runner.run(task(), quiet)
    assert 0 < result.positives < whole.positives and result.positives % 64 == 0
    assert result.cost / whole.cost == pytest.approx(result.positives / whole.positives)
    assert not list(tmp_path.rglob("*.safetensors"))


def test_divergence_before_the_first_step_costs_nothing(runner: TrialRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    def diverge(*given: Any, **more: Any) -> None:
        raise Diverged("The loss is nan.")

    monkeypatch.setattr(trial_module, "run_trainings", diverge)
    result = runner.run(task(), quiet)
    assert (result.status, result.positives, result.cost) == ("diverged", 0, 0.0)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 12 GiB"),
        MemoryPlanError("The run needs 3 GiB."),
        MemoryError(),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes"),
    ],
)
def test_memory_that_runs_out_is_a_fault_of_the_machine(
    runner: TrialRunner, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(trial_module, "run_trainings", raising(error))
    result = runner.run(task(), quiet)
    assert (result.status, result.cost, result.traceback) == ("out_of_memory", 0.0, "") and "\n" not in result.message


def test_an_error_keeps_its_traceback(runner: TrialRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_module, "run_trainings", raising(ValueError("seven is no color")))
    result = runner.run(task(), quiet)
    assert (result.status, result.message) == ("error", "ValueError: seven is no color")
    assert "Traceback" in result.traceback and "seven is no color" in result.traceback


def test_a_full_disk_is_no_fault_of_the_trial(runner: TrialRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_module, "run_trainings", raising(OutputError("x", "No space left on device")))
    with pytest.raises(OutputError, match="No space left on device"):
        runner.run(task(), quiet)


def raising(error: Exception) -> Any:
    def run(*given: Any, **more: Any) -> None:
        raise error

    return run


def test_a_trial_that_takes_too_long_is_ended_and_leaves_nothing(runner: TrialRunner, tmp_path: Path) -> None:
    runner.timeout = 0.05
    result = runner.run(task(epochs=2000.0, valid_every=2000.0), quiet)
    assert result.status == "timeout" and "time limit of 0.05 s" in result.message
    assert not list(tmp_path.rglob("*.safetensors"))


def test_the_final_training_has_no_time_limit(runner: TrialRunner) -> None:
    runner.timeout = 1e-6
    assert runner.run(task(final=True, epochs=20.0, valid_every=20.0), quiet).status == "ok"


def test_less_work_space_changes_no_number(runner: TrialRunner) -> None:
    usual = bare(runner.run(task(), quiet))
    for share in (0.5, 0.25, 1e-6):
        assert bare(runner.run(replace(task(), work_share=share), quiet)) == usual


@pytest.mark.slow
def test_an_interrupt_saves_and_the_trial_goes_on_exactly(runner: TrialRunner, tmp_path: Path) -> None:
    long = task(epochs=600.0, valid_every=300.0)
    undisturbed = bare(runner.run(long, quiet))
    interrupted = 0

    def tell(trial: Trial, progress: Progress) -> None:
        assert trial == long and 0 < progress.step <= progress.n_steps
        if interrupted < 2:
            raise KeyboardInterrupt

    while interrupted < 2:
        with pytest.raises(KeyboardInterrupt):
            runner.run(long, tell)
        interrupted += 1
        assert (tmp_path / long.folder / "checkpoint" / "state.json").is_file()
    assert bare(runner.run(long, quiet)) == undisturbed
    assert (tmp_path / long.folder / "checkpoint").is_dir(), "it goes when the result is recorded, not before"


def test_a_card_that_fails_leaves_the_checkpoint_and_stops_a_search_in_this_process(
    runner: TrialRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = task()
    (tmp_path / begun.folder / "checkpoint").mkdir(parents=True)
    monkeypatch.setattr(trial_module, "run_trainings", raising(RuntimeError("CUDA error: unspecified launch failure")))
    monkeypatch.setattr(runner, "device", torch.device("cuda", 0))
    monkeypatch.setattr(runner, "_start_clock", lambda: 0.0)
    monkeypatch.setattr(runner, "_data_of", lambda graph: None)
    monkeypatch.setattr(trial_module, "_peak_bytes", lambda device: 0)
    assert runner.run(begun, quiet).status == "killed" and (tmp_path / begun.folder / "checkpoint").is_dir()
    for engine in (LocalEngine(runner), LocalEngine(runner, stacked=True)):
        monkeypatch.setattr(runner, "fits", lambda tasks: True)
        assert engine.start(begun) == "cuda:0"
        with pytest.raises(GrashError, match="Continue it with `grash resume`"):
            engine.wait(quiet)


@pytest.mark.parametrize(
    ("error", "memory", "broken"),
    [
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False, True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), True, True),
        (RuntimeError("CUDA driver error: out of memory"), True, True),
        (RuntimeError("CUDA driver error: unknown error"), False, True),
        (RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"), False, True),
        (RuntimeError("shapes do not match"), False, False),
        (ValueError("CUDA error"), False, False),
    ],
)
def test_errors_of_a_card_are_told_apart(error: Exception, memory: bool, broken: bool) -> None:
    assert is_memory_error(error) is memory and trial_module.lost_context(error) is broken
