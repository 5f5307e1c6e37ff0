"""Real searches with final training: what identifies them, that they are a user's own, resumed, merged and shown."""

from __future__ import annotations

import importlib.util
import json
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from grash.api.search import Search
from grash.errors import ConfigError, GrashError, SearchFailed
from grash.search.callbacks import OnChange
from grash.search.graphs import SearchGraphs
from grash.search.ledger import LEDGER_FILE, RoundState, SearchState, read_ledger
from grash.search.proposals import all_winners, make_configurations
from grash.search.trial import Round, TrialResult
from grash_study import confirm
from grash_study.confirm import (
    PRIORS,
    Candidate,
    columns_of,
    confirm_page,
    differences,
    family_of,
    figures,
    known_before,
    opened,
    plan_wanted,
    preset_candidate,
    run_wanted,
    store_of,
    wanted_searches,
)
from grash_study.pages import write_page
from grash_study.searches import search_folder
from grash_study.store import merge_stores
from study.small_study import SPACE, small_graph

COMMON = {"dim": 4, "max_epochs": 8.0, "n_trials": 4, "eta": 2, "space": SPACE, "proposals": "random"}
ROOT = Path(__file__).parents[2]
TRIALS = ROOT.parent / "shared" / "datasets" / "tuning-trials"
HERE = partial(Search, engine="sequential")
TWO = (Candidate("default"), Candidate("sobol", settings={"proposals": "sobol"}, text="proposals=sobol"))


def wanted_of(*candidates: Candidate, seeds: int = 1, models=("complex",), **changes):
    return wanted_searches(small_graph(), candidates, models=models, seeds=seeds, common={**COMMON, **changes})


def made_up(one, mrr: float, **more) -> dict:
    """A record without any search."""
    tested = {"mrr": mrr, "hits@1": mrr / 2, "hits@3": mrr, "hits@10": mrr}
    return {
        "name": one.name, "model": one.model, "seed": one.seed, "preset": one.candidate.preset,
        "settings": one.settings.model_dump(mode="json"), "failed": "", "winner": 1, "origin": "random",
        "values": {"lr": 0.02}, "spent": 3.0, "seconds": 4.0, "final_seconds": 2.0, "score": mrr, "valid": mrr,
        "validations": [[4.0, mrr], [8.0, mrr / 2]], "test": tested, "final_peak_bytes": 0, "rounds": [],
        "device": "cpu", **more,
    }  # fmt: skip


def test_a_search_is_identified_by_what_it_does_and_not_by_its_name():
    one, renamed = wanted_of(TWO[0])[0], wanted_of(Candidate("ours"))[0]
    assert one.name == renamed.name and one.settings.final_train
    said_again = wanted_of(Candidate("budget", settings={"budget": 3.0}))[0]
    assert one.name == said_again.name
    changes = (
        {"proposals": "sobol"},
        {"eta": 4},
        {"space": {**SPACE, "batch_size": 32}},
        {"fixed": {"batch_size": 16}},
    )
    names = {wanted_of(Candidate("x", settings=change))[0].name for change in changes}
    assert len(names | {one.name, wanted_of(Candidate("paper", "paper"))[0].name}) == 6
    assert len({w.name for w in wanted_of(*TWO, seeds=2, models=("complex", "transe"))}) == 8


def test_a_setting_that_changes_nothing_on_a_graph_makes_no_other_search(monkeypatch):
    two = [Candidate(how, settings={"last_round_holdout": how}) for how in ("random", "match_valid")]
    one, other = wanted_of(*two)
    assert (
        one.name == other.name and one.settings == other.settings
    )  # so the other resumes a folder that one has started
    monkeypatch.setattr(SearchGraphs, "valid_pairs_isolated", True)
    one, other = wanted_of(*two)
    assert one.name != other.name and [w.settings.last_round_holdout for w in (one, other)] == ["random", "match_valid"]


