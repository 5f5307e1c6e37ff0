"""The benchmarks import and call what exists, those of a GPU as far as a CPU can tell."""

from __future__ import annotations

import argparse
import importlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from grash.evaluation.ranking import SideRanks
from triton_interpreter import needs_triton

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def bench(monkeypatch) -> Iterator[Callable[[str], ModuleType]]:
    """Imports a benchmark, for a CPU if it names a device; what it sets for its whole process is set back."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.delenv("GRASH_KERNELS", raising=False)
    tf32 = torch.backends.cuda.matmul.allow_tf32

    def load(name: str) -> ModuleType:
        module = importlib.import_module(name)
        if hasattr(module, "CUDA"):
            monkeypatch.setattr(module, "CUDA", torch.device("cpu"))
        return module

    yield load
    torch.backends.cuda.matmul.allow_tf32 = tf32


@needs_triton
@pytest.mark.parametrize("script", sorted(path.stem for path in BENCHMARKS.glob("*.py")))
def test_a_benchmark_can_be_imported(bench, script):
    assert bench(script).__doc__


@pytest.mark.parametrize(
    "words",
    [
        ("bench_driver", "--trials", "8", "--repeats", "1"),
        ("bench_encode", "--lines", "2000", "--names", "300", "--repeats", "1"),
        ("bench_cores", "--triples", "3000", "--entities", "300", "--repeats", "1"),
    ],
    ids=lambda words: words[0],
)
@pytest.mark.slow
def test_a_benchmark_of_a_cpu_runs(bench, monkeypatch, tmp_path, capsys, words):
    script = bench(words[0])
    folder = ("--folder", str(tmp_path)) if words[0] != "bench_cores" else ()
    monkeypatch.setattr("sys.argv", [*words, *folder])
    monkeypatch.setattr("harness.RESULTS", tmp_path / "results.csv")
    before = (BENCHMARKS / "results.csv").read_bytes()
    script.main()
    assert capsys.readouterr().out and (BENCHMARKS / "results.csv").read_bytes() == before


def test_the_first_round_of_a_search_is_measured_on_its_graph(bench, tmp_path):
    script = bench("bench_gpu_search")
    asked = argparse.Namespace(trials=8, epochs=20, dim=8, precision="float32", device="cpu")
    graph, trials = script.first_round(script.search_of("world", asked, tmp_path / "run"))
    assert len(trials) == 8 and graph.dataset.n_entities > 0


@needs_triton
@pytest.mark.parametrize("model", ["complex", "transe"])
def test_the_parts_of_a_step_are_launched_as_the_step_launches_them(bench, monkeypatch, model):
    step = bench("bench_gpu_step")
    case = step.Case(20, 3, 50, (5, 7), {"model": model, "dim": 8, "batch_size": 32}, trials=2)
    fused = step.fused_steps(case, step.random_graph(case), "bf16")
    seen: dict[str, tuple[Any, ...]] = {}
    _listen(monkeypatch, seen)
    fused._launch()
    by_the_step = dict(seen)
    seen.clear()
    for call in step.launches(fused).values():
        call()
    assert seen.keys() == by_the_step.keys() and len(seen) == len(step.launches(fused))
    for name, given in seen.items():
        assert all(_same(a, b) for a, b in zip(given, by_the_step[name], strict=True)), name


def _listen(monkeypatch: pytest.MonkeyPatch, seen: dict[str, tuple[Any, ...]]) -> None:
    """Replaces the kernels' functions by some that note what they are given, if it fits their signatures."""
    for kind in ("draw", "score", "update"):
        module = importlib.import_module(f"grash.kernels.step_{kind}_triton")
        for name, function in inspect.getmembers(module, inspect.isfunction):
            own = function.__module__ == module.__name__ and not name.startswith("_")
            if own and "space" in inspect.signature(function).parameters and name != "tiles":
                monkeypatch.setattr(module, name, _noting(function, f"{kind}.{name}", seen))


def _noting(function: Callable[..., object], name: str, seen: dict[str, tuple[Any, ...]]) -> Callable[..., None]:
    signature = inspect.signature(function)

    def note(*args: Any, **kwargs: Any) -> None:
        seen[name] = tuple(signature.bind(*args, **kwargs).arguments.values())

    return note


