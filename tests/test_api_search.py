"""grash.Search: plans that come true, trainers of one's own, results, and folders that are not what they should be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numba
import pytest
import torch

from engines.searches import SMALL, SPACE, essence, events_of, shifts, small_search
from grash.api_given import best_of_run
from grash.api_result import SearchResult
from grash.api_search import Search, search_folder
from grash.errors import ConfigError, InputError, OutputError, SearchFailed
from grash.kernels.threads import use_torch_threads
from grash.search.settings import make_settings
from grash.training.config import make_config


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> SearchResult:
    return small_search(tmp_path_factory.mktemp("finished") / "run").run()


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
        graph = search.graphs.subgraph(() if past.plan.whole else past.plan.fractions).dataset
        assert (graph.n_entities, len(graph.train)) == (past.plan.n_entities, past.plan.n_train)
        assert {r.positives for r in results} == {past.plan.positives - (seen if past.plan.continues else 0)}
        assert {r.cost for r in results} == {past.plan.cost}
        seen = past.plan.positives
    assert state.spent == pytest.approx(plan.billed, rel=1e-12)
    assert state.spent <= state.budget == plan.budget


def test_a_plan_estimates_seconds_memory_and_disk(tmp_path: Path) -> None:
    plan = small_search(tmp_path / "run", variant="epoch").plan()
    assert plan.final is not None and plan.final.plan.whole and plan.final.n_trials == 1
    assert plan.seconds is not None and 0 < plan.seconds < 300
    assert all(r.seconds and r.n_bytes > 0 and r.steps > 0 for r in (*plan.rounds, plan.final))
    assert plan.rounds[0].disk_bytes > 0 == plan.rounds[-1].disk_bytes
    assert not (tmp_path / "run").exists(), "a plan writes nothing"
    assert small_search(tmp_path / "run", n_trials=1).plan(probe=False).rounds == ()


def test_ask_and_tell_promote_as_an_engine_would(tmp_path: Path, finished: SearchResult) -> None:
    scores = {(past.plan.number, n): r.mrr for past in finished.state.rounds for n, r in past.results.items()}
    search = small_search(tmp_path / "run")
    asked = []
    while (trial := search.ask()) is not None:
        past = finished.state.rounds[trial.round - 1]
        assert (trial.dataset.n_entities, len(trial.dataset.train)) == (past.plan.n_entities, past.plan.n_train)
        assert trial.config.epochs == past.plan.epochs and trial.config.variation == trial.number
        asked.append((trial.round, trial.number))
        search.tell(trial, scores[trial.round, trial.number], seconds=1.5)
    search.close()
    state = search.result.state
    assert set(asked) == set(scores) and state.finished
    assert [past.survivors for past in state.rounds] == [past.survivors for past in finished.state.rounds]
    assert state.winner == finished.state.winner and state.spent == pytest.approx(finished.state.spent)
    assert search.result.best_config == finished.best_config
    with pytest.raises(InputError, match="has no trained model"):
        _ = search.result.model


def test_an_outside_trainer_is_billed_what_it_trains_also_where_an_engine_would_go_on(tmp_path: Path) -> None:
    search, trained = small_search(tmp_path / "run", variant="epoch", n_trials=8, max_epochs=8), 0.0
    while (trial := search.ask()) is not None:
        trained += trial.config.epochs * len(trial.dataset.train) / (8 * search.graphs.n_train)
        search.tell(trial, 0.1 + 0.01 * trial.number)
    search.close()
    state = search.result.state
    assert len(state.rounds) == 3 and state.rounds[1].plan.continues
    assert state.spent == pytest.approx(trained) and trained <= state.budget * (1 + 1e-9)


def test_several_trials_are_out_at_once_and_a_round_waits_for_them(tmp_path: Path) -> None:
    search = small_search(tmp_path / "run")
    trials = [search.ask() for _ in range(6)]
    assert [t.number for t in trials if t is not None] == [0, 1, 2, 3, 4, 5] and search.ask() is None
    for trial in reversed(trials):
        assert trial is not None
        assert search.ask() is None
        search.tell(trial, None if trial.number == 0 else trial.number / 10)
    following = search.ask()
    assert following is not None and (following.round, following.number) == (2, 5)
    search.close()
    first = search.result.state.rounds[0]
    assert first.results[0].status == "diverged" and first.survivors == [5, 4, 3]


def test_ask_and_tell_survive_closing_and_reopening(tmp_path: Path) -> None:
    def score(trial: Any) -> float:
        return (trial.number * 7 % 6) / 10 + trial.round

    one_go = small_search(tmp_path / "a")
    while (trial := one_go.ask()) is not None:
        one_go.tell(trial, score(trial))
    one_go.close()
    for step in range(100):
        search = small_search(tmp_path / "b") if step % 2 else reopened(tmp_path / "b")
        told, lost = search.ask(), search.ask()
        if told is None:
            search.close()
            break
        search.tell(told, score(told))
        search.close()
        if lost is not None:
            again = small_search(tmp_path / "b").ask
            assert (reborn := again()) is not None and reborn.task == lost.task
            again.__self__.close()  # type: ignore[attr-defined]
    states = [SearchResult.load(tmp_path / name).state for name in "ab"]
    assert states[1].finished and states[0].winner == states[1].winner
    assert [p.survivors for p in states[0].rounds] == [p.survivors for p in states[1].rounds]
    assert states[0].spent == states[1].spent


def reopened(folder: Path) -> Search:
    return Search.open(folder, engine="sequential") if (folder / "search.yaml").is_file() else small_search(folder)


def test_scores_that_are_none_and_scores_told_twice_are_refused(tmp_path: Path) -> None:
    search = small_search(tmp_path / "run")
    trial = search.ask()
    assert trial is not None
    for bad in (float("nan"), float("inf")):
        with pytest.raises(InputError, match=r"mrr=(nan|inf) of configuration 0 in round 1 is no score"):
            search.tell(trial, bad)
    search.tell(trial, 0.5)
    with pytest.raises(InputError, match="Configuration 0 in round 1 has been told already"):
        search.tell(trial, 0.7)
    search.close()
    assert search.result.state.rounds[0].results[0].mrr == 0.5


def test_a_result_shows_its_trials_its_configuration_and_its_model(finished: SearchResult) -> None:
    rows = finished.trials()
    assert len(rows) == 6 + 3 + 2 + 1 and rows[-1]["round"] == 0
    state = finished.state
    best = next(r for r in rows if r["round"] == 3 and r["rank"] == 1)
    assert best["configuration"] == state.winner
    frame = finished.trials_dataframe()
    assert frame.height == 12 and frame["mrr"].max() == max(r["mrr"] for r in rows)
    assert finished.best_config.model_dump() == state.configurations[state.winner].values
    assert make_config(finished.best_config.model_dump()) == finished.best_config
    assert state.final is not None and state.final.evaluation is not None
    assert finished.model.evaluation["both"]["mrr"] == state.final.evaluation["both"]["mrr"]
    assert SearchResult.load(finished.folder).best_config == finished.best_config
    assert finished.report().is_file()


def test_the_best_yaml_is_a_configuration_to_train(finished: SearchResult) -> None:
    from grash.training.config import read_config

    assert read_config(finished.folder / "best.yaml") == finished.best_config


def test_given_configurations_come_first_and_say_where_they_are_from(tmp_path: Path, finished: SearchResult) -> None:
    (tmp_path / "mine.yaml").write_text("lr: 0.2\ndropout_entity: 0.1\nnegatives_tail: 20\nepochs: 77\n")
    record = make_config({"lr": 0.3, "dropout_entity": 0.0, "negatives_tail": 7})
    values = {"lr": 0.11, "dropout_entity": 0.2, "negatives_tail": 30}
    search = small_search(
        tmp_path / "run", initial_configs=[tmp_path / "mine.yaml", record, values], from_run=finished.folder,
        n_trials=10, final_train=False,
    )  # fmt: skip
    state = search.run().state
    made = [state.configurations[n] for n in sorted(state.configurations)]
    assert [c.origin for c in made] == ["user:mine.yaml", "user", "user", *["run:run"] * 4, *["random"] * 3]
    assert [c.values["lr"] for c in made[:3]] == [0.2, 0.3, 0.11]
    assert [c.values["epochs"] for c in made] == [4.0] * 10 and [c.values["variation"] for c in made] == list(range(10))
    assert [c.values["lr"] for c in made[3:7]] == [c["values"]["lr"] for c in best_of_run(finished.folder)]
    assert made[3].values["lr"] == finished.best_config.lr
    assert [r["origin"] for r in search.result.trials()][:3] == ["user:mine.yaml", "user", "user"]


def test_a_given_configuration_outside_the_space_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="lr"):
        small_search(tmp_path / "run", initial_configs=[{"lr": 5.0, "dropout_entity": 0.0, "negatives_tail": 7}])
    with pytest.raises(ConfigError, match="is a configuration of transe, and the search is over complex"):
        small_search(tmp_path / "run", initial_configs=[{"model": "transe"}])
    assert not (tmp_path / "run").exists()


def test_nothing_is_taken_over_from_a_run_without_scores(tmp_path: Path) -> None:
    small_search(tmp_path / "run").run(max_seconds=0.0)
    with pytest.raises(InputError, match="has no scored trial to take over"):
        small_search(tmp_path / "next", from_run=tmp_path / "run")
    with pytest.raises(InputError, match="has no scored trial yet"):
        _ = SearchResult.load(tmp_path / "run").best_config


def test_several_models_share_the_rounds(tmp_path: Path) -> None:
    state = small_search(tmp_path / "run", model="complex,transe,rotate", n_trials=9, eta=3).run().state
    made = [state.configurations[n] for n in range(9)]
    assert [c.values["model"] for c in made] == ["complex", "transe", "rotate"] * 3
    for i in range(0, 9, 3):  # all models get the same points
        assert len({c.values["lr"] for c in made[i : i + 3]}) == 1
    assert [len(past.results) for past in state.rounds] == [9, 3] and state.finished
    assert all(r.status == "ok" for past in state.rounds for r in past.results.values())


@pytest.mark.parametrize("variant", ["combined", "epoch"])
def test_priced_by_scores_the_bill_stays_below_the_budget(tmp_path: Path, variant: str) -> None:
    space = {**SPACE, "negatives_tail": {"low": 1, "high": 140, "log": True}}
    search = small_search(tmp_path / "run", price="scores", space=space, variant=variant, final_train=False)
    state = search.run().state
    prices = {c.price for c in state.configurations.values()}
    assert len(prices) > 3 and min(prices) < 1 < max(prices)
    assert 0.5 * state.budget < state.spent <= state.budget
    for past in state.rounds:
        for n, result in past.results.items():
            per_positive = state.configurations[n].price / (4 * len(search.dataset.train))
            assert result.cost == pytest.approx(result.positives * per_positive)


def test_a_search_is_opened_and_goes_on(tmp_path: Path, finished: SearchResult) -> None:
    small_search(tmp_path / "run").run(max_seconds=0.1)
    search = Search.open(tmp_path / "run", engine="sequential", devices="cpu")
    assert search.settings == small_search(tmp_path / "other").settings and search.dataset.name == "shifts"
    search.run()
    assert essence(tmp_path / "run") == essence(finished.folder)


def test_a_search_can_be_extended_and_mistakes_leave_no_engine_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[bool] = []
    monkeypatch.setattr("grash.engines.sequential.SequentialEngine.close", lambda self: closed.append(True))
    search = small_search(tmp_path / "run", n_trials=4, final_train=False)
    search.run()
    before = len(closed)
    with pytest.raises(ConfigError, match="is no extension: the search has 4 already"):
        search.run(extend={"n_trials": 3})
    assert len(closed) > before
    state = search.run(extend={"n_trials": 6}).state
    assert state.sizes[0] == 6 and len(state.rounds[0].results) == 6 and state.finished


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"eta": 3}, "eta: 2 there, 3 now"),
        ({"seed": 1}, "seed: 0 there, 1 now"),
        ({"budget": 4}, r"budget: 3\.0 there, 4\.0 now.*--extend"),
    ],
)
def test_other_settings_are_refused_with_the_difference(
    finished: SearchResult, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=f"is a search with other settings.*{sentence}"):
        small_search(finished.folder, **changes).run()


def test_another_dataset_is_refused(finished: SearchResult) -> None:
    with pytest.raises(InputError, match="is a search on another dataset"):
        Search(shifts(seed=1), out=finished.folder, **SMALL).run()


def test_a_folder_with_other_things_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("important")
    with pytest.raises(InputError, match="holds other files, so no search is begun there"):
        small_search(tmp_path / "run").run()
    shifts(seed=1).save(tmp_path / "other" / "dataset")
    with pytest.raises(InputError, match="holds other files, so no search is begun there"):
        small_search(tmp_path / "other").run()


def test_a_folder_in_use_is_refused_and_free_again_afterwards(tmp_path: Path) -> None:
    first = small_search(tmp_path / "run", final_train=False)
    first.ask()
    with pytest.raises(InputError, match=r"is in use by process \d+ on .*: wait for it, stop it"):
        small_search(tmp_path / "run", final_train=False).run()
    first.close()
    with pytest.raises(ConfigError, match="other settings"):
        small_search(tmp_path / "run", final_train=False, seed=3).ask()
    assert small_search(tmp_path / "run", final_train=False).run().state.finished


def test_a_disk_that_is_full_at_the_first_line_is_what_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int, line: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("grash.search.ledger.os.write", full)
        with pytest.raises(OutputError, match="No space left on device.*`grash resume` once there is room"):
            small_search(tmp_path / "run").run()
    assert small_search(tmp_path / "run", engine="sequential").run().state.finished


def test_a_search_without_a_folder_gets_one_and_finds_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = {k: v for k, v in SMALL.items() if k not in ("engine", "devices")}
    options = {"engine": "sequential", "devices": "cpu"}
    first = Search(shifts(), **settings, **options)
    assert first.folder == Path("runs/shifts-complex-search")
    first.run(max_seconds=0.0)
    again = Search(shifts(), **settings, **options)
    assert again.folder == first.folder
    again.run()
    assert Search(shifts(), **settings, **options).folder == Path("runs/shifts-complex-search-2")
    assert search_folder(shifts(seed=1), make_settings(settings)).name == "shifts-complex-search-2"


def test_the_watcher_hears_of_every_change(tmp_path: Path) -> None:
    seen: list[int] = []
    small_search(tmp_path / "run", n_trials=3).run(watch=lambda state, *rest: seen.append(len(state.rounds)))
    assert seen == sorted(seen) and len(seen) >= len(events_of(tmp_path / "run"))


@pytest.mark.parametrize("engine", ["sequential", "stacked", pytest.param("processes", marks=pytest.mark.slow)])
def test_what_a_watcher_raises_stops_the_search_and_is_no_failure_of_a_trial(tmp_path: Path, engine: str) -> None:
    def slips(state: Any, heartbeats: Any, devices: Any) -> None:
        if heartbeats:
            raise KeyError("a slip in somebody's own function")

    options: dict[str, Any] = {"engine": engine, "max_epochs": 120, "n_trials": 2, "final_train": False}
    with pytest.raises(KeyError, match="a slip in somebody's own function") as caught:
        small_search(tmp_path / "run", **options).run(watch=slips)
    assert caught.traceback[-1].name == "slips", "where it happened is shown"
    assert not any(e["event"] in ("ended", "finished") for e in events_of(tmp_path / "run"))
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


def test_a_space_file_is_kept_by_its_content(tmp_path: Path) -> None:
    file = tmp_path / "space.txt"
    file.write_text("lr: {low: 0.05, high: 0.5, log: true}\n")
    search = small_search(tmp_path / "run", space=file)
    assert search.settings.space == {"lr": {"type": "float", "low": 0.05, "high": 0.5, "log": True}}
    search.run()
    file.write_text("lr: {low: 0.9, high: 1.0}\n")
    with pytest.raises(ConfigError, match="space"):
        small_search(tmp_path / "run", space=str(file)).run()


def test_a_final_training_that_a_machine_failed_is_tried_again_on_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished: SearchResult
) -> None:
    def no_memory(*_: Any, **__: Any) -> None:
        raise MemoryError("no")

    with monkeypatch.context() as broken:
        broken.setattr("grash.engines.trial.evaluate", no_memory)
        with pytest.raises(SearchFailed, match="final training failed"):
            small_search(tmp_path / "run", max_retries=0).run()
    again = small_search(tmp_path / "run", max_retries=0).run()
    assert again.state.finished and not again.state.failed
    assert again.state.final is not None and finished.state.final is not None
    assert again.state.final.mrr == finished.state.final.mrr


def test_another_runs_configurations_enter_as_far_as_they_fit(
    tmp_path: Path, finished: SearchResult, caplog: pytest.LogCaptureFixture
) -> None:
    two = small_search(tmp_path / "two", from_run=finished.folder, n_trials=2)
    assert len(two.settings.initial) == 2
    narrow = {**SPACE, "lr": {"low": 5.0, "high": 6.0}}
    none = small_search(tmp_path / "none", from_run=finished.folder, space=narrow)
    assert none.settings.initial == () and "left out" in caplog.text


def test_a_run_folder_answers_like_its_model(finished: SearchResult) -> None:
    from grash.api import load_model

    assert load_model(finished.folder).config == finished.model.config


@pytest.mark.parametrize("options", [{"trial_timeout": -1.0}, {"trial_timeout": float("nan")}])
def test_times_that_are_none_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="seconds above 0"):
        small_search(tmp_path / "run", **options)


def test_an_engine_or_a_number_of_workers_that_is_none_leaves_no_folder(tmp_path: Path) -> None:
    for wrong in ({"engine": "warp"}, {"workers": 0}):
        with pytest.raises(ConfigError):
            small_search(tmp_path / "run", **wrong).run()
    assert not (tmp_path / "run").exists()


def test_a_plan_survives_a_typical_configuration_that_diverges(tmp_path: Path) -> None:
    wild = {"init": "normal", "init_std": 1e10, "negatives_head": 10, "batch_size": 96}
    plan = small_search(tmp_path / "run", space={"lr": {"low": 1e29, "high": 1e30}}, fixed=wild).plan()
    assert plan.seconds is not None and plan.seconds > 0


def test_costs_of_a_plan_follow_prices_and_add_up(tmp_path: Path) -> None:
    plan = small_search(tmp_path / "run", price="scores").plan(probe=False)
    assert plan.billed == pytest.approx(sum(r.billed for r in plan.rounds))
    assert all(r.billed <= r.plan.share * (1 + 1e-12) for r in plan.rounds)


def test_a_plan_looks_at_the_disk_of_the_run_folder_and_at_the_placement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []

    def free(folder: Path) -> int:
        asked.append(Path(folder))
        return 1 << 40

    monkeypatch.setattr("grash.engines.placing.free_disk", free)
    plan = small_search(tmp_path / "there", placement="disk").plan(probe=False)
    assert asked and set(asked) == {tmp_path / "there"}
    assert any(note.startswith("final: placement=disk") for note in plan.notes)


def test_a_plan_for_the_folder_of_another_search_is_refused(tmp_path: Path) -> None:
    small_search(tmp_path / "run").run(max_seconds=0)
    with pytest.raises(ConfigError, match="is a search with other settings"):
        small_search(tmp_path / "run", seed=9).plan(probe=False)
