"""The memory limit: what is read at once, what in parts, and the warnings."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from grash.data import load as load_module
from grash.data.external import prepare as large_module
from grash.data.external.prepare import (
    bytes_at_once,
    check_limit,
    machine_bytes,
    memory_limit,
    must_read_in_parts,
    prepare_large,
)
from grash.data.load import prepare
from grash.data.readers import tables
from grash.data.readers.source import recognize
from grash.errors import ConfigError, InputError
from large_sources import check_same, large, lines, stopped
from small_graph import grash as run_grash


@pytest.mark.slow
def test_what_fits_is_read_at_once_and_what_might_not_in_parts(
    tmp_path: Path, small_blocks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "g.tsv").write_text(lines())
    ways: list[str] = []
    monkeypatch.setattr(large_module, "prepare_large", lambda *a, **k: (ways.append("parts"), prepare_large(*a, **k)))
    wanted = prepare(tmp_path / "g.tsv", tmp_path / "at_once", memory="1G")
    assert ways == []
    monkeypatch.setattr(large_module, "MIN_LIMIT", 1)
    monkeypatch.setattr(large_module, "usable_memory", lambda limit: limit)
    check_same(prepare(tmp_path / "g.tsv", tmp_path / "in_parts", memory="40k"), wanted)
    assert ways == ["parts"]
    assert stopped(tmp_path / "g.tsv", tmp_path / "begun", at=4)
    check_same(prepare(tmp_path / "g.tsv", tmp_path / "begun", memory="1G"), wanted)
    assert ways == ["parts", "parts"]


def test_an_amount_of_memory_is_a_number_with_a_unit() -> None:
    assert [memory_limit(m) for m in ("8G", "1.5 GiB", "2048M", 1 << 31, "3tb")] == [
        8 << 30, 3 << 29, 2 << 30, 2 << 30, 3 << 40,
    ]  # fmt: skip
    assert memory_limit(None) == max(1 << 30, machine_bytes() // 2)
    for bad in ("much", "8X", "-1G", "500M"):
        with pytest.raises(ConfigError, match="memory="):
            memory_limit(bad)


def test_a_container_has_the_memory_of_its_limit(tmp_path: Path) -> None:
    total = machine_bytes(tmp_path)
    (tmp_path / "memory.max").write_text("max")
    assert machine_bytes(tmp_path) == total
    (tmp_path / "memory.max").write_text("1048576")
    assert machine_bytes(tmp_path) == 1 << 20


def test_what_a_source_needs_is_guessed_from_its_size(tmp_path: Path) -> None:
    content = lines(n=20_000, n_names=5000)
    (tmp_path / "g.tsv").write_text(content)
    (tmp_path / "g.tsv.gz").write_bytes(gzip.compress(content.encode()))
    np.save(tmp_path / "ids.npy", np.zeros((1000, 3), np.int32))
    need = bytes_at_once(recognize(tmp_path / "g.tsv"))
    assert 20_000 * 100 < need < 20_000 * 300
    assert bytes_at_once(recognize(tmp_path / "g.tsv.gz")) > need / 2
    assert bytes_at_once(recognize(tmp_path / "ids.npy")) > 30_000
    np.save(tmp_path / "wide.npy", np.zeros((1000, 3), np.int64))
    assert bytes_at_once(recognize(tmp_path / "wide.npy")) == bytes_at_once(recognize(tmp_path / "ids.npy"))
    (tmp_path / "damaged.npy").write_bytes(b"\x93NUMPY and no more")
    assert bytes_at_once(recognize(tmp_path / "damaged.npy")) == 0


def test_under_a_limit_compressed_text_is_read_in_parts_unless_it_is_small(tmp_path: Path) -> None:
    random = np.random.default_rng(0).bytes(1 << 20)
    for name, content in (("small.gz", lines().encode()), ("large.gz", random)):
        (tmp_path / name).write_bytes(gzip.compress(content))
    usable = 1 << 28
    small, packed = (recognize(tmp_path / name) for name in ("small.gz", "large.gz"))
    assert not must_read_in_parts(small, usable, strict=True)
    assert must_read_in_parts(packed, usable, strict=True)
    assert not must_read_in_parts(packed, usable, strict=False)
    assert must_read_in_parts(small, usable, strict=True, started=True)


def test_a_format_is_read_in_parts_only_if_it_is_listed(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text(lines())
    np.save(tmp_path / "valid.npy", np.zeros((2, 3), np.int32))
    mixed = recognize(tmp_path)
    assert mixed.formats == {"train": "text", "valid": "npy"}
    new = replace(recognize(tmp_path / "train.txt"), formats={"train": "a new format"})  # type: ignore[dict-item]
    for layout in (mixed, new):
        assert not must_read_in_parts(layout, 0, strict=True, started=True)
    assert must_read_in_parts(recognize(tmp_path / "train.txt"), 0, strict=True)
    assert must_read_in_parts(recognize(tmp_path / "valid.npy"), 0, strict=True)


def libkge_folder(folder: Path) -> Path:
    folder.mkdir()
    (folder / "entity_ids.del").write_text("".join(f"{i}\tentity {i}\n" for i in range(300)))
    (folder / "relation_ids.del").write_text("0\tlikes\n")
    (folder / "train.del").write_text("".join(f"{i}\t0\t{(7 * i + 1) % 300}\n" for i in range(300)))
    return folder


def only_at_once(folder: Path) -> list[Path]:
    import polars as pl

    ids = np.random.default_rng(0).integers(0, 300, (2000, 3))
    pl.DataFrame(ids, ["head", "relation", "tail"]).write_parquet(folder / "g.parquet")
    np.savez_compressed(folder / "g.npz", train=np.zeros_like(ids))
    (folder / "named").mkdir()
    np.save(folder / "named" / "train.npy", ids)
    (folder / "named" / "entities.txt").write_text("\n".join(f"entity {i}" for i in range(300)))
    return [folder / "g.parquet", folder / "g.npz", folder / "named", libkge_folder(folder / "libkge")]


def test_a_limit_warns_about_a_source_that_can_only_be_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for source in only_at_once(tmp_path):
        layout = recognize(source)
        check_limit(layout, 1 << 30)
        assert not caplog.records, source
        with monkeypatch.context() as patch:
            patch.setattr(large_module, "_LIBRARIES", (1 << 30) - 4000)
            check_limit(layout, 1 << 30)
        assert f"{source} can only be read at once, which may take 1.0 GiB" in caplog.text
        caplog.clear()
        with pytest.raises(InputError, match="can only be read at once, which takes more than.*--memory.*in parts"):
            check_limit(layout, 2000)
    np.save(tmp_path / "ids.npy", np.zeros((2000, 3), np.int32))
    check_limit(recognize(tmp_path / "ids.npy"), 2000)


def test_prepare_warns_only_if_a_limit_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_module, "MIN_LIMIT", 1)
    monkeypatch.setattr(large_module, "machine_bytes", lambda: 1)
    folder = libkge_folder(tmp_path / "libkge")
    with pytest.raises(InputError, match="libkge can only be read at once"):
        prepare(folder, tmp_path / "out", memory="1k")
    (tmp_path / "out.spill").mkdir()
    (tmp_path / "out.spill" / "manifest.json").write_text("{}")  # of another source, which was read in parts
    assert prepare(folder, tmp_path / "out").n_entities == 300


def test_a_damaged_archive_or_table_needs_nothing_before_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "g.npz").write_bytes(b"PK\x03\x04")
    (tmp_path / "g.parquet").write_bytes(b"PAR1")
    assert tables.npz_sizes(tmp_path / "g.npz") == [] and tables.parquet_rows(tmp_path / "g.parquet") == 0
    np.savez(tmp_path / "one.npz", train=np.zeros((5, 3)), other=np.zeros(()))
    assert [n for _, n in tables.npz_sizes(tmp_path / "one.npz")] == [5, 0]


@pytest.mark.slow
@pytest.mark.parametrize("duplicates", ["drop", "keep"])
def test_tables_get_the_memory_beside_the_marks_of_triples_and_names(
    tmp_path: Path, small_blocks: None, monkeypatch: pytest.MonkeyPatch, caplog, duplicates: str
) -> None:
    (tmp_path / "g.tsv").write_text(lines(n=400, n_names=60))
    rooms: dict[str, int] = {}

    def listen(module, name: str, place: int) -> None:
        call = getattr(module, name)

        def spy(*given, **options):
            rooms[name] = given[place]
            return call(*given, **options)

        monkeypatch.setattr(module, name, spy)

    listen(large_module, "merge_generations", 3)
    listen(load_module, "find_duplicates", 2)
    large(tmp_path / "g.tsv", tmp_path / "out", memory=1 << 16, duplicates=duplicates)
    assert rooms == {
        "merge_generations": (1 << 16) - 4 * 64,
        "find_duplicates": (1 << 16) - 400 * (1 + (duplicates == "keep")),
    }
    assert not caplog.records
    large(tmp_path / "g.tsv", tmp_path / "tight", memory=420, duplicates=duplicates)
    assert rooms["find_duplicates"] == 420 // 8
    assert "more than the limit will be used" in caplog.text


def test_the_verb_takes_a_limit(tmp_path: Path) -> None:
    (tmp_path / "g.tsv").write_text(lines())
    assert run_grash("prepare", tmp_path / "g.tsv", "-o", tmp_path / "out", "--memory", "2G").code == 0
    ran = run_grash("prepare", tmp_path / "g.tsv", "-o", tmp_path / "other", "--memory", "some")
    assert ran.code == 2 and "is not a size: give bytes" in ran.err
