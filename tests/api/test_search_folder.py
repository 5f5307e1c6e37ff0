"""Folders that a search gets, finds again or leaves alone: those of another search, in use, or on a full disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from engines.searches import SMALL, shifts, small_search
from grash.api.search import Search, SearchResult, default_folder
from grash.errors import ConfigError, InputError, OutputError
from grash.search.settings import make_settings


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"eta": 3}, "eta: 2 there, 3 now"),
        ({"seed": 1}, "seed: 0 there, 1 now"),
        ({"budget": 4}, r"budget: 3 there, 4 now.*--extend"),
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
    with pytest.raises(InputError, match="holds other files, so no search can start there"):
        small_search(tmp_path / "run").run()
    shifts(seed=1).save(tmp_path / "other" / "dataset")
    with pytest.raises(InputError, match="holds other files, so no search can start there"):
        small_search(tmp_path / "other").run()


def test_a_folder_that_cannot_be_had_is_refused_before_anything_is_planned(
    tmp_path: Path, finished: SearchResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grash.api.search.plan_search", lambda *given, **options: pytest.fail("was planned"))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("important")
    with pytest.raises(InputError, match="holds other files, so no search can start there"):
        small_search(tmp_path / "run").plan()
    (tmp_path / "file").write_text("important")
    with pytest.raises(InputError, match="file is a file, and a search needs a folder: give another name"):
        small_search(tmp_path / "file").plan()
    with pytest.raises(ConfigError, match="is a search with other settings.*seed: 0 there, 1 now"):
        small_search(finished.folder, seed=1).plan()


def test_a_folder_in_use_is_refused_and_free_again_afterwards(tmp_path: Path) -> None:
    first = small_search(tmp_path / "run", final_train=False)
    first.ask()
    with pytest.raises(InputError, match=r"is in use by process \d+ on .*: wait for it, stop it"):
        small_search(tmp_path / "run", final_train=False).run()
    first.close()
    with pytest.raises(ConfigError, match="other settings"):
        small_search(tmp_path / "run", final_train=False, seed=3).ask()
    assert small_search(tmp_path / "run", final_train=False, finalists=0).run().state.finished  # as `ask` has it


def test_a_disk_that_is_full_at_the_first_line_is_what_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write

    def full(handle: int, line: bytes) -> int:
        if line.startswith(b"process "):  # the lock
            return write(handle, line)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("grash.search.ledger.os.write", full)
        with pytest.raises(OutputError, match="No space left on device.*`grash resume`"):
            small_search(tmp_path / "run").run()
    assert small_search(tmp_path / "run", engine="sequential").run().state.finished


def test_a_search_without_a_folder_gets_one_and_finds_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = {k: v for k, v in SMALL.items() if k not in ("engine", "device")}
    options = {"engine": "sequential", "device": "cpu"}
    first = Search(shifts(), **settings, **options)
    assert first.folder == Path("runs/shifts-complex-search")
    first.run(max_seconds=0.0)
    again = Search(shifts(), **settings, **options)
    assert again.folder == first.folder
    again.run()
    assert Search(shifts(), **settings, **options).folder == Path("runs/shifts-complex-search-2")
    assert default_folder(shifts(seed=1), make_settings(settings)).name == "shifts-complex-search-2"