def test_searches_go_seed_by_seed_through_models_and_candidates():
    wanted = wanted_of(*TWO, seeds=2, models=("complex", "transe"))
    assert [(w.seed, w.model, w.candidate.name) for w in wanted[:5]] == [
        (0, "complex", "default"), (0, "complex", "sobol"), (0, "transe", "default"), (0, "transe", "sobol"),
        (1, "complex", "default"),
    ]  # fmt: skip
    fixed = wanted_of(Candidate("x", settings={"fixed": {"lr": 0.1}}), fixed={"batch_size": 16})[0].settings.fixed
    assert fixed == {"batch_size": 16, "lr": 0.1}


@pytest.mark.parametrize("settings", [{"seed": 3}, {"model": "transe"}, {"final_train": False}])
def test_a_candidate_cannot_have_what_the_study_sets(settings):
    with pytest.raises(ConfigError, match="set by this study"):
        wanted_of(Candidate("x", settings=settings))


def test_candidates_need_names_of_their_own():
    with pytest.raises(ConfigError, match="a different name"):
        wanted_of(Candidate("x"), Candidate("x", "paper"))
    with pytest.raises(ConfigError, match="one candidate or more"):
        wanted_of()


def test_the_search_is_the_one_that_a_user_would_open(tmp_path):
    one = wanted_of(TWO[1], seeds=1)[0]
    search = opened(HERE, small_graph(), one, tmp_path / "run", device="cpu")
    asked = Search(small_graph(), out=tmp_path / "run", preset="default", **{**COMMON, "proposals": "sobol"})
    assert (
        one.settings == search.settings == asked.settings.model_copy(update={"last_round_holdout": "random"})
    )  # the same here


@pytest.mark.slow
def test_searches_are_run_once_with_their_final_training_and_shown(tmp_path):
    wanted, data = wanted_of(*TWO), small_graph()
    store, said = store_of(tmp_path / "s", data), []
    assert "0 of 2 searches" in plan_wanted(data, wanted, store, HERE, device="cpu")
    assert run_wanted(data, wanted, store, HERE, device="cpu", say=said.append) and len(said) == 2
    for one in wanted:
        record = store.searches[one.name]
        assert 0 < record["test"]["mrr"] <= record["test"]["hits@10"] <= 1 and 0 < record["valid"] < 1
        assert record["spent"] <= 3 and record["seconds"] > 0 and record["final_seconds"] > 0
        assert record["values"]["lr"] > 0 and 1 <= len(record["validations"]) <= 20
        assert [r["trials"] for r in record["rounds"]] == [4, 2] and not search_folder(store, one.name).exists()
    again = store_of(tmp_path / "s", data)
    assert run_wanted(data, wanted, again, HERE, device="cpu", max_seconds=0, say=said.append) and len(said) == 2
    assert plan_wanted(data, wanted, again, HERE, device="cpu") == "confirm-small: 2 of 2 searches are there"
    text = write_page(confirm_page(wanted, again, label="two", command="grash"), tmp_path / "o").read_text()
    assert "not run yet" not in text and "| complex | sobol | 1 of 1 |" in text


@pytest.mark.slow
def test_the_final_model_is_that_of_the_same_search_by_itself(tmp_path):
    one, data = wanted_of(TWO[0])[0], small_graph()
    store = store_of(tmp_path, data)
    assert run_wanted(data, [one], store, HERE, device="cpu")
    result = HERE(data, out=tmp_path / "mine", device="cpu", **COMMON).run()
    record = store.searches[one.name]
    assert record["winner"] == result.state.winner
    assert record["test"]["mrr"] == pytest.approx(result.state.final.evaluation["both"]["mrr"], rel=1e-6)


def interrupted(when):
    """A way to open searches in which someone presses Ctrl-C once, in a state of which `when` is true."""

    class Interrupted(Search):
        def run(self, **more):
            pressed = []

            def watch(state, heartbeats, devices):
                if not pressed and when(state):
                    pressed.append(signal.raise_signal(signal.SIGINT))

            return super().run(callbacks=[OnChange(watch)], **more)

    return partial(Interrupted, engine="sequential")


