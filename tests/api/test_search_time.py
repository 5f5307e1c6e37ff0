"""Real searches within a time: what is refused, that they end, and that they resume with what was decided."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engines.searches import SPACE, events_of, shifts, state_of
from grash.api.search import Search
from grash.errors import ConfigError

QUICK: dict[str, Any] = {"space": SPACE, "proposals": "random", "engine": "sequential", "device": "cpu"}


def timed(folder: Path, seconds: Any = 8, **changes: Any) -> Search:
    return Search(shifts(), out=folder, **{**QUICK, "time": seconds, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"budget": 2.0}, "time and budget were given"),
        ({"seconds": "5 parsecs"}, "is not a duration: give seconds"),
        ({"seconds": 0.001}, "is too short: on this machine and graph, the smallest search takes about .* or more"),
        ({"seconds": 2, "dim": 512, "max_epochs": 1e5}, "with dim=512, max_epochs=100000.0 takes about"),
        ({"engine": "ray"}, "time measures this machine"),
        ({"n_trials": 0}, "n_trials=0 is not valid"),
    ],
)
def test_what_does_not_go_together_is_an_error(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        timed(tmp_path / "run", **changes)
    assert not (tmp_path / "run").exists()


def test_extending_asking_and_more_time_are_refused_where_they_mean_nothing(tmp_path: Path) -> None:
    search = timed(tmp_path / "run", n_trials=2, max_epochs=1.0, dim=4)
    with pytest.raises(ConfigError, match="no budget to extend"):
        search.run(extend={"n_trials": 8})
    with pytest.raises(ConfigError, match="for resuming a search within a time"):
        search.run(time="2m")
    with pytest.raises(ConfigError, match="leave it out to ask for trials"):
        search.ask()


@pytest.mark.slow
def test_a_search_ends_in_time_with_a_tested_model_and_resumes_as_decided(tmp_path: Path) -> None:
    search = timed(tmp_path / "run", 10, dim=8)
    assert search.choice is not None and search.choice.given == ("dim",) and search.settings.dim == 8
    result = search.run(max_seconds=search.limit.left / 3 if search.limit else None)
    again = Search.open(tmp_path / "run")
    assert again.settings == search.settings and again.choice is None
    result = again.run()
    assert result.state.finished and result.model.evaluation["both"]["mrr"] > 0
    events = [e["event"] for e in events_of(tmp_path / "run")]
    assert events[:2] == ["search_started", "time_planned"] and events.count("time_planned") == 1
    assert timed(tmp_path / "run", 10, dim=8).settings == search.settings  # the same call finds its folder
    with pytest.raises(ConfigError, match=r"is a search with other settings \(time: 10 there, 7 now"):
        timed(tmp_path / "run", 7, dim=8)
    assert state_of(tmp_path / "run").time_limit is not None
