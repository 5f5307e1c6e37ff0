"""YAML files: bombs, damage and edits end in a sentence, with bounded time and memory."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from grash.errors import GrashError, InputError
from grash.search.space import read_space
from grash.training.config import read_config
from grash.yaml_files import MAX_BYTES, matches_checksum, parse_yaml, read_yaml, with_checksum, write_yaml
from small_graph import grash, rings, write_tsv

LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 30)
)
MERGED = "a0: &a0 {x0: 1}\n" + "".join(f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}], x{i}: 1}}\n" for i in range(1, 40))
BAD: dict[str, tuple[bytes, str]] = {
    "billion laughs": (LAUGHS.encode(), "its aliases stand for more than 200,000 values"),
    "merged laughs": (MERGED.encode(), "its aliases stand for more than 200,000 values"),
    "a list in itself": (b"lr: &a [*a]\n", "its aliases stand for more than 200,000 values"),
    "a key twice": (b"lr: 0.1\nlr: 0.2\n", "'lr' occurs twice"),
    "code": (b"lr: !!python/object/apply:os.getcwd []\n", "could not determine a constructor"),
    "a class": (b"lr: !!python/name:os.getcwd\n", "could not determine a constructor"),
    "deep lists": (b"[" * 100_000, "nested too deeply"),
    "deep mappings": (b"{a: " * 100_000, "nested too deeply"),
    "deep lines": (b"".join(b" " * i + b"a:\n" for i in range(2_000)), "nested too deeply"),
    "not UTF-8": (b"lr: \xff\xfe\n", "invalid start byte"),
    "binary": (bytes(range(256)), "cannot be read as YAML"),
    "a number with too many digits": (b"lr: " + b"9" * 5_000 + b"\n", "cannot be read as YAML"),
    "a wrong date": (b"lr: 2020-99-99\n", "cannot be read as YAML"),
    "two documents": (b"lr: 0.1\n---\nlr: 0.2\n", "expected a single document"),
    "too large": (b"#" * (MAX_BYTES + 1), "is larger than 4 MiB"),
}


@pytest.mark.parametrize("read", [read_yaml, read_config, read_space])
@pytest.mark.parametrize(("content", "sentence"), BAD.values(), ids=BAD)
def test_a_bad_file_is_refused_in_a_sentence(tmp_path: Path, read, content: bytes, sentence: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(content)
    with pytest.raises(InputError, match="bad.yaml .*") as caught:
        read(path)
    assert sentence in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 500


@pytest.mark.slow
@pytest.mark.parametrize("command", ["plan", "train"])
def test_commands_refuse_bad_files(tmp_path: Path, command: str) -> None:
    graph = write_tsv(rings(), tmp_path / "rings.tsv")
    path = tmp_path / "bad.yaml"
    for content, _ in BAD.values():
        path.write_bytes(content)
        for option in ("--config", "--space") if command == "plan" else ("--config",):
            ran = grash(command, graph, option, path)
            assert ran.code == 2 and ran.err.startswith("error: ") and "Traceback" not in ran.err, ran.err
    for value in (LAUGHS.partition("\n")[0], "[" * 100_000, "!!python/name:os.getcwd", "9" * 5_000):
        ran = grash(command, graph, "--set", f"lr={value}")
        assert ran.code == 2 and ran.err.startswith("error: ") and len(ran.err) < 1_000, ran.err[:300]


def test_a_folder_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read as YAML: Is a directory"):
        read_yaml(tmp_path)
    with pytest.raises(InputError, match="There is no file"):
        read_yaml(tmp_path / "absent.yaml")


def test_a_file_without_end_is_refused() -> None:
    with pytest.raises(InputError, match="is larger than 4 MiB"):
        read_yaml(Path("/dev/zero"))


def test_a_huge_file_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "huge.yaml"
    with path.open("wb") as file:
        file.write(b"lr: 0.1\n")
        os.truncate(file.fileno(), 1 << 30)
    code = "import resource, sys; from pathlib import Path; from grash.errors import InputError\n" + (
        "from grash.yaml_files import read_yaml\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n    read_yaml(Path(sys.argv[1]))\nexcept InputError as error:\n    assert 'larger than' in str(error)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert int(ran.stdout) < 100_000  # kilobytes


def test_aliases_may_stand_for_some_values() -> None:
    assert parse_yaml("a: &a {x: 1}\nb: *a\nc: {<<: *a, y: 2}\n") == {
        "a": {"x": 1},
        "b": {"x": 1},
        "c": {"x": 1, "y": 2},
    }
    assert parse_yaml("") is None and parse_yaml("off: 1\non: 2") == {"off": 1, "on": 2}


def test_a_written_file_has_its_checksum_and_an_edit_is_noticed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "best.yaml"
    write_yaml(path, {"lr": 0.1, "name": "ä"}, comment="A comment.")
    text = path.read_bytes()
    assert text.startswith(b"# A comment.\nlr: 0.1\n") and matches_checksum(text) is True
    assert read_yaml(path, strict=True) == {"lr": 0.1, "name": "ä"} and not caplog.records
    path.write_bytes(text.replace(b"0.1", b"0.2"))
    with caplog.at_level(logging.WARNING):
        assert read_yaml(path)["lr"] == 0.2
    assert "best.yaml was edited by hand: its content does not match its checksum" in caplog.text
    for damaged in (path.read_bytes(), b"lr: 0.2\n", b"", text[:-1]):
        path.write_bytes(damaged)
        with pytest.raises(GrashError, match="was edited or is damaged: .* restore a copy"):
            read_yaml(path, strict=True)


def test_a_file_of_a_person_needs_no_checksum(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "mine.yaml").write_text("lr: 0.1\n")
    assert read_yaml(tmp_path / "mine.yaml") == {"lr": 0.1} and not caplog.records
    assert matches_checksum(b"lr: 0.1\n") is None and matches_checksum(with_checksum(b"")) is True
