"""grash train as a rank: the one rank of a launch says, writes and refuses what `grash train` does."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from grash.cli.train import launched
from grash.engines import distributed
from grash.errors import ConfigError
from grash.models.store import load_model
from small_graph import grash, rings, write_tsv

SMALL = ("--dim", "4", "--epochs", "3", "--valid-every", "1", "--negatives", "5", "--device", "cpu")


@pytest.fixture
def source(tmp_path: Path) -> str:
    return str(write_tsv(rings(), tmp_path / "rings.tsv"))


@pytest.fixture
def one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for name, value in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, str(value))


@pytest.mark.slow
def test_without_a_launcher_nothing_of_it_is_imported(source: str, tmp_path: Path) -> None:
    code = (
        "import sys\nfrom grash.cli import main\n"
        f"assert main({['train', source, '-o', str(tmp_path / 'm'), '-q', *SMALL]!r}) == 0\n"
        "print([m for m in sys.modules if m.startswith('grash') and ('sharded' in m or m.endswith('s.distributed'))])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "[]" and not launched()


def test_one_rank_says_what_one_process_says(source: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    plain = grash("train", source, "-o", str(tmp_path / "plain"), "--json", *SMALL)
    request.getfixturevalue("one_rank")
    assert launched()
    ranked = grash("train", source, "-o", str(tmp_path / "ranked"), "--json", *SMALL)
    assert ranked.code == plain.code == 0, ranked.err
    wanted, found = json.loads(plain.out), json.loads(ranked.out)
    assert found.keys() == wanted.keys()
    for name in ("dataset", "config"):
        assert found[name] == wanted[name]
    assert found["evaluation"]["both"]["mrr"] == pytest.approx(wanted["evaluation"]["both"]["mrr"], abs=0.005)
    assert "one rank; rank 0 on cpu" in ranked.err and "done in" in ranked.err
    assert load_model(tmp_path / "ranked").evaluation == found["evaluation"]
    assert grash("evaluate", str(tmp_path / "ranked")).code == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["plain", "ranked", "rings.tsv"]


def test_tables_and_what_to_try_are_shown(source: str, tmp_path: Path, one_rank: None) -> None:
    ran = grash("train", source, "-o", str(tmp_path / "m"), *SMALL)
    assert ran.code == 0 and "head and tail" in ran.out and "grash evaluate" in ran.out


def test_mistakes_are_sentences(source: str, tmp_path: Path, one_rank: None) -> None:
    (tmp_path / "there").mkdir()
    ran = grash("train", source, "-o", str(tmp_path / "there"), *SMALL)
    assert ran.code == 2 and "already exists" in ran.err
    ran = grash("train", source, "-o", str(tmp_path / "m"), "--placement", "host", *SMALL)
    assert ran.code == 2 and "is only for a training in one process" in ran.err


def test_every_rank_says_what_is_wrong_with_its_number(
    source: str, tmp_path: Path, one_rank: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", "2")
        ran = grash("train", source, "-o", str(tmp_path / "m"), "--placement", "host", *SMALL)
        assert (
            ran.code == 2 and f"error: rank {rank}: --placement host is only for a training in one process" in ran.err
        )
        ran = grash("train", str(tmp_path / "absent"), *SMALL)
        assert ran.code == 2 and f"error: rank {rank}: There is no file or folder" in ran.err


def test_only_trainings_are_launched_as_several(one_rank: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert grash("models").code == 0  # one process is one process
    monkeypatch.setenv("WORLD_SIZE", "2")
    ran = grash("search", "world")
    assert ran.code == 2 and "grash search runs in one process" in ran.err and "many-devices.md" in ran.err
    assert grash("--help").code == 0 and grash("train", "--help").code == 0


@pytest.mark.parametrize("failing", ["evaluate_distributed", "check_same_step"])
def test_an_interrupt_names_a_checkpoint_only_if_there_is_one(
    source: str, tmp_path: Path, one_rank: None, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(distributed, failing, interrupt)
    ran = grash("train", source, "-o", str(tmp_path / "m"), *SMALL)
    assert ran.code == 130
    if failing == "check_same_step":
        assert "Interrupted before the first checkpoint" in ran.err
        return
    assert f"{tmp_path / 'm'}.checkpoint has the checkpoint of step" in ran.err
    monkeypatch.undo()
    assert grash("train", source, "-o", str(tmp_path / "m"), *SMALL).code == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m", "rings.tsv"]


def test_ranks_that_share_a_memory_share_what_is_free(
    source: str, tmp_path: Path, one_rank: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    monkeypatch.setattr("grash.engines.memory.free_bytes", lambda _: 4 << 20)
    monkeypatch.setattr("grash.engines.memory.MemoryPlan.on_device", lambda *_: 2 << 20)
    ran = grash("train", source, "-o", str(tmp_path / "m"), *SMALL)
    assert ran.code == 3 and "The 3 ranks that share cpu on this machine need 6.0 MiB together" in ran.err


def test_a_disk_without_room_for_a_checkpoint_does_not_end_the_training(
    source: str, tmp_path: Path, one_rank: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed, "free_disk", lambda _: 100)
    ran = grash("train", source, "-o", str(tmp_path / "m"), *SMALL)
    assert ran.code == 0 and ran.err.count("skipped: it needs") == 1 and load_model(tmp_path / "m").model.dim == 4


def test_a_folder_that_cannot_be_written_is_refused_before_training(
    source: str, tmp_path: Path, one_rank: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed, "train_distributed", lambda *_, **__: pytest.fail("trained"))
    ran = grash("train", source, "-o", f"{source}/m", *SMALL)
    assert ran.code == 4 and "could not be written" in ran.err


@pytest.mark.slow
def test_a_launcher_that_is_not_there_is_said(
    source: str, tmp_path: Path, one_rank: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(distributed, "_TIMEOUT", distributed.timedelta(seconds=1))
    ran = grash("train", source, "-o", str(tmp_path / "m"), *SMALL)
    assert ran.code == 8 and "Rank 1 of 2 could not join the others at 127.0.0.1" in ran.err


def test_a_rank_without_a_card_of_its_own_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert distributed._rank_device("auto", 1)[0].index == 1 and not distributed._rank_device("cuda", 0)[1]
    with pytest.raises(ConfigError, match="Start it with --nproc-per-node 2"):
        distributed._rank_device("auto", 2)
    assert distributed._rank_device("cuda:0", 3) == (distributed.torch.device("cuda", 0), True)
    assert distributed._rank_device("cpu", 3)[0].type == "cpu"
