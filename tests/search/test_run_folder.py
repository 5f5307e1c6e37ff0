"""The run folder: one writer, one dataset, one set of settings, and nothing left lying about."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from grash.api.search import Search
from grash.data.dataset import Dataset
from grash.errors import ConfigError, FormatError, GrashError, InputError, OutputError
from grash.search.ledger import LEDGER_FILE, RoundState, SearchState
from grash.search.run_folder import (
    BEST_FILE,
    SEARCH_FILE,
    RunFolder,
    check_same,
    read_dataset,
    read_search,
    read_settings,
    write_search,
)
from grash.training.config import read_config
from grash.yaml_files import with_checksum
from small_graph import rings
from table_engine import NumberGraphs, quick_settings, run_search

HOLD = """
import sys
from pathlib import Path
from grash.search.run_folder import RunFolder
with RunFolder(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
def test_a_folder_that_another_process_writes_to_says_by_whom(tmp_path: Path) -> None:
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert other.stdin is not None and other.stdout is not None
    try:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(InputError, match=rf"is in use by process {other.pid} on .*: wait for it, stop it"):
            RunFolder(tmp_path).__enter__()
        other.kill()  # a lock dies with its process, however that ends
        other.wait()
        with RunFolder(tmp_path) as folder, pytest.raises(InputError, match=f"process {os.getpid()} on"):
            RunFolder(folder.path).__enter__()
        with RunFolder(tmp_path):
            pass
    finally:
        other.kill()
        other.stdin.close()
        other.stdout.close()
        other.wait()


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="could not be written: Not a directory"):
        RunFolder(tmp_path / "file" / "run").__enter__()


def begun(folder: Path, **changes: Any) -> Dataset:
    dataset = rings()
    folder.mkdir(exist_ok=True)
    write_search(folder, quick_settings(**changes), dataset, "rings.tsv")
    return dataset


def test_what_a_search_is_can_be_read_again(tmp_path: Path) -> None:
    dataset = begun(tmp_path, n_trials=7, models="complex,rotate", initial=[{"values": {"lr": 0.1}, "origin": "user"}])
    settings = read_settings(tmp_path)
    assert settings.n_trials == 7 and settings.models == ("complex", "rotate")
    assert settings == quick_settings(
        n_trials=7, models="complex,rotate", initial=[{"values": {"lr": 0.1}, "origin": "user"}]
    )
    there = read_dataset(tmp_path)
    assert there.fingerprint == dataset.fingerprint and np.array_equal(there.train, dataset.train)
    check_same(tmp_path, settings, dataset)


def test_an_encoded_graph_is_used_where_it_lies(tmp_path: Path) -> None:
    dataset = rings()
    dataset.save(tmp_path / "rings")
    (tmp_path / "run").mkdir()
    write_search(tmp_path / "run", quick_settings(), dataset, str(tmp_path / "rings"))
    assert not (tmp_path / "run" / "dataset").exists() and read_dataset(tmp_path / "run").n_entities == 12
    (tmp_path / "rings").rename(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="The graph of .* is no longer in .*rings: put it back to resume"):
        read_dataset(tmp_path / "run")
    rings(15).save(tmp_path / "rings")
    with pytest.raises(InputError, match="is not the graph that .* started with: put that one back to resume"):
        read_dataset(tmp_path / "run")


def test_another_dataset_is_refused(tmp_path: Path) -> None:
    begun(tmp_path)
    with pytest.raises(InputError, match=r"is a search on another dataset \(rings, fingerprint .* give another folder"):
        check_same(tmp_path, quick_settings(), rings(15))


def test_changed_settings_are_refused_with_the_difference(tmp_path: Path) -> None:
    dataset = begun(tmp_path)
    now = quick_settings(n_trials=80, variant="epoch")
    said = r"n_trials: 64 there, 80 now; variant: combined there, epoch now"
    with pytest.raises(ConfigError, match=rf"other settings \({said}\): give the same settings .* or --extend"):
        check_same(tmp_path, now, dataset)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda text: text[: len(text) // 2] + "\n\t: [", "cannot be read as YAML"),
        (lambda text: "", "does not describe a grash-search"),
        (lambda text: "- 1\n- 2\n", "does not describe a grash-search"),
        (lambda text: text.replace("grash-search", "grash-model"), "does not describe a grash-search"),
        (lambda text: text.replace("version: 1\n", "version: 2\n"), "of version 2, but this grash reads version 1"),
        (lambda text: text[: text.index("settings:")], "its .dataset. or .settings. entry is incomplete"),
        (lambda text: text.replace("  fingerprint:", "  finger:"), "its .dataset. or .settings. entry is incomp"),
        (lambda text: text.replace("n_trials: 64", "n_trials: -1"), "n_trials=-1 is not valid: give 1 or more"),
        (lambda text: text.replace("n_trials:", "ntrials:"), "'ntrials' is not a setting of a search"),
    ],
)  # fmt: skip
def test_a_damaged_description_is_refused_in_a_sentence_and_left_alone(
    tmp_path: Path, change: Any, sentence: str
) -> None:
    dataset = begun(tmp_path)
    path = tmp_path / SEARCH_FILE
    text = path.read_text(encoding="utf-8")
    path.write_bytes(with_checksum(change(text[: text.index("# checksum")]).encode()))
    before = path.read_bytes()
    with pytest.raises(GrashError, match=sentence):
        check_same(tmp_path, quick_settings(), dataset)
    assert path.read_bytes() == before


