"""Sources larger than memory: the same dataset as in memory, whatever the limit."""

from __future__ import annotations

import bz2
import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grash.data.external import prepare as large_module
from grash.data.external import spill as names_module
from grash.data.load import load_dataset
from large_sources import TINY, check_same, large, lines, shrink, stopped

CHARACTERS = st.characters(
    codec="utf-8", exclude_characters="\t\n\r\x00", exclude_categories=["Zs", "Zl", "Zp", "Cc", "Cs"]
)
NAMES = st.text(CHARACTERS, min_size=1, max_size=6)


@pytest.mark.slow
@given(
    names=st.lists(NAMES, min_size=1, max_size=12, unique=True),
    picks=st.lists(st.tuples(*[st.integers(0, 11)] * 3), min_size=1, max_size=60),
    block=st.integers(20, 400),
    rows=st.integers(10, 60),
    memory=st.sampled_from([700, TINY, 1 << 20]),
    duplicates=st.sampled_from(["drop", "keep"]),
)
@settings(max_examples=40)
def test_any_text_gives_the_same_dataset_as_in_memory(
    names, picks, block, rows, memory, duplicates, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("large")
    triples = [tuple(names[i % len(names)] for i in pick) for pick in picks]
    (folder / "g.tsv").write_text("".join("\t".join(t) + "\n" for t in triples), encoding="utf-8")
    options = {"duplicates": duplicates, "separator": "tab", "header": False, "n_valid": 0, "test_fraction": 0.2}
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch, block, rows)
        found = large(folder / "g.tsv", folder / "out", memory=memory, **options)
    check_same(found, load_dataset(folder / "g.tsv", **options))
    assert sorted(p.name for p in folder.iterdir()) == ["g.tsv", "out"]


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress])
@pytest.mark.parametrize("memory", [TINY, 1 << 30])
def test_compressed_text_with_a_header(tmp_path: Path, small_blocks: None, pack, memory: int) -> None:
    content = "\ufeffhead\trelation\ttail\n" + lines()
    (tmp_path / "g.tsv").write_bytes(pack(content.encode()))
    check_same(large(tmp_path / "g.tsv", tmp_path / "out", memory=memory), load_dataset(tmp_path / "g.tsv"))


