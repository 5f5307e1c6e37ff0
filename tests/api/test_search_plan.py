"""What a search says before it runs: rounds, costs, seconds, memory and disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engines.searches import small_search
from grash.errors import ConfigError


@pytest.mark.parametrize("variant", ["combined", "graph", "epoch"])
@pytest.mark.parametrize(
    "changes", [{}, {"budget": 1.3, "eta": 3, "n_trials": 7}, {"budget": 9, "warm_start": "weights"}]
)
def test_a_plan_says_what_the_run_then_does(tmp_path: Path, variant: str, changes: dict[str, Any]) -> None:
    if variant == "epoch":
        changes = {k: v for k, v in changes.items() if k != "warm_start"}
    search = small_search(tmp_path / "run", variant=variant, final_train=False, **changes)
    plan = search.plan(probe=False)
    state = search.run().state
    assert [r.plan for r in plan.rounds] == [past.plan for past in state.rounds]
    assert [r.n_trials for r in plan.rounds] == [len(past.results) for past in state.rounds] == state.sizes
    seen = 0
    for past in state.rounds:
        results = list(past.results.values())
        graph = search.graphs.subgraph(() if past.plan.whole else past.plan.fractions, past.plan.isolated).dataset
        assert (graph.n_entities, len(graph.train)) == (past.plan.n_entities, past.plan.n_train)
        assert {r.positives for r in results} == {past.plan.positives - (seen if past.plan.continues else 0)}
        assert {r.cost for r in results} == {past.plan.cost}
        seen = past.plan.positives
    assert state.spent == pytest.approx(plan.billed, rel=1e-12)
    assert state.spent <= state.budget == plan.budget


@pytest.mark.slow
def test_a_plan_estimates_seconds_memory_and_disk(tmp_path: Path) -> None:
    plan = small_search(tmp_path / "run", variant="epoch").plan()
    assert plan.final is not None and plan.final.plan.whole and plan.final.n_trials == 1
    assert plan.seconds is not None and 0 < plan.seconds < 300
    assert all(r.seconds and r.n_bytes > 0 and r.steps > 0 for r in (*plan.rounds, plan.final))
    assert plan.rounds[0].disk_bytes > 0 == plan.rounds[-1].disk_bytes
    assert not (tmp_path / "run").exists(), "a plan writes nothing"
    assert small_search(tmp_path / "run", n_trials=1).plan(probe=False).rounds == ()


@pytest.mark.slow
def test_a_plan_survives_a_typical_configuration_that_diverges(tmp_path: Path) -> None:
    wild = {"init": "normal", "init_std": 1e10, "negatives_head": 10, "batch_size": 96}
    plan = small_search(tmp_path / "run", space={"lr": {"low": 1e29, "high": 1e30}}, fixed=wild).plan()
    assert plan.seconds is not None and plan.seconds > 0


def test_costs_of_a_plan_follow_prices_and_add_up(tmp_path: Path) -> None:
    plan = small_search(tmp_path / "run", budget_unit="scores").plan(probe=False)
    assert plan.billed == pytest.approx(sum(r.billed for r in plan.rounds))
    assert all(r.billed <= r.plan.share * (1 + 1e-12) for r in plan.rounds)


def test_a_plan_looks_at_the_disk_of_the_run_folder_and_at_the_placement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []

    def free(folder: Path) -> int:
        asked.append(Path(folder))
        return 1 << 40

    monkeypatch.setattr("grash.engines.memory.free_disk", free)
    plan = small_search(tmp_path / "there", placement="disk").plan(probe=False)
    assert asked and set(asked) == {tmp_path / "there"}
    assert any(note.startswith("final: placement=disk") for note in plan.notes)


def test_a_plan_for_the_folder_of_another_search_is_refused(tmp_path: Path) -> None:
    small_search(tmp_path / "run").run(max_seconds=0)
    with pytest.raises(ConfigError, match="is a search with other settings"):
        small_search(tmp_path / "run", seed=9).plan(probe=False)