def test_an_interrupted_search_that_finishes_is_kept_and_the_next_not_begun(tmp_path):
    wanted, data = wanted_of(*TWO), small_graph()
    store = store_of(tmp_path, data)
    with pytest.raises(KeyboardInterrupt):
        run_wanted(data, wanted, store, interrupted(lambda state: state.final is not None), device="cpu")
    assert list(store.searches) == [wanted[0].name] and not search_folder(store, wanted[1].name).exists()


def test_a_search_that_was_cut_off_waits_and_is_resumed_with_its_trials(tmp_path):
    one, data = wanted_of(TWO[0])[0], small_graph()
    store = store_of(tmp_path, data)

    after_a_round = interrupted(lambda state: state.rounds and state.rounds[0].survivors)
    with pytest.raises(KeyboardInterrupt):
        run_wanted(data, [one], store, after_a_round, device="cpu")
    place = search_folder(store, one.name)
    before = [e for e in read_ledger(place / LEDGER_FILE) if e["event"] == "trial_ended"]
    assert len(before) == 4 and not store.searches
    assert run_wanted(data, [one], store, HERE, device="cpu") and not place.exists()
    record = store.searches[one.name]
    kept = sorted(record["rounds"][0]["scores"].values())
    assert sorted(e["result"]["mrr"] for e in before) == pytest.approx(kept)
    assert record["winner"] is not None and record["test"]["mrr"] > 0


def failing(*results: TrialResult, why: str = "No trial of round 1 has a score."):
    """A way to open searches that fail with these results in their first round."""
    plan = Round(1, 1, 1.0, 1.0, 1.0, 1.0, (), True, None, 60, 3, 600, 60, 1.0, 600, False, 1.0)
    state = SearchState(rounds=[RoundState(plan, {r.number: r for r in results})], failed=why)

    class Failing:
        def __init__(self, dataset, *, out, **more):
            self.result = type("R", (), {"state": state})()
            out.mkdir(parents=True)
            (out / "ledger.jsonl").touch()

        def run(self, max_seconds=None, progress=True):
            raise SearchFailed(why)

    return Failing


def test_a_search_without_a_model_counts_as_nothing_and_one_that_its_machine_failed_is_tried_again(
    tmp_path, monkeypatch
):
    one, data, said = wanted_of(TWO[0])[0], small_graph(), []
    store = store_of(tmp_path, data)
    memory = failing(TrialResult(1, 0, 3, "out_of_memory"))
    assert not run_wanted(data, [one], store, memory, device="cpu", say=said.append)
    assert not store.searches and "tries it again" in said[0] and search_folder(store, one.name).exists()
    monkeypatch.setattr(confirm, "round_seconds", lambda events: {1: 1.0})
    other = store_of(tmp_path / "other", data)
    assert run_wanted(data, [one], other, failing(TrialResult(1, 0, 1, "diverged")), device="cpu")
    record = other.searches[one.name]
    assert record["test"]["mrr"] == 0 and "No trial" in record["failed"] and record["winner"] is None
    page = confirm_page([one], other, label="x", command="grash")
    assert "No trial of round 1" in write_page(page, tmp_path).read_text()


def test_another_error_ends_the_study_and_loses_nothing(tmp_path):
    wanted, data = wanted_of(*TWO), small_graph()
    store = store_of(tmp_path, data)
    store.add_search(made_up(wanted[0], 0.3))

    def broken(*given, **more):
        raise GrashError("The card failed.")

    with pytest.raises(GrashError, match="card failed"):
        run_wanted(data, wanted, store, broken, device="cpu")
    assert list(store_of(tmp_path, data).searches) == [wanted[0].name]


def test_stores_of_two_machines_are_merged_and_other_graphs_refused(tmp_path):
    wanted, data = wanted_of(*TWO), small_graph()
    for folder, one in zip("ab", wanted):
        store = store_of(tmp_path / folder, data)
        store.add_search(made_up(one, 0.3))
        store.release()
    assert merge_stores(tmp_path / "a", tmp_path / "b") == {"confirm-small.jsonl": 1}
    assert set(store_of(tmp_path / "a", data).searches) == {w.name for w in wanted}
    with pytest.raises(GrashError, match="another study"):
        store_of(tmp_path / "a", small_graph(seed=1))


