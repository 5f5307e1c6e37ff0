"""Searches as results of a study: kept as one record, run again when a default changes, cut off, interrupted."""

from __future__ import annotations

import json
import shutil
import signal

import pytest

from grash.engines import trainer as runs
from grash.engines.driver import Driver
from grash.search.ledger import LEDGER_FILE, read_ledger
from grash.search.proposals import make_configurations
from grash_study import searches
from grash_study import searches as resources
from grash_study import searches as variants
from grash_study.pool import DEFAULT
from grash_study.searches import SearchOfPool, plan_searches, run_search, run_searches, search_folder
from grash_study.store import Store, cells_on
from small_graph import grash
from study.small_study import small_graph, small_pool, small_study

EPOCHS = {"epochs": 8.0}  # so that first rounds of four have an epoch


def test_a_search_draws_the_configurations_of_the_pool():
    pool = small_pool(6)
    for preset in ("default", "paper"):
        settings = SearchOfPool(preset, 4, (("variant", "graph"),)).settings(pool.meta())
        drawn = make_configurations(settings, 60, 4)
        assert [c.values for c in drawn] == [c.values for c in pool.configurations[:4]]


def test_a_search_is_kept_as_one_record_and_not_run_again(tmp_path):
    graphs, store = small_study(tmp_path, n=4, **EPOCHS)
    asked = [SearchOfPool("paper", 4, (("variant", "epoch"), ("eta", 2)))]
    assert "0 of 1 searches" in plan_searches(graphs, asked, store, device="cpu")
    assert run_searches(graphs, asked, store, device="cpu")
    record = store.searches[asked[0].name]
    assert record["winner"] in range(4) and [r["trials"] for r in record["rounds"]] == [4, 2]
    assert record["spent"] <= 3 and all(r["seconds"] >= 0 and r["model_bytes"] > 0 for r in record["rounds"])
    said: list[str] = []
    assert run_searches(graphs, asked, store, device="cpu", max_seconds=0, say=said.append) and not said
    assert "1 of 1 searches" in plan_searches(graphs, asked, store, device="cpu")


def counted(monkeypatch) -> list[SearchOfPool]:
    """The searches that are run from now on."""
    ran, real = [], searches.run_search
    monkeypatch.setattr(
        searches, "run_search", lambda graphs, one, *a, **k: (ran.append(one), real(graphs, one, *a, **k))[1]
    )
    return ran


def as_older(record: dict) -> dict:
    """A record of a time when no search had a trend, and nothing said whether it was warmed."""
    return {**{k: v for k, v in record.items() if k != "warmed"}, "settings": {**record["settings"], "trend": 0.0}}


def test_a_search_whose_default_has_changed_is_run_again(tmp_path, monkeypatch):
    graphs, store = small_study(tmp_path, n=4, **EPOCHS)
    new, same = (SearchOfPool(preset, 4, (("variant", "graph"),)) for preset in ("default", "paper"))
    assert run_searches(graphs, [new, same], store, device="cpu")
    for one in (new, same):
        store.add_search(as_older(store.searches[one.name]))
    store.release()
    store, ran = graphs.pool.store(tmp_path), counted(monkeypatch)
    assert "1 of 2 searches" in plan_searches(graphs, [new, same], store, device="cpu")
    assert variants.pick_cells(store, [new], DEFAULT) == cells_on("whole", 1.0, [DEFAULT])
    assert not run_searches(graphs, [new, same], store, device="cpu", max_seconds=0)
    assert run_searches(graphs, [new, same], store, device="cpu") and ran == [new]
    assert store.searches[new.name]["settings"]["trend"] == 0.5
    assert run_searches(graphs, [new, same], store, device="cpu") and ran == [new]


def test_a_search_that_is_to_be_warmed_is_not_taken_from_one_that_was_not(tmp_path, monkeypatch):
    graphs, store = small_study(tmp_path, n=4, **EPOCHS)
    cold, warm = (variants.variant_searches(["graph"], n=4, preset="paper", warm=w) for w in (False, True))
    ran = counted(monkeypatch)
    assert run_searches(graphs, cold, store, device="cpu")
    assert "0 of 1 searches" in plan_searches(graphs, warm, store, device="cpu")
    assert run_searches(graphs, warm, store, device="cpu") and ran == cold + warm
    assert store.searches[warm[0].name]["warmed"]
    assert run_searches(graphs, cold, store, device="cpu") and ran == cold + warm  # and not the other way round


def test_pages_show_no_search_and_no_timed_round_of_other_settings(tmp_path):
    graphs, store = small_study(tmp_path, n=4, **EPOCHS)
    asked = variants.variant_searches(["graph"], n=4, preset="default", warm=True)
    assert run_searches(graphs, asked, store, device="cpu")
    assert resources.time_first_rounds(graphs, asked, store, device="cpu")
    said: list[str] = []
    assert resources.time_first_rounds(graphs, asked, store, device="cpu", say=said.append) and not said
    for record in list(store.searches.values()):
        store.add_search(as_older(record))
    page = resources.resources_page(store, asked, command="grash")
    assert page.raw.rows == (("graph", *(None,) * 8),)
    assert all(row[2] is None for row in page.more["-at-a-time.csv"].rows)
    assert not resources.time_first_rounds(graphs, asked, store, device="cpu", max_seconds=-1)


