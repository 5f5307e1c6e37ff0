"""grash train as a rank: the one rank of a launch says, writes and refuses what `grash train` does."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from grash.cli.distributed import launched
from grash.engines import distributed
from grash.errors import ConfigError
from grash.models.store import load_model
from small_graph import grash, rings, write_tsv

SMALL = ("--dim", "4", "--epochs", "3", "--valid-every", "1", "-n", "5", "--device", "cpu")


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
    assert load_model(tmp_path / "ranked", verify=True).evaluation == found["evaluation"]
    assert grash("evaluate", str(tmp_path / "ranked")).code == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["plain", "ranked", "rings.tsv"]


def test_tables_and_what_to_try_are_shown(source: str, tmp_path: Path, one_rank: None) -> None:
    ran = grash("train", source, "-o", str(tmp_path / "m"), *SMALL)
    assert ran.code == 0 and "head and tail" in ran.out and "grash evaluate" in ran.out


def test_mistakes_are_sentences(source: str, tmp_path: Path, one_rank: None) -> None:
    (tmp_path / "there").mkdir()
    ran = grash("train", source, "-o", str(tmp_path / "there"), *SMALL)
    assert ran.code == 2 and "exists already" in ran.err
    ran = grash("train", source, "-o", str(tmp_path / "m"), "--placement", "host", *SMALL)
    assert ran.code == 2 and "ranks keep their rows on their own devices" in ran.err


def test_other_ranks_leave_common_mistakes_to_rank_0(
    source: str, tmp_path: Path, one_rank: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    ran = grash("train", source, "-o", str(tmp_path / "m"), "--placement", "host", *SMALL)
    assert ran.code == 2 and "devices" not in ran.err


def test_a_launcher_that_is_not_there_is_said(
    source: str, tmp_path: Path, one_rank: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(distributed, "_PATIENCE", distributed.timedelta(seconds=1))
    ran = grash("train", source, "-o", str(tmp_path / "m"), *SMALL)
    assert ran.code == 8 and "Rank 1 of 2 could not join the others at 127.0.0.1" in ran.err


def test_a_rank_without_a_card_of_its_own_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert distributed._device("auto", 1)[0].index == 1 and not distributed._device("cuda", 0)[1]
    with pytest.raises(ConfigError, match="start it with --nproc-per-node 2"):
        distributed._device("auto", 2)
    assert distributed._device("cuda:0", 3) == (distributed.torch.device("cuda", 0), True)
    assert distributed._device("cpu", 3)[0].type == "cpu"