def _same(one: Any, other: Any) -> bool:
    return one is other or (not isinstance(one, Tensor) and one == other)


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("model,trials", [("complex", 2), ("rotate", 1)])
def test_the_step_is_timed_from_its_plan_to_its_parts(bench, monkeypatch, capsys, model, trials):
    step = bench("bench_gpu_step")

    def once(call: Callable[[], object], *_: int) -> Any:
        call()
        return step.Timing(1.0, 1.0, 1.0, 1)

    for name, stand_in in (("timed", once), ("replayed", lambda call: call), ("WINDOW", 1)):
        monkeypatch.setattr(step, name, stand_in)
    for name, given in (("memory_allocated", 100), ("max_memory_allocated", 300), ("reset_peak_memory_stats", None)):
        monkeypatch.setattr(torch.cuda, name, lambda given=given: given)
    _listen(monkeypatch, {})
    case = step.Case(20, 3, 50, (5, 7), {"model": model, "dim": 8, "batch_size": 32}, trials=trials)
    with torch.no_grad():
        found = list(step.variants(case, True))
    assert [f.variant for f in found] == ["our unfused step", "fused, bf16"]
    assert all(f.planned > 0 and f.peak == f.stepping == 200 for f in found)
    step.report("a case", case, found[1], record_it=False)
    parts, told = capsys.readouterr().out.splitlines()
    assert parts.startswith("    draw 1000000.0, order") and "200 B on the card" in told and "planned" in told


@needs_triton
def test_every_case_is_a_valid_configuration_and_every_setting_suits_its_peers(bench):
    step = bench("bench_gpu_step")
    for case in step.CASES.values():
        assert len(case.configs("bf16")) == case.trials
        if case.peers:
            assert case.setting(np.zeros((1, 3), np.int32)).negatives == case.negatives


@pytest.mark.parametrize("model,norm", [("complex", 1), ("rotate", 1), ("transe", 1), ("transe", 2)])
def test_a_peer_scores_a_triple_alike_by_its_head_and_by_its_tail(bench, model, norm):
    peers = bench("peers")
    setting = _setting(peers, model, norm)
    h, r, t = torch.randn(3, 6, 8)
    for_tails, for_heads = peers._queries(h, r[:, :4] if model == "rotate" else r, t, model)
    by_tail, by_head = peers._row_scores(for_tails, t, setting), peers._row_scores(for_heads, h, setting)
    assert torch.allclose(by_tail, by_head, atol=1e-5)
    assert torch.allclose(peers._scores(for_tails, t, setting).diagonal(), by_tail, atol=1e-5)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks", "ignore::DeprecationWarning")  # of torch and of PyG
@pytest.mark.parametrize("model,norm", [("complex", 1), ("rotate", 1), ("transe", 1), ("transe", 2)])
def test_the_steps_of_peers_run(bench, model, norm, capsys):
    peers = bench("peers")
    setting = _setting(peers, model, norm)
    for step in (peers.autograd_step(setting), *peers.pyg_steps(setting).values()):
        step()
        step()


def _setting(peers: ModuleType, model: str, norm: int) -> Any:
    triples = np.random.default_rng(0).integers(0, 3, (10, 3)).astype(np.int32)
    return peers.Setting(triples, 9, 3, (4, 5), model=model, norm=norm, dim=8, batch=6, device="cpu")


@needs_triton
def test_ranks_of_a_trained_model_are_compared(bench, capsys):
    ranking = bench("bench_gpu_ranking")
    with torch.no_grad():
        ranking.check_trained("world", list(ranking.TRAINED), 0.1, 20, torch.device("cpu"))
    printed = capsys.readouterr().out
    assert printed.count("0 of 80 counts differ") == len(ranking.TRAINED), printed


@needs_triton
@pytest.mark.parametrize("step,explained", [(1e-6, True), (1e-2, False)])
def test_a_difference_is_explained_only_by_candidates_near_the_truth(bench, step, explained):
    """The query is 0, and candidates score −2, −2 − step, −2 − 2·step, …, the truth first; one path is said to have
    seen one of them above."""
    ranking = bench("bench_gpu_ranking")
    entity = 1.0 + torch.arange(10.0)[:, None] * torch.tensor([step, 0.0])
    entity[9] = 100.0
    model = ranking.MODELS["transe"](entity, torch.full((1, 2), -100.0))
    test = np.array([[9, 0, 0]], np.int32)
    ranker = ranking.Ranker(test, ranking.KnownAnswers.of(test, n_relations=1), 10, torch.device("cpu"))
    right, wrong = (SideRanks(np.array([above]), np.array([0]), np.array([9])) for above in (0, 1))
    one = ranking.Ranks(test, head=right, tail=right)
    assert ranking.differences(ranker, model, one, one) == []
    found = ranking.differences(ranker, model, one, replace(one, tail=wrong))
    assert [is_explained for _, is_explained in found] == [explained]
