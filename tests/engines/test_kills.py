"""Kill -9 at any moment of driver or worker, then the same command again: the result of an undisturbed run."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engines.searches import essence, events_of
from engines.storm import Life, storm
from grash.search.ledger import SearchState

# Every state that the ledger knows, and the moments between: lines half written, files written and not yet named.
EVERYWHERE: list[Life] = [
    ("renaming", "dataset", 1),
    ("renamed", "dataset", 1),
    ("renaming", "search.yaml", 1),
    ("torn", "search_started", 1),
    ("after", "search_started", 1),
    ("torn", "configurations_proposed", 1),
    ("after", "configurations_proposed", 1),
    ("torn", "search_resumed", 1),
    ("after", "round_opened", 1),
    ("after", "trial_started", 1),
    ("step", "any", 5),
    ("before", "trial_ended", 1),
    ("torn", "trial_ended", 1),
    ("after", "trial_ended", 1),
    ("after", "trial_started", 2),
    ("after", "trial_ended", 3),
    ("before", "round_closed", 1),
    ("after", "round_closed", 1),
    ("after", "round_opened", 1),
    ("step", "any", 9),
    ("after", "trial_ended", 2),
    ("torn", "round_closed", 1),
    ("after", "round_closed", 1),
    ("after", "trial_ended", 1),
    ("after", "round_closed", 1),
    ("renamed", "best.yaml", 1),
    ("after", "winner_chosen", 1),
    ("after", "trial_started", 1),
    ("step", "any", 20),
    ("renamed", "checkpoint", 7),
    ("renaming", "checkpoint", 5),
    ("step", "any", 3),
    ("renamed", "checkpoint", 12),
    ("renaming", "model", 1),
    ("renamed", "model", 1),
    ("before", "trial_ended", 1),
    ("after", "trial_ended", 1),
    ("torn", "search_finished", 1),
    ("after", "search_finished", 1),
]


@pytest.fixture
def undisturbed(sequential: Any, one_thread: None) -> Callable[..., dict[str, Any]]:
    """The result of a search that nobody disturbs, in this process, by what is changed in it."""
    return lambda **changes: essence(sequential(**changes))


@pytest.mark.slow
def test_a_search_that_is_killed_in_every_state_ends_as_if_nothing_had_been(tmp_path: Path, undisturbed: Any) -> None:
    codes = storm(tmp_path / "run", [*EVERYWHERE, None])
    assert codes == [-9] * len(EVERYWHERE) + [0] and len(EVERYWHERE) >= 20
    assert essence(tmp_path / "run") == undisturbed()
    killed_after = {event["event"] for event in events_of(tmp_path / "run")}
    assert killed_after == {name.removeprefix("_on_") for name in vars(SearchState) if name.startswith("_on_")} - {
        "search_extended",
        "search_stopped",
        "time_planned",
        "plan_changed",
    }


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"variant": "epoch"}, {"warm_start": "weights"}], ids=["epoch", "warm start"])
def test_kept_states_survive_kills(tmp_path: Path, undisturbed: Any, changes: dict[str, Any]) -> None:
    """Survivors go on from states on disk: killed while one is written, just after, and while one is taken over."""
    lives: list[Life] = [
        ("renaming", "state", 1),
        ("renamed", "state", 1),
        ("renaming", "state", 3),
        ("before", "trial_ended", 1),
        ("after", "trial_ended", 4),
        ("after", "round_closed", 1),
        ("renaming", "state.json", 1),
        ("step", "any", 1),
        ("step", "any", 6),
        ("renaming", "state", 2),
        ("renamed", "checkpoint", 4),
        ("renaming", "checkpoint", 3),
        ("after", "round_closed", 1),
        ("after", "trial_started", 1),
        ("after", "round_closed", 1),
    ]
    codes = storm(tmp_path / "run", [*lives, None], **changes)
    assert codes == [-9] * len(lives) + [0]
    assert essence(tmp_path / "run") == undisturbed(**changes)


@pytest.mark.slow
def test_kills_at_any_moment_change_nothing(tmp_path: Path, undisturbed: Any) -> None:
    draw = random.Random(1)
    lives: list[Life] = [("seconds", "", draw.uniform(0.02, 0.5)) for _ in range(14)]
    codes = storm(tmp_path / "run", [*lives, None], variant="epoch")
    assert codes[-1] == 0 and codes.count(-9) > 5
    assert essence(tmp_path / "run") == undisturbed(variant="epoch")


@pytest.mark.slow
def test_drivers_of_processes_are_killed_and_the_result_is_that_of_sequential(tmp_path: Path, undisturbed: Any) -> None:
    """Workers are in the middle of trials then, and end with their driver (storm.py looks); at last they are killed."""
    lives: list[Life] = [
        ("after", "search_started", 1),
        ("after", "trial_started", 2),
        ("after", "trial_ended", 2),
        ("torn", "trial_ended", 2),
        ("after", "round_closed", 2),
        ("after", "winner_chosen", 1),
        ("before", "trial_ended", 1),
    ]
    codes = storm(tmp_path / "run", [*lives, ("workers", "trial_started", 1)], engine="processes", workers=2)
    assert codes == [-9] * len(lives) + [0]
    assert essence(tmp_path / "run") == undisturbed()


@pytest.mark.slow
def test_the_folder_of_a_finished_search_holds_no_weights_of_trials(undisturbed: Any) -> None:
    for changes in ({}, {"variant": "epoch"}, {"warm_start": "weights"}):
        names = undisturbed(**changes)["files"]
        assert not [name for name in names if name.startswith(("round-", "final", "."))]
        assert {"search.yaml", "ledger.jsonl", "best.yaml", "model/embeddings.safetensors"} <= set(names)