def test_a_plan_takes_the_seconds_of_the_first_search_of_each_model(tmp_path):
    wanted, data = wanted_of(*TWO, seeds=3), small_graph()
    store = store_of(tmp_path, data)
    store.add_search(made_up(wanted[0], 0.3, seconds=8.0))

    def planned(*given, **more):
        return SimpleNamespace(plan=lambda: SimpleNamespace(seconds=10.0))

    assert plan_wanted(data, wanted, store, planned, device="cpu").splitlines() == [
        "confirm-small: 1 of 6 searches are there",
        "  complex: 5 of about 10 s with final training",
        "about 50 s of cpu in all",
    ]


def test_differences_are_taken_seed_by_seed_over_those_that_both_have(tmp_path):
    wanted = wanted_of(*TWO, seeds=3, models=("complex", "transe"))
    store = store_of(tmp_path, small_graph())
    for one in wanted:
        gain = {"default": 0.0, "sobol": 0.01 + 0.01 * one.seed}[one.candidate.name]
        if (one.seed, one.model, one.candidate.name) != (2, "transe", "default"):
            store.add_search(made_up(one, 0.1 * (one.seed + 1) + gain))
    columns = columns_of(wanted, store)
    assert differences(columns, "complex", "sobol") == pytest.approx([0.01, 0.02, 0.03])
    assert differences(columns, "transe", "sobol") == pytest.approx([0.01, 0.02])
    assert len(differences(columns, "all", "sobol")) == 5
    text = write_page(confirm_page(wanted, store, label="a b", command="grash"), tmp_path).read_text()
    assert "| complex | sobol | +0.0200 | -0.0048 … +0.0448 | 3 of 3 |" in text  # 0.02 ± 4.303 · 0.01 / √3
    assert "| transe | default | 2 of 3 |" in text and text.count("not run yet") == 8
    assert "| complex | default | 3 of 3 | 0.2000 [-0.0484, 0.4484] | 0.1 |" in text
    name = "confirm-small-complex-transe-d4-e8-a_b"
    assert len((tmp_path / f"{name}.csv").read_text().splitlines()) == 1 + 11
    ElementTree.parse(tmp_path / "img" / f"{name}.svg")


def test_a_page_without_results_has_no_plot(tmp_path):
    wanted = wanted_of(*TWO)
    page = confirm_page(wanted, store_of(tmp_path, small_graph()), label="x", command="grash")
    text = write_page(page, tmp_path).read_text()
    assert "computed on not run yet" in text and "| complex | sobol | 0 of 1 | not run yet |" in text
    assert not (tmp_path / "img").exists()


def test_published_figures_stand_beside_graphs_that_have_them(tmp_path):
    assert figures("WN18RR", "rotate")[0].mrr == 0.478 and figures("small", "complex") == ()
    assert known_before("portfolio:libkge-fb15k-237-complex", "FB15k-237") == "winner of this graph"
    assert known_before("portfolio:libkge-fb15k-237-complex", "WN18RR") == "winner of another graph"
    assert known_before("random", "random") == ""
    wanted = wanted_of(TWO[0])
    store = store_of(tmp_path, small_graph())
    store.meta["dataset"] = "CoDEx-S"
    store.add_search(made_up(wanted[0], 0.47, origin="portfolio:libkge-codex-s-complex"))
    text = write_page(confirm_page(wanted, store, label="x", command="grash"), tmp_path).read_text()
    assert "| complex | LibKGE (Safavi and Koutra, 2020) | 512 | 0.465 | 0.372 |  | 0.646 |" in text
    assert "1 of these 1 picks are published winners of this very graph" in text
    again = store_of(tmp_path / "again", small_graph())
    again.meta["dataset"] = "CoDEx-S"
    again.add_search(made_up(wanted[0], 0.46, origin="portfolio:ssl-rp-codex-m-complex"))
    text = write_page(confirm_page(wanted, again, label="x", command="grash"), tmp_path / "again").read_text()
    assert "| winner of a sibling |" in text