@pytest.mark.slow
def test_any_changed_bit_of_a_description_is_noticed(tmp_path: Path) -> None:
    begun(tmp_path)
    path = tmp_path / SEARCH_FILE
    content = path.read_bytes()
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1 << place % 8]) + content[place + 1 :])
        with pytest.raises(FormatError, match="search.yaml was edited or is damaged: .* restore a copy"):
            read_search(tmp_path)
    path.write_bytes(content)
    assert read_search(tmp_path)["schema"] == "grash-search"


def test_bytes_that_are_no_text_are_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / SEARCH_FILE).write_bytes(with_checksum(b"\xff\xfe\x00"))
    with pytest.raises(InputError, match="cannot be read as YAML"):
        read_search(tmp_path)


def test_a_folder_without_a_search_is_not_a_run_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not the run folder of a search: it has no search.yaml"):
        read_search(tmp_path)


def test_a_folder_with_other_files_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    search = Search(rings(), out=tmp_path, n_trials=2, max_epochs=1, dim=4)
    with pytest.raises(InputError, match="holds other files, so no search can start there: give another folder"):
        search.run()
    assert (tmp_path / "thesis.tex").read_text() == "precious" and not (tmp_path / SEARCH_FILE).exists()


def test_a_full_disk_before_the_first_line_leaves_no_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(yaml, "safe_dump", full)
    with pytest.raises(OutputError, match="No space left on device"):
        begun(tmp_path)
    assert not (tmp_path / SEARCH_FILE).exists() and not list(tmp_path.glob(".search*"))


def states_in(path: Path) -> list[str]:
    return sorted(str(p.parent.parent.relative_to(path)) for p in path.glob("round-*/*/state/state.json"))


def test_states_of_dropped_trials_go_at_the_barrier_and_all_at_the_end(tmp_path: Path) -> None:
    settings = quick_settings(n_trials=8, eta=2, variant="epoch", guard_rails=False)
    graphs = NumberGraphs(settings)
    seen: dict[str, list[str]] = {}

    def watching(round_number: int, number: int) -> float:
        seen.setdefault(f"{round_number}", states_in(tmp_path))
        return float(-number)

    run_search(tmp_path, graphs, score=watching)
    assert seen["1"] == []
    assert seen["2"] == [f"round-1/cfg-{n:04}" for n in range(4)]
    assert seen["3"] == [f"round-2/cfg-{n:04}" for n in range(2)]
    assert states_in(tmp_path) == [] and not list(tmp_path.glob("round-*"))


def test_tidying_keeps_what_an_open_round_may_need(tmp_path: Path) -> None:
    settings = quick_settings(n_trials=8, eta=2, variant="epoch", guard_rails=False)
    from table_engine import decide

    state: SearchState = decide(settings, NumberGraphs(settings))
    state.rounds, state.finished = [RoundState(past.plan) for past in state.rounds[:2]], False
    for number, n in ((1, 0), (1, 7), (2, 7)):
        (tmp_path / f"round-{number}" / f"cfg-{n:04}" / "state").mkdir(parents=True)
    folder = RunFolder(tmp_path)
    folder.tidy(state)
    assert len(list(tmp_path.glob("round-*/*"))) == 3
    state.rounds[0].survivors = [7]
    folder.tidy(state)
    assert sorted(p.name for p in tmp_path.glob("round-*/*")) == ["cfg-0007", "cfg-0007"]
    state.rounds[1].survivors = [7]
    folder.tidy(state)
    assert [str(p.relative_to(tmp_path)) for p in tmp_path.glob("round-*/*")] == ["round-2/cfg-0007"]


@pytest.mark.parametrize("round_number", [0, 2])
def test_a_kill_while_a_checkpoint_is_removed_leaves_no_half_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, round_number: int
) -> None:
    folder = RunFolder(tmp_path)
    place = folder.trial(round_number, 3)
    for name in ("state.json", "tensors.safetensors"):
        (place / "checkpoint").mkdir(parents=True, exist_ok=True)
        (place / "checkpoint" / name).touch()
    with monkeypatch.context() as patch:
        patch.setattr("grash.search.run_folder.shutil.rmtree", lambda path, **_: (path / "state.json").unlink())
        folder.remove_checkpoint(round_number, 3)
    assert place.is_dir() and not (place / "checkpoint").exists()
    folder.remove_checkpoint(round_number, 3)
    assert not place.exists()
    folder.remove_checkpoint(round_number, 3)


def test_the_winner_is_written_as_a_configuration_that_can_be_trained(tmp_path: Path) -> None:
    settings = quick_settings(n_trials=4, eta=2, max_epochs=50.0)
    state, _ = run_search(tmp_path, NumberGraphs(settings))
    best = read_config(tmp_path / BEST_FILE)
    assert best.model_dump() == state.configurations[state.winner].values and best.epochs == 50
    assert (best.valid_every, best.patience) == (2.5, 10)
    assert (tmp_path / LEDGER_FILE).is_file()


def test_a_winner_that_was_edited_is_used_with_a_warning_and_restored_by_a_resumed_search(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    search = Search(rings(), out=tmp_path / "run", n_trials=2, max_epochs=1, dim=4, engine="sequential", device="cpu")
    search.run()
    path = tmp_path / "run" / BEST_FILE
    written = path.read_bytes()
    assert read_config(path).dim == 4 and "edited" not in caplog.text
    path.write_bytes(written.replace(b"dim: 4\n", b"dim: 6\n"))
    assert read_config(path).dim == 6
    assert "best.yaml was edited by hand: its content does not match its checksum. It is used as it is." in caplog.text
    caplog.clear()
    Search.open(tmp_path / "run").run()
    assert path.read_bytes() == written
    assert "best.yaml was edited by hand: it is written again from the ledger." in caplog.text
    caplog.clear()
    path.unlink()
    Search.open(tmp_path / "run").run()
    assert path.read_bytes() == written and "edited" not in caplog.text
