"""A search runs: several models, prices, watchers and threads; it goes on, is extended, and tries again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numba
import pytest
import torch

from engines.searches import SPACE, essence, events_of, small_search
from grash.api.search import Search, SearchResult
from grash.errors import ConfigError, SearchFailed
from grash.kernels.device import use_torch_threads
from grash.search.callbacks import OnChange
from grash.search.settings import SearchSettings


def test_several_models_share_the_rounds(tmp_path: Path) -> None:
    state = small_search(tmp_path / "run", model="complex,transe,rotate", n_trials=9, eta=3).run().state
    made = [state.configurations[n] for n in range(9)]
    assert [c.values["model"] for c in made] == ["complex", "transe", "rotate"] * 3
    for i in range(0, 9, 3):  # all models get the same points
        assert len({c.values["lr"] for c in made[i : i + 3]}) == 1
    assert [len(past.results) for past in state.rounds] == [9, 3] and state.finished
    assert all(r.status == "ok" for past in state.rounds for r in past.results.values())


@pytest.mark.parametrize(("given", "used"), [({}, [1, 1]), ({"final_threads": 2}, [1, 2]), ({"threads": 2}, [2, 2])])
def test_the_final_training_has_threads_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, int], used: list[int]
) -> None:
    seen: list[int] = []
    monkeypatch.setattr("grash.engines.local.set_threads", seen.append)
    state = small_search(tmp_path / "run", **given).run().state
    assert state.final is not None and seen == [used[0]] * (len(seen) - 1) + [used[1]]


@pytest.mark.parametrize(("threads", "final", "used"), [(1, None, 1), (1, 2, 1), (1, 8, 4), (4, 6, 4), (3, 9, 4)])
def test_a_finalist_that_is_trained_to_the_end_has_half_of_the_threads_of_the_final_training(
    threads: int, final: int | None, used: int
) -> None:
    assert SearchSettings(threads=threads, final_threads=final).threads_of(to_the_end=True) == used


@pytest.mark.parametrize("variant", ["combined", "epoch"])
def test_priced_by_scores_the_bill_stays_below_the_budget(tmp_path: Path, variant: str) -> None:
    space = {**SPACE, "negatives_tail": {"low": 1, "high": 140, "log": True}}
    search = small_search(tmp_path / "run", budget_unit="scores", space=space, variant=variant, final_train=False)
    state = search.run().state
    prices = {c.relative_cost for c in state.configurations.values()}
    assert len(prices) > 3 and min(prices) < 1 < max(prices)
    assert 0.5 * state.budget < state.spent <= state.budget
    for past in state.rounds:
        for n, result in past.results.items():
            per_positive = state.configurations[n].relative_cost / (4 * len(search.dataset.train))
            assert result.cost == pytest.approx(result.positives * per_positive)


def test_a_search_is_opened_and_goes_on(tmp_path: Path, finished: SearchResult) -> None:
    small_search(tmp_path / "run").run(max_seconds=0.1)
    search = Search.open(tmp_path / "run", engine="sequential", device="cpu")
    assert search.settings == small_search(tmp_path / "other").settings and search.dataset.name == "shifts"
    search.run()
    assert essence(tmp_path / "run") == essence(finished.folder)


def test_a_search_is_opened_with_its_own_settings_only(tmp_path: Path) -> None:
    small_search(tmp_path / "run").run(max_seconds=0)
    with pytest.raises(ConfigError, match="run is a run folder with its own settings: leave out eta, n_trials"):
        Search.open(tmp_path / "run", engine="sequential", eta=3, n_trials=99)


def test_a_search_can_be_extended_and_mistakes_leave_no_engine_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[bool] = []
    monkeypatch.setattr("grash.engines.local.LocalEngine.close", lambda self: closed.append(True))
    search = small_search(tmp_path / "run", n_trials=4, final_train=False)
    search.run()
    before = len(closed)
    with pytest.raises(ConfigError, match="adds nothing: the search already has 4"):
        search.run(extend={"n_trials": 3})
    assert len(closed) > before
    state = search.run(extend={"n_trials": 6}).state
    assert state.sizes[0] == 6 and len(state.rounds[0].results) == 6 and state.finished


def test_a_final_training_that_a_machine_failed_is_tried_again_on_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished: SearchResult
) -> None:
    def no_memory(*_: Any, **__: Any) -> None:
        raise MemoryError("no")

    with monkeypatch.context() as broken:
        broken.setattr("grash.engines.local.evaluate", no_memory)
        with pytest.raises(SearchFailed, match="final training failed"):
            small_search(tmp_path / "run", max_retries=0).run()
    again = small_search(tmp_path / "run", max_retries=0).run()
    assert again.state.finished and not again.state.failed
    assert again.state.final is not None and finished.state.final is not None
    assert again.state.final.mrr == finished.state.final.mrr


def test_the_watcher_hears_of_every_change(tmp_path: Path) -> None:
    seen: list[int] = []
    small_search(tmp_path / "run", n_trials=3).run(
        callbacks=[OnChange(lambda state, *rest: seen.append(len(state.rounds)))]
    )
    assert seen == sorted(seen) and len(seen) >= len(events_of(tmp_path / "run"))


@pytest.mark.parametrize("engine", ["sequential", "stacked", pytest.param("processes", marks=pytest.mark.slow)])
def test_what_a_watcher_raises_stops_the_search_and_is_no_failure_of_a_trial(tmp_path: Path, engine: str) -> None:
    def slips(state: Any, heartbeats: Any, devices: Any) -> None:
        if heartbeats:
            raise KeyError("a slip in somebody's own function")

    options: dict[str, Any] = {"max_epochs": 120, "n_trials": 2, "final_train": False}
    workers = 1 if engine == "processes" else None
    with pytest.raises(KeyError, match="a slip in somebody's own function") as caught:
        small_search(tmp_path / "run", **options, engine=engine, workers=workers).run(callbacks=[OnChange(slips)])
    assert caught.traceback[-1].name == "slips", "where it happened is shown"
    assert not any(e["event"] in ("trial_ended", "search_finished") for e in events_of(tmp_path / "run"))
    state = small_search(tmp_path / "run", **options).run().state
    assert [len(tries) for tries in state.rounds[0].attempts.values()] == [1, 1] and state.finished


def test_a_search_and_a_plan_leave_the_number_of_threads_as_it_was(tmp_path: Path) -> None:
    torch.set_num_threads(2)
    use_torch_threads()
    before = numba.get_num_threads()
    search = small_search(tmp_path / "run", final_train=False, n_trials=2, threads=1)
    search.plan()
    assert (torch.get_num_threads(), numba.get_num_threads()) == (2, before)
    search.run()
    assert (torch.get_num_threads(), numba.get_num_threads()) == (2, before)