def test_the_origin_of_a_pick_shows_what_was_known_of_a_graph():
    assert known_before("prior", "FB15k-237") == known_before("prior", "codex-s") == "prior, fitted here too"
    assert known_before("prior", "small") == "prior" and known_before("uniform", "codex-s") == ""
    assert known_before("portfolio:libkge-wn18rr-complex", "codex-s") == "winner of another graph"


def named(name: str, **changes):
    """The searches of default and default-without-family on a graph of this name."""
    data = replace(small_graph(), name=name)
    common = {"dim": 64, "max_epochs": 50.0, "n_trials": 32, "guard_rails": False, **changes}
    two = [preset_candidate(n) for n in ("default", "default-without-family")]
    return wanted_searches(data, two, models=("complex",), seeds=1, common=common)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("graph", "family"),
    [("FB15k-237", ("fb15k-237", "freebase")), ("wn18rr", ("wn18rr",)), ("CoDEx-S", ("codex", "wikidata"))],
)
def test_a_candidate_without_its_family_knows_no_winner_of_it(graph, family):
    default, without = (make_configurations(one.settings, 60, 32, n_train=200) for one in named(graph))
    kinds = [[c.origin.partition(":")[0] for c in drawn] for drawn in (default, without)]
    assert kinds[0] == kinds[1] and kinds[0].count("prior") == 16
    for kind, differ in (("uniform", False), ("prior", True)):
        values = [[c.values for c in drawn if c.origin == kind] for drawn in (default, without)]
        assert (values[0] != values[1]) == differ
    winners = [[c.origin for c in drawn if c.origin.startswith("portfolio:")] for drawn in (default, without)]
    assert any(name in origin for origin in winners[0] for name in family)
    assert winners[1] and not any(name in origin for origin in winners[1] for name in family)


def test_a_graph_without_published_winners_loses_nothing():
    default, without = named("debian-10")
    assert default.name == without.name and default.settings == without.settings
    fixed = named("FB15k-237", proposals="sobol")
    assert fixed[0].name == fixed[1].name


@pytest.mark.slow
def test_a_search_without_its_family_is_another_search_with_as_many_trials(tmp_path):
    one, other = named("FB15k-237", max_epochs=8.0, n_trials=4, eta=2, dim=4)
    assert one.name != other.name and other.candidate.preset == "default" and len(other.settings.initial) == 4
    data = replace(small_graph(), name="FB15k-237")
    store = store_of(tmp_path, data)
    assert run_wanted(data, [other], store, HERE, device="cpu")
    record = store.searches[other.name]
    assert [r["trials"] for r in record["rounds"]] == [4, 2] and "fb15k" not in record["origin"]
    store.add_search({**record, "origin": "prior"})
    text = write_page(confirm_page([one, other], store, label="x", command="grash"), tmp_path).read_text()
    assert "| default-without-family | default | without published winners and prior of the graph's family |" in text
    assert (
        "1 of these 1 picks are drawn from the prior, which is fitted to published trials and winners of other" in text
    )


def test_families_share_entities_and_relations():
    assert family_of("FB15k") == family_of("fb15k_237") == family_of("Freebase") == "freebase"
    assert family_of("CoDEx-M") == family_of("Wikidata5M") and family_of("WN18RR") == family_of("wn18")
    assert family_of("YAGO3-10") == "yago" and family_of("small") == "small"
    assert set(json.loads(PRIORS.read_text(encoding="utf-8"))) == {family_of(w["dataset"]) for w in all_winners()}


@pytest.mark.skipif(not TRIALS.exists(), reason="the tuning trials are not here")
def test_priors_without_a_family_are_those_of_the_tool():
    spec = importlib.util.spec_from_file_location("fit_prior", ROOT / "tools" / "fit_prior.py")
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    stored = json.loads(PRIORS.read_text(encoding="utf-8"))
    for family in ("freebase", "wikidata"):
        fitted = tool.fit(TRIALS, without=family)
        assert fitted.keys() == stored[family].keys()
        for model, shapes in stored[family].items():
            assert fitted[model].keys() == shapes.keys() and fitted[model]["init"] == json.loads(
                json.dumps(shapes["init"])
            )