def test_a_search_without_time_is_not_kept(tmp_path):
    graphs, store = small_study(tmp_path, n=4, **EPOCHS)
    asked = SearchOfPool("paper", 4, (("variant", "epoch"),))
    assert run_search(graphs, asked, search_folder(store, asked.name), device="cpu", max_seconds=0.0) is None
    assert not run_searches(graphs, [asked], store, device="cpu", max_seconds=0.0) and not store.searches


def test_a_search_that_was_cut_off_is_resumed_with_its_trials_and_leaves_only_its_record(tmp_path, monkeypatch):
    graphs, store = small_study(tmp_path, n=4, **EPOCHS)
    asked = SearchOfPool("paper", 4, (("variant", "epoch"), ("eta", 2)))
    place = search_folder(store, asked.name)
    wanted = run_search(graphs, asked, tmp_path / "whole", device="cpu")
    shutil.copytree(tmp_path / "whole", place)
    (ledger,) = place.rglob(LEDGER_FILE)
    lines = ledger.read_text().splitlines(keepends=True)
    first = next(i for i, line in enumerate(lines) if json.loads(line)["event"] == "round_closed")
    ledger.write_text("".join(lines[: first + 1]))  # as a kill after the first round leaves it
    trained, whole = [], runs._run_stack
    monkeypatch.setattr(runs, "_run_stack", lambda g, jobs, *more: (trained.extend(jobs), whole(g, jobs, *more))[1])
    assert run_searches(graphs, [asked], store, device="cpu") and not place.exists()
    record = store.searches[asked.name]
    assert len(trained) == 2
    assert record["winner"] == wanted["winner"] and record["rounds"][0]["scores"] == pytest.approx(
        wanted["rounds"][0]["scores"]
    )


def interrupt(monkeypatch, when, number=signal.SIGINT) -> None:
    """Someone presses Ctrl-C once in a study's searches, after an event and state of which `when` is true."""
    pressed = []

    class Pressed(Driver):
        def _record(self, event, **fields):
            super()._record(event, **fields)
            if not pressed and when(event, self.state):
                pressed.append(signal.raise_signal(number))

    monkeypatch.setattr(searches, "Driver", Pressed)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_search_waits_and_the_next_is_not_begun(tmp_path, monkeypatch, number):
    graphs, store = small_study(tmp_path, n=4, **EPOCHS)
    asked = [SearchOfPool("paper", 4, (("variant", v), ("eta", 2))) for v in ("epoch", "graph")]
    interrupt(monkeypatch, lambda event, state: event == "trial_started", number)
    ran = counted(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        run_searches(graphs, asked, store, device="cpu")
    assert ran == asked[:1] and not store.searches
    (ledger,) = search_folder(store, asked[0].name).rglob(LEDGER_FILE)
    ended = [e for e in read_ledger(ledger) if e["event"] == "trial_ended"]
    assert len(ended) == 1  # the one that had been started
    assert run_searches(graphs, asked, store, device="cpu") and len(store.searches) == 2


def test_an_interrupted_search_that_finishes_is_kept_and_the_next_not_begun(tmp_path, monkeypatch):
    graphs, store = small_study(tmp_path, n=4, **EPOCHS)
    asked = [SearchOfPool("paper", 4, (("variant", v), ("eta", 2))) for v in ("epoch", "graph")]
    interrupt(monkeypatch, lambda event, state: event == "winner_chosen")
    ran = counted(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        run_searches(graphs, asked, store, device="cpu")
    assert ran == asked[:1] and list(store.searches) == [asked[0].name]


@pytest.mark.parametrize("when", ["trial_started", "winner_chosen"])
@pytest.mark.parametrize("verb", ["variants", "rounds"])
def test_a_command_that_is_interrupted_stops_with_130_and_trains_no_more(tmp_path, monkeypatch, verb, when):
    interrupt(monkeypatch, lambda event, state: event == when)
    small_graph().save(tmp_path / "graph")
    words = ["study", verb, tmp_path / "graph", "--n", 4, "--epochs", 8, "--dim", 4, "--device", "cpu"]
    words += ["--models", "complex,distmult", "--large-dim", 0, "--picks"] if verb == "variants" else []
    ran = grash(*words, "--store", tmp_path / "s", "-o", tmp_path / "o")
    assert ran.code == 130 and "Interrupted" in ran.err and " trained in " not in ran.out
    (path,) = (tmp_path / "s").glob("*.jsonl")
    kept = Store.read(path)
    assert not kept.entries and len(kept.searches) == (when == "winner_chosen") and not (tmp_path / "o").exists()


def test_a_search_of_other_settings_is_not_resumed(tmp_path):
    graphs, store = small_study(tmp_path, n=4, **EPOCHS)
    one, other = (SearchOfPool("paper", 4, (("variant", "epoch"), ("eta", eta))) for eta in (2, 4))
    place = tmp_path / "place"
    assert run_search(graphs, one, place, device="cpu") is not None
    record = run_search(graphs, other, place, device="cpu")
    assert [r["trials"] for r in record["rounds"]] == [4]
