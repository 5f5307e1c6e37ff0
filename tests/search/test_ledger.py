"""The ledger: what a crash tears is repaired, what is damaged is refused, and a full disk leaves it readable."""

from __future__ import annotations

import errno
import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from grash.errors import FormatError, InputError, OutputError
from grash.search.ledger import LEDGER_FILE, SCHEMA, VERSION, Ledger, decode, encode, read_ledger

FIRST = {"schema": SCHEMA, "version": VERSION, "name": "a “graph” of Zürich"}


def written(folder: Path, n: int = 4) -> Path:
    """A ledger of n lines."""
    ledger = Ledger(folder)
    ledger.write("search_started", **FIRST)
    for i in range(n - 1):
        ledger.write("trial_ended", number=i, mrr=i / 7, message='Pfad: \\ "x"\nzwei Zeilen, sum:')
    ledger.close()
    return folder / LEDGER_FILE


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = written(tmp_path)
    assert [e["event"] for e in read_ledger(path)] == ["search_started", *["trial_ended"] * 3]
    ledger = Ledger(tmp_path)
    assert ledger.events == read_ledger(path) and ledger.events[0] == {"event": "search_started", **FIRST}
    ledger.write("search_finished", failed="")
    ledger.close()
    assert len(read_ledger(path)) == 5
    assert all("sum" in json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=6), json_values, max_size=5), st.integers(0, 2**32 - 1))
def test_any_event_is_one_line_and_comes_back(fields: dict[str, Any], before: int) -> None:
    event = {**fields, "event": "trial_ended"}
    try:
        line, total = encode(event, before)
    except UnicodeEncodeError:  # lone surrogates are no text
        return
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert decode(line[:-1], before) == (event, total)


@given(st.data())
@examples(max_examples=60)
def test_a_changed_byte_is_noticed(data: st.DataObject) -> None:
    line, _ = encode({"event": "trial_ended", "mrr": 0.25, "number": 3}, 77)
    at = data.draw(st.integers(0, len(line) - 2))
    other = data.draw(st.integers(0, 255).filter(lambda b: b != line[at]))
    assert decode(line[:at] + bytes([other]) + line[at + 1 : -1], 77) is None
    assert decode(line[:-1], 78) is None


def test_a_number_that_is_none_is_refused_before_it_is_written(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    with pytest.raises(ValueError, match="Out of range float"):
        ledger.write("trial_ended", mrr=float("nan"))
    ledger.close()
    assert (tmp_path / LEDGER_FILE).read_bytes() == b""


def test_a_last_line_torn_at_any_byte_is_cut_off_and_the_ledger_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path)
    content = path.read_bytes()
    begin = content.rindex(b"\n", 0, -1) + 1
    expected = read_ledger(path)[:-1]
    for size in range(begin, len(content)):
        path.write_bytes(content[:size])
        caplog.clear()
        assert read_ledger(path) == expected and path.stat().st_size == size  # reading alone repairs nothing
        assert ("which a crash left incomplete" in caplog.text) == (size > begin)
        ledger = Ledger(tmp_path)
        assert ledger.events == expected and path.read_bytes() == content[:begin]
        ledger.write("trial_ended", number=9)
        ledger.close()
        assert read_ledger(path) == [*expected, {"event": "trial_ended", "number": 9}]


def test_a_last_line_of_garbage_is_cut_off(tmp_path: Path) -> None:
    path = written(tmp_path)
    good = path.read_bytes()
    for tail in (b"\0" * 40, b"\0" * 40 + b"\n", b'{"event":"trial_ended"}\n', b"\xff\xfe", b"\n"):
        path.write_bytes(good + tail)
        Ledger(tmp_path).close()
        assert path.read_bytes() == good


