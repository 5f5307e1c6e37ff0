"""A flipped bit in a file of a stopped search is reported or repaired; it never changes the result silently."""

from __future__ import annotations

import random
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from engines.searches import VIEWS, essence, small_search, state_of
from grash.api.search import Search
from grash.errors import GrashError
from grash.search.callbacks import OnChange
from grash.training import loop

WARM: dict[str, Any] = {"warm_start": "weights"}
EPOCH: dict[str, Any] = {"variant": "epoch"}


def stopped(folder: Path, **changes: Any) -> None:
    """Run a search until a trial of its second round has begun, then stop it with a checkpoint."""

    def watch(state: Any, progress: Any, devices: Any) -> None:
        if any(round_number == 2 for round_number, _ in progress):
            raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        small_search(folder, **changes).run(callbacks=[OnChange(watch)])
    assert not state_of(folder).finished


def damaged_files(folder: Path) -> list[Path]:
    return [p for p in sorted(folder.rglob("*")) if p.is_file() and p.name not in (*VIEWS, ".lock")]


def flip_a_bit(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    place = rng.randrange(len(content))
    content[place] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, WARM, EPOCH], ids=["combined", "warm start", "epoch"])
def test_a_flipped_bit_never_changes_a_result_silently(
    tmp_path: Path, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "_REPORT_SECONDS", -1.0)
    small_search(tmp_path / "whole" / "run", **changes).run()
    expected = essence(tmp_path / "whole" / "run")
    stopped(tmp_path / "stopped" / "run", **changes)
    files = damaged_files(tmp_path / "stopped" / "run")
    assert any(p.parent.name == "checkpoint" for p in files)
    rng, reported = random.Random(0), 0
    for number, file in enumerate(files):
        again = tmp_path / f"again-{number}" / "run"
        shutil.copytree(tmp_path / "stopped" / "run", again)
        flip_a_bit(again / file.relative_to(tmp_path / "stopped" / "run"), rng)
        try:
            Search.open(again, engine="sequential", device="cpu").run()
        except GrashError as error:
            reported += 1
            assert "\n" not in str(error), error
        else:
            assert essence(again) == expected, file
        shutil.rmtree(again)
    assert reported