@pytest.mark.slow
@pytest.mark.parametrize("duplicates", ["drop", "keep"])
def test_a_folder_of_splits(
    tmp_path: Path, small_blocks: None, duplicates: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    (folder / "train.tsv").write_text(lines() + lines(n=50))
    (folder / "test.tsv").write_text(lines(seed=1, n=90, n_names=80) + "new\trel9\tnode 1\n")
    found = large(folder, tmp_path / "out", duplicates=duplicates)
    said = [record.getMessage() for record in caplog.records]
    caplog.clear()
    check_same(found, load_dataset(folder, duplicates=duplicates))
    assert said == [record.getMessage() for record in caplog.records]
    (folder / "valid.tsv").write_text("head\trelation\ttail\n")
    check_same(large(folder, tmp_path / "again"), load_dataset(folder))


def test_blank_lines_and_wide_headers_are_logged_alike(
    tmp_path: Path, small_blocks: None, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [line.split("\t") for line in lines().splitlines()]
    text = "".join(f"{i},{','.join(row)}\n" + "  \n" * (i % 7 == 0) for i, row in enumerate(rows))
    (tmp_path / "g.csv").write_text(" \t\n,subject,predicate,object\n" + text)
    with caplog.at_level("INFO", logger="grash"):
        found = large(tmp_path / "g.csv", tmp_path / "out")
        assert "g.csv: separated by commas, a header, columns 1, 2, 3 (head, relation, tail)." in caplog.messages
        said = caplog.messages.copy()
        caplog.clear()
        check_same(found, load_dataset(tmp_path / "g.csv"))
        assert caplog.messages == said
    assert found.provenance["read_as"]["train"] == {"separator": "commas", "header": True, "columns": [1, 2, 3]}


@pytest.mark.slow
def test_a_source_that_is_stopped_within_blank_lines_resumes(tmp_path: Path, small_blocks: None) -> None:
    (tmp_path / "g.tsv").write_text(lines().replace("\n", "\n  \t\n\n"))
    at = 1
    while stopped(tmp_path / "g.tsv", tmp_path / "out", at=at):
        at += 1
    assert at > 2
    check_same(large(tmp_path / "g.tsv", tmp_path / "again"), load_dataset(tmp_path / "g.tsv"))


def test_valid_triples_in_test_are_counted_in_memory_and_in_parts(
    tmp_path: Path, small_blocks: None, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    for split, seed in (("train", 0), ("valid", 1), ("test", 1)):
        (folder / f"{split}.tsv").write_text(lines(seed=seed, n=50))
    found = large(folder, tmp_path / "out")
    assert "50 of 50 valid triples are also in test." in caplog.messages
    assert found.provenance["valid_in_test"] == 50
    check_same(found, load_dataset(folder))


def test_rdf_with_literals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from grash.data.readers import rdf

    monkeypatch.setattr(rdf, "_BLOCK", 7)
    rows = [f"<http://e/{i % 13}> <http://r/{i % 3}> <http://e/{i * i % 17}> .\n" for i in range(150)]
    rows += ['<http://e/1> <http://r/0> "text" .\n'] * 3
    (tmp_path / "g.nt").write_text("".join(rows))
    wanted = load_dataset(tmp_path / "g.nt")
    check_same(large(tmp_path / "g.nt", tmp_path / "out"), wanted)
    monkeypatch.setattr(names_module, "COMMIT_ROWS", 20)
    stopped(tmp_path / "g.nt", tmp_path / "killed", at=3)
    check_same(large(tmp_path / "g.nt", tmp_path / "killed"), wanted)


def test_arrays_of_ids_are_mapped_and_not_copied(tmp_path: Path, small_blocks: None) -> None:
    ids = np.random.default_rng(0).integers(0, 30, (500, 3)).astype(np.int32)
    folder = tmp_path / "a"
    folder.mkdir()
    np.save(folder / "train.npy", ids)
    found, wanted = large(folder, tmp_path / "out"), load_dataset(folder)
    assert (found.fingerprint, found.provenance) == (wanted.fingerprint, wanted.provenance)
    for stem in ("entities", "relations"):
        (folder / f"{stem}.txt").write_text("\n".join(f"{stem} {i}" for i in range(30)))
    check_same(large(folder, tmp_path / "named"), load_dataset(folder))


@pytest.mark.parametrize("dtype", [np.int64, np.uint16, ">i4"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_other_integers_become_int32_in_blocks(
    tmp_path: Path, small_blocks: None, monkeypatch: pytest.MonkeyPatch, dtype, order
) -> None:
    ids = np.random.default_rng(0).integers(0, 30, (500, 3))
    np.save(tmp_path / "ids.npy", np.asarray(ids, dtype, order=order))
    copied: list[int] = []
    copy = np.ascontiguousarray
    monkeypatch.setattr(np, "ascontiguousarray", lambda a, *more: (copied.append(len(a)), copy(a, *more))[1])
    monkeypatch.setattr(large_module, "_ROWS", 64)
    found = large(tmp_path / "ids.npy", tmp_path / "out")
    assert max(copied) <= 64
    monkeypatch.undo()
    wanted = load_dataset(tmp_path / "ids.npy")
    assert (found.fingerprint, found.provenance) == (wanted.fingerprint, wanted.provenance)


def test_repeated_names_beside_arrays_are_counted_in_memory_and_in_parts(
    tmp_path: Path, small_blocks: None, caplog: pytest.LogCaptureFixture
) -> None:
    np.save(tmp_path / "train.npy", np.random.default_rng(0).integers(0, 30, (500, 3)).astype(np.int32))
    (tmp_path / "entities.txt").write_text("\n".join(f"entity {i % 20}" for i in range(30)))
    found = large(tmp_path, tmp_path / "out")
    assert "10 names of entities repeat others" in caplog.text
    assert found.provenance == load_dataset(tmp_path).provenance