@pytest.mark.parametrize("line", [1, 2, 3])
@pytest.mark.parametrize("what", ["flip", "delete", "twice", "cut", "empty"])
def test_damage_in_the_middle_is_refused_with_the_line_and_nothing_is_lost(
    tmp_path: Path, line: int, what: str
) -> None:
    path = written(tmp_path, 5)
    lines = path.read_bytes().splitlines(keepends=True)
    hurt = lines[line - 1]
    made = {"flip": [hurt[:9] + b"~" + hurt[10:]], "delete": [], "twice": [hurt, hurt], "cut": [hurt[:9] + b"\n"],
            "empty": [b"\n"]}[what]  # fmt: skip
    damaged = b"".join([*lines[: line - 1], *made, *lines[line:]])
    path.write_bytes(damaged)
    noticed = line + 1 if what == "twice" else line
    with pytest.raises(FormatError, match=rf"ledger\.jsonl, line {noticed}: .*`head -n {noticed - 1}`"):
        Ledger(tmp_path)
    assert path.read_bytes() == damaged
    path.write_bytes(b"".join(damaged.splitlines(keepends=True)[: noticed - 1]))  # as the sentence says
    assert len(read_ledger(path)) == noticed - 1


def test_exchanged_lines_are_noticed(tmp_path: Path) -> None:
    path = written(tmp_path, 5)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], lines[2], lines[1], *lines[3:]]))
    with pytest.raises(FormatError, match="line 2"):
        read_ledger(path)


@pytest.mark.parametrize("torn", [b"", b'{"event":"en'])
def test_a_version_that_is_not_known_is_refused_and_left_alone(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / LEDGER_FILE
    path.write_bytes(encode({"event": "search_started", **FIRST, "version": 2})[0] + torn)
    before = path.read_bytes()
    with pytest.raises(
        FormatError, match="is a grash-ledger of version 2, but this grash reads version 1. Use the grash"
    ):
        Ledger(tmp_path)
    assert path.read_bytes() == before


def test_a_file_that_is_no_ledger_is_refused(tmp_path: Path) -> None:
    path = tmp_path / LEDGER_FILE
    path.write_bytes(encode({"event": "search_started"})[0])
    with pytest.raises(FormatError, match="does not describe a grash-ledger"):
        read_ledger(path)
    path.unlink()
    with pytest.raises(InputError, match="Cannot read .*: No such file"):
        read_ledger(path)


@pytest.mark.parametrize("taken", [0, 1, 20])
def test_a_full_disk_is_a_sentence_and_the_ledger_stays_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    path = written(tmp_path)
    before = path.read_bytes()
    ledger, write = Ledger(tmp_path), os.write
    monkeypatch.setattr(os, "write", lambda file, content: write(file, content[:taken]))
    with pytest.raises(
        OutputError,
        match="No space left on device. The search stops here. Free some space, then continue it with `grash res",
    ):
        ledger.write("trial_ended", number=7)
    monkeypatch.undo()
    assert path.read_bytes() == before and ledger.events == read_ledger(path)
    ledger.write("trial_ended", number=8)  # there is room again
    ledger.close()
    assert [e.get("number") for e in read_ledger(path)] == [None, 0, 1, 2, 8]


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_disk_that_fails_is_a_sentence_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    path = written(tmp_path)
    before = path.read_bytes()
    ledger = Ledger(tmp_path)

    def fails(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, fails)
    with pytest.raises(OutputError, match="No space left on device"):
        ledger.write("trial_ended", number=7)
    monkeypatch.undo()
    ledger.close()
    assert path.read_bytes() == before and len(read_ledger(path)) == 4


def test_every_line_is_on_disk_before_the_search_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, synced, fsync = Ledger(tmp_path), [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (synced.append((tmp_path / LEDGER_FILE).stat().st_size), fsync(file)))
    for event in ("search_started", "trial_started", "trial_ended"):
        ledger.write(event, **FIRST)
    ledger.close()
    assert len(synced) == 2 and synced[-1] == (tmp_path / LEDGER_FILE).stat().st_size  # with what `started` left


def test_a_ledger_in_a_folder_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"ledger\.jsonl could not be written: No such file or directory"):
        Ledger(tmp_path / "missing")


def test_reading_a_whole_ledger_says_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        read_ledger(written(tmp_path))
    assert caplog.text == ""
