"""The resume law: a search that is cut anywhere goes on to the end that it would have had."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grash.errors import SearchFailed
from grash.files import write_checksums
from grash.search.ledger import LEDGER_FILE, SearchState, read_ledger
from grash.search.run_folder import BEST_FILE
from grash.training.config import read_config
from table_engine import NumberGraphs, essence, quick_settings, run_search, without_waits


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    with without_waits():
        yield


def small(**changes: Any) -> NumberGraphs:
    return NumberGraphs(quick_settings(**{"n_trials": 8, "eta": 2, "guard_rails": False, **changes}))


MISHAPS: Any = {
    (1, 3): ["diverged"],
    (1, 5): ["out_of_memory"],
    (2, 1): ["killed", "killed", "killed"],
    (0, 0): ["killed"],
}


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["combined", "epoch"])
def test_a_search_cut_after_any_line_of_its_ledger_goes_on_to_the_same_end(tmp_path: Path, variant: str) -> None:
    graphs = small(variant=variant, carry_over=True)
    whole = tmp_path / "whole"
    expected, _ = run_search(whole, graphs, faults=MISHAPS)
    lines = (whole / LEDGER_FILE).read_bytes().splitlines(keepends=True)
    assert len(lines) > 35
    for count in range(len(lines) + 1):
        cut = tmp_path / f"cut-{count}"
        lived = relived(cut, lines[:count])
        again, engine = run_search(cut, graphs, faults=MISHAPS)
        assert essence(again) == essence(expected), count
        assert not {t[:2] for t in engine.ran} & settled(lived), "what has a result is not run again"
        shutil.rmtree(cut)


def relived(cut: Path, lines: list[bytes]) -> SearchState:
    """A folder as a crash would have left it after these lines, kept states included."""
    cut.mkdir()
    (cut / LEDGER_FILE).write_bytes(b"".join(lines))
    state = SearchState.replay(read_ledger(cut / LEDGER_FILE))
    lineage = state.settings.get("variant") == "epoch"
    for number, past in enumerate(state.rounds[: len(state.sizes) - 1], 1):
        for n, result in past.results.items():
            if result.status == "ok" and lineage:
                place = cut / f"round-{number}" / f"cfg-{n:04}" / "state"
                place.mkdir(parents=True)
                (place / "state.json").write_text(str(past.plan.positives))
                write_checksums(place)
    return state


def settled(state: SearchState) -> set[tuple[int, int]]:
    found = {(number, n) for number, past in enumerate(state.rounds, 1) for n in past.results}
    return found | ({(0, state.winner)} if state.final is not None and state.winner is not None else set())


def test_a_search_that_was_torn_in_the_middle_of_a_line_goes_on_too(tmp_path: Path) -> None:
    graphs = small(n_trials=4)
    whole = tmp_path / "whole"
    expected, _ = run_search(whole, graphs)
    content = (whole / LEDGER_FILE).read_bytes()
    for size in range(1, len(content), 611):
        (tmp_path / "torn").mkdir()
        (tmp_path / "torn" / LEDGER_FILE).write_bytes(content[:size])
        assert essence(run_search(tmp_path / "torn", graphs)[0]) == essence(expected)
        shutil.rmtree(tmp_path / "torn")


def test_going_on_with_a_finished_search_runs_nothing(tmp_path: Path) -> None:
    graphs = small()
    expected, _ = run_search(tmp_path, graphs)
    again, engine = run_search(tmp_path, graphs)
    assert essence(again) == essence(expected) and engine.ran == []


def test_a_search_stopped_by_its_time_limit_says_so_and_goes_on(tmp_path: Path) -> None:
    graphs = small()
    stopped, engine = run_search(tmp_path / "a", graphs, max_seconds=-1.0)
    assert stopped.stopped == "max_seconds" and not stopped.finished and engine.ran == []
    assert essence(run_search(tmp_path / "a", graphs)[0]) == essence(run_search(tmp_path / "b", graphs)[0])


def test_a_search_that_failed_for_its_machine_ends_with_the_winner_it_would_have_had(tmp_path: Path) -> None:
    """A machine kills the best in round 1 and then the final training; on a sound one both are tried again."""
    graphs = small()

    def by_number(round_number: int, number: int) -> float:
        return 0.1 + 0.05 * number

    faults: Any = {(1, 7): ["killed"] * 3, (0, 6): ["killed"] * 3}
    with pytest.raises(SearchFailed):
        run_search(tmp_path / "run", graphs, score=by_number, faults=faults)
    again, _ = run_search(tmp_path / "run", graphs, score=by_number)
    assert again.winner == 7 and again.final is not None and again.final.number == 7
    assert read_config(tmp_path / "run" / BEST_FILE).lr == again.configurations[7].values["lr"]


def test_a_search_that_failed_keeps_the_checkpoints_it_would_go_on_from(tmp_path: Path) -> None:
    graphs = small()
    best = run_search(tmp_path / "clean", graphs)[0].winner
    place = tmp_path / "run" / "final" / f"cfg-{best:04}" / "checkpoint"
    place.mkdir(parents=True)
    with pytest.raises(SearchFailed):
        run_search(tmp_path / "run", graphs, faults={(0, best): ["out_of_memory"] * 3})
    assert place.is_dir()
    run_search(tmp_path / "run", graphs)
    assert not place.exists()


def test_a_final_training_that_is_asked_for_later_and_fails_is_a_failure(tmp_path: Path) -> None:
    first, _ = run_search(tmp_path / "run", small(final_train=False))
    assert first.finished and first.final is None
    faults: Any = {(0, first.winner): ["out_of_memory"] * 3}
    with pytest.raises(SearchFailed, match="final training failed"):
        run_search(tmp_path / "run", small(), faults=faults)
    again, _ = run_search(tmp_path / "run", small())
    assert again.final is not None and again.final.status == "ok"
