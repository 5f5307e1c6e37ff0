"""Sources larger than memory: the same dataset as in memory, whatever the limit, and after any number of kills."""

from __future__ import annotations

import bz2
import errno
import gzip
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grash.data import gather, repeats, tables, text, unite
from grash.data import large as large_module
from grash.data import limit as limit_module
from grash.data import prepare as prepare_module
from grash.data.dataset import SPLITS, Dataset
from grash.data.large import prepare_large
from grash.data.layouts import recognise
from grash.data.limit import check_limit, machine_bytes, memory_limit, needed_at_once, read_in_parts
from grash.data.options import SourceOptions
from grash.data.prepare import prepare, read_source
from grash.data.spill import Spill
from grash.data.vocabulary import Vocabulary
from grash.errors import ConfigError, FormatError, InputError, OutputError
from small_graph import grash as run_grash

TINY = 1 << 12  # bytes of room: a generation for every block, many parts


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch)


def shrink(patch: pytest.MonkeyPatch, block: int = 300, rows: int = 40) -> None:
    patch.setattr(text, "BLOCK", block)
    patch.setattr(text, "SAMPLE", 100)
    patch.setattr(gather, "ROWS", rows)
    for module in (unite, repeats):
        patch.setattr(module, "_ROWS", 17)


def lines(seed: int = 0, n: int = 400, n_names: int = 60) -> str:
    random = np.random.default_rng(seed)
    heads, tails = random.integers(0, n_names, (2, n))
    return "".join(f"node {h}\trel{r}\tnode {t}\n" for h, r, t in zip(heads, random.integers(0, 4, n), tails))


def large(source: Path, out: Path, *, room: int = TINY, watch=None, overwrite: bool = False, **options) -> Dataset:
    prepare_large(recognise(source), out, SourceOptions(**options), room=room, overwrite=overwrite, watch=watch)
    return Dataset.load(out, verify=True)


def check_same(found: Dataset, wanted: Dataset) -> None:
    for split in SPLITS:
        assert np.array_equal(found.split(split), wanted.split(split)), split
    assert (found.fingerprint, found.name) == (wanted.fingerprint, wanted.name)
    assert json.dumps(found.provenance) == json.dumps(wanted.provenance)
    for mine, other in ((found.entities, wanted.entities), (found.relations, wanted.relations)):
        assert isinstance(mine, Vocabulary) and isinstance(other, Vocabulary)
        assert list(mine) == list(other)
        assert [mine.find(name) for name in other] == list(range(len(other)))
        assert mine.find("absent") is None


CHARACTERS = st.characters(
    codec="utf-8", exclude_characters="\t\n\r\x00", exclude_categories=["Zs", "Zl", "Zp", "Cc", "Cs"]
)
NAMES = st.text(CHARACTERS, min_size=1, max_size=6)


@given(
    names=st.lists(NAMES, min_size=1, max_size=12, unique=True),
    picks=st.lists(st.tuples(*[st.integers(0, 11)] * 3), min_size=1, max_size=60),
    block=st.integers(20, 400),
    rows=st.integers(10, 60),
    room=st.sampled_from([700, TINY, 1 << 20]),
    duplicates=st.sampled_from(["drop", "keep"]),
)
@settings(max_examples=40)
def test_any_text_gives_the_same_dataset_as_in_memory(
    names, picks, block, rows, room, duplicates, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("large")
    triples = [tuple(names[i % len(names)] for i in pick) for pick in picks]
    (folder / "g.tsv").write_text("".join("\t".join(t) + "\n" for t in triples), encoding="utf-8")
    options = {"duplicates": duplicates, "separator": "tab", "header": False, "n_valid": 0, "test_fraction": 0.2}
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch, block, rows)
        found = large(folder / "g.tsv", folder / "out", room=room, **options)
    check_same(found, read_source(folder / "g.tsv", **options))
    assert sorted(p.name for p in folder.iterdir()) == ["g.tsv", "out"]


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress])
@pytest.mark.parametrize("room", [TINY, 1 << 30])
def test_compressed_text_with_a_header(tmp_path: Path, small_blocks: None, pack, room: int) -> None:
    content = "\ufeffhead\trelation\ttail\n" + lines()
    (tmp_path / "g.tsv").write_bytes(pack(content.encode()))
    check_same(large(tmp_path / "g.tsv", tmp_path / "out", room=room), read_source(tmp_path / "g.tsv"))


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
    check_same(found, read_source(folder, duplicates=duplicates))
    assert said == [record.getMessage() for record in caplog.records]
    (folder / "valid.tsv").write_text("head\trelation\ttail\n")
    check_same(large(folder, tmp_path / "again"), read_source(folder))


def test_rdf_with_literals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from grash.data import rdf

    monkeypatch.setattr(rdf, "_BLOCK", 7)
    rows = [f"<http://e/{i % 13}> <http://r/{i % 3}> <http://e/{i * i % 17}> .\n" for i in range(150)]
    rows += ['<http://e/1> <http://r/0> "text" .\n'] * 3
    (tmp_path / "g.nt").write_text("".join(rows))
    wanted = read_source(tmp_path / "g.nt")
    check_same(large(tmp_path / "g.nt", tmp_path / "out"), wanted)
    monkeypatch.setattr(gather, "ROWS", 20)
    stopped(tmp_path / "g.nt", tmp_path / "killed", at=3)
    check_same(large(tmp_path / "g.nt", tmp_path / "killed"), wanted)


def test_arrays_of_ids_are_mapped_and_not_copied(tmp_path: Path, small_blocks: None) -> None:
    ids = np.random.default_rng(0).integers(0, 30, (500, 3)).astype(np.int32)
    folder = tmp_path / "a"
    folder.mkdir()
    np.save(folder / "train.npy", ids)
    found, wanted = large(folder, tmp_path / "out"), read_source(folder)
    assert (found.fingerprint, found.provenance) == (wanted.fingerprint, wanted.provenance)
    for stem in ("entities", "relations"):
        (folder / f"{stem}.txt").write_text("\n".join(f"{stem} {i}" for i in range(30)))
    check_same(large(folder, tmp_path / "named"), read_source(folder))


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
    wanted = read_source(tmp_path / "ids.npy")
    assert (found.fingerprint, found.provenance) == (wanted.fingerprint, wanted.provenance)


def test_names_beside_arrays_that_repeat_are_counted_in_either_way(
    tmp_path: Path, small_blocks: None, caplog: pytest.LogCaptureFixture
) -> None:
    np.save(tmp_path / "train.npy", np.random.default_rng(0).integers(0, 30, (500, 3)).astype(np.int32))
    (tmp_path / "entities.txt").write_text("\n".join(f"entity {i % 20}" for i in range(30)))
    found = large(tmp_path, tmp_path / "out")
    assert "10 names of entities repeat others" in caplog.text
    assert found.provenance == read_source(tmp_path).provenance


class Stop(Exception):
    pass


def stopped(source: Path, out: Path, *, at: int, **options) -> bool:
    """Whether a preparation got as far as its at-th message and ended there."""
    count = 0

    def watch(what: str, share: float, n_triples: int) -> None:
        nonlocal count
        count += 1
        if count == at:
            raise Stop

    try:
        large(source, out, watch=watch, **options)
    except Stop:
        return True
    return False


def test_stopped_at_any_point_it_goes_on_to_the_same_dataset(tmp_path: Path, small_blocks: None) -> None:
    (tmp_path / "g.tsv").write_text(lines(n=150))
    wanted = read_source(tmp_path / "g.tsv")
    at = 1
    while stopped(tmp_path / "g.tsv", tmp_path / f"{at}", at=at):
        assert not (tmp_path / f"{at}").exists()
        check_same(large(tmp_path / "g.tsv", tmp_path / f"{at}"), wanted)
        at += 3
    assert at > 15
    at = 2
    while stopped(tmp_path / "g.tsv", tmp_path / "again and again", at=at):
        at += 1
    check_same(Dataset.load(tmp_path / "again and again"), wanted)


KILLED = """
import os, signal, sys
from pathlib import Path
from grash.data import gather, text
from grash.data.large import prepare_large
from grash.data.layouts import recognise
from grash.data.options import SourceOptions
text.BLOCK, text.SAMPLE, gather.ROWS = 3000, 100, 200
source, out, at = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
def watch(*_):
    global at
    at -= 1
    if at == 0:
        os.kill(os.getpid(), signal.SIGKILL)
prepare_large(recognise(source), out, SourceOptions(), room=1 << 20, overwrite=False, watch=watch)
"""


def test_killed_again_and_again_it_ends_without_damage(tmp_path: Path) -> None:
    (tmp_path / "g.tsv").write_text(lines(n=3000, n_names=900))
    codes = []
    for at in (1, 3, 2, 6, 10_000):
        command = [sys.executable, "-c", KILLED, str(tmp_path / "g.tsv"), str(tmp_path / "out"), str(at)]
        codes.append(subprocess.run(command, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}).returncode)
        for half_made in tmp_path.glob("out.spill/*.ids"):  # as if more had been written than the last mark knows of
            with half_made.open("ab") as file:
                file.write(b"torn")
    assert codes[-1] == 0 and codes.count(-signal.SIGKILL) >= 3
    check_same(Dataset.load(tmp_path / "out", verify=True), read_source(tmp_path / "g.tsv"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["g.tsv", "out"]


KILLED_AT = """
import os, shutil, signal, sys
from pathlib import Path
from grash.data import prepare as module, spill
from grash.data.dataset import Dataset
source, out, at, overwrite = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4] == "overwrite"
def kill(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)
def half(path):
    if Path(path).name == "work":
        kill()
    delete(path)
delete, owner = spill._delete, {"seal": Dataset, "remove": spill.Spill}.get(at)
if at == "half removed":
    spill._delete = half
elif at != "nowhere":
    setattr(owner, at, kill)
module.read_in_parts = lambda *_, **__: True
module.prepare(source, out, overwrite=overwrite)
"""


def killed_at(at: str, source: Path, out: Path, *, overwrite: bool = False) -> None:
    """Prepares a source in parts, by a process that is killed there."""
    command = [sys.executable, "-c", KILLED_AT, str(source), str(out), at, "overwrite" if overwrite else ""]
    ran = subprocess.run(command, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert ran.returncode == -signal.SIGKILL


@pytest.mark.parametrize("at", ["seal", "remove", "half removed"])
@pytest.mark.parametrize("kind", ["text", "array"])
def test_killed_at_its_end_the_same_call_ends_it_and_leaves_nothing(tmp_path: Path, at: str, kind: str) -> None:
    if kind == "text":
        source = tmp_path / "g.tsv"
        source.write_text(lines())
    else:
        source = tmp_path / "ids.npy"
        np.save(source, np.random.default_rng(0).integers(0, 30, (500, 3)))
    killed_at(at, source, tmp_path / "out")
    assert (tmp_path / "out").exists() == (at != "seal") and (tmp_path / "out.spill").exists()
    found = prepare(source, tmp_path / "out", memory="1G")
    assert found.fingerprint == read_source(source).fingerprint
    assert {p.name for p in tmp_path.iterdir()} == {source.name, "out"}
    with pytest.raises(InputError, match="exists already"):
        prepare(source, tmp_path / "out")


def test_what_is_there_is_not_taken_for_the_result_of_another_source_or_of_a_call_that_was_stopped(
    tmp_path: Path,
) -> None:
    source, out = tmp_path / "g.tsv", tmp_path / "out"
    source.write_text(lines())
    killed_at("remove", source, out)
    with pytest.raises(InputError, match="exists already"):
        prepare(source, out, seed=1)
    source.write_text(lines(seed=1))
    with pytest.raises(InputError, match="exists already"):
        prepare(source, out)
    killed_at("seal", source, out, overwrite=True)
    with pytest.raises(InputError, match="exists already"):
        prepare(source, out)
    check_same(prepare(source, out, overwrite=True), read_source(source))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["g.tsv", "out"]


def test_a_spill_that_is_half_removed_begins_anew(tmp_path: Path) -> None:
    source, out = tmp_path / "g.tsv", tmp_path / "out"
    source.write_text(lines())
    killed_at("half removed", source, out)
    for path in (tmp_path / "out.spill").glob("*.ids"):
        path.unlink()
    out.rename(tmp_path / "taken away")
    check_same(prepare(source, out), read_source(source))


def test_a_spill_of_another_source_begins_anew(tmp_path: Path, small_blocks: None) -> None:
    (tmp_path / "g.tsv").write_text(lines())
    assert stopped(tmp_path / "g.tsv", tmp_path / "out", at=4)
    (tmp_path / "g.tsv").write_text(lines(seed=5))
    check_same(large(tmp_path / "g.tsv", tmp_path / "out"), read_source(tmp_path / "g.tsv"))


def test_a_damaged_or_foreign_spill_is_refused(tmp_path: Path, small_blocks: None) -> None:
    (tmp_path / "g.tsv").write_text(lines())
    assert stopped(tmp_path / "g.tsv", tmp_path / "out", at=4)
    (tmp_path / "out.spill" / "train.ids").write_bytes(b"")
    with pytest.raises(FormatError, match="shorter than its manifest says"):
        large(tmp_path / "g.tsv", tmp_path / "out")
    (tmp_path / "other.spill").mkdir()
    (tmp_path / "other.spill" / "thesis.tex").write_text("")
    with pytest.raises(InputError, match="thesis"):
        large(tmp_path / "g.tsv", tmp_path / "other")


def test_two_at_once_do_not_meet(tmp_path: Path, small_blocks: None) -> None:
    (tmp_path / "g.tsv").write_text(lines())

    def watch(*_: object) -> None:
        with pytest.raises(InputError, match="in use by another process"):
            large(tmp_path / "g.tsv", tmp_path / "out")

    large(tmp_path / "g.tsv", tmp_path / "out", watch=watch)


def test_a_bad_source_leaves_nothing_behind_and_its_line_is_named(tmp_path: Path, small_blocks: None) -> None:
    (tmp_path / "bad.tsv").write_text(lines() + "node 1\trel1\n")
    with pytest.raises(InputError, match="line 401: 2 columns"):
        large(tmp_path / "bad.tsv", tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["bad.tsv"]
    (tmp_path / "mine").mkdir()
    with pytest.raises(InputError, match="no encoded dataset"):
        large(tmp_path / "bad.tsv", tmp_path / "mine", overwrite=True)


def test_after_a_full_disk_it_goes_on(tmp_path: Path, small_blocks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "g.tsv").write_text(lines())
    add_rows, calls = Spill.add_rows, []

    def full(self: Spill, split: str, ids: np.ndarray) -> None:
        calls.append(split)
        if len(calls) == 6:
            raise OSError(errno.ENOSPC, "No space left on device")
        add_rows(self, split, ids)

    monkeypatch.setattr(Spill, "add_rows", full)
    with pytest.raises(OutputError, match="No space left on device.*the same command goes on"):
        large(tmp_path / "g.tsv", tmp_path / "out")
    n_calls = len(calls)
    check_same(large(tmp_path / "g.tsv", tmp_path / "out"), read_source(tmp_path / "g.tsv"))
    monkeypatch.undo()
    assert n_calls == 6 and not (tmp_path / "out.spill").exists()


def test_what_fits_is_read_at_once_and_what_might_not_in_parts(
    tmp_path: Path, small_blocks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "g.tsv").write_text(lines())
    ways: list[str] = []
    monkeypatch.setattr(prepare_module, "prepare_large", lambda *a, **k: (ways.append("parts"), prepare_large(*a, **k)))
    wanted = prepare(tmp_path / "g.tsv", tmp_path / "at_once", memory="1G")
    assert ways == []
    monkeypatch.setattr(limit_module, "LEAST", 1)
    monkeypatch.setattr(prepare_module, "room_within", lambda limit: limit)
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
    need = needed_at_once(recognise(tmp_path / "g.tsv"))
    assert 20_000 * 100 < need < 20_000 * 300
    assert needed_at_once(recognise(tmp_path / "g.tsv.gz")) > need / 2
    assert needed_at_once(recognise(tmp_path / "ids.npy")) > 30_000
    np.save(tmp_path / "wide.npy", np.zeros((1000, 3), np.int64))
    assert needed_at_once(recognise(tmp_path / "wide.npy")) == needed_at_once(recognise(tmp_path / "ids.npy"))
    (tmp_path / "damaged.npy").write_bytes(b"\x93NUMPY and no more")
    assert needed_at_once(recognise(tmp_path / "damaged.npy")) == 0


def test_under_a_limit_compressed_text_is_read_in_parts_unless_it_is_small(tmp_path: Path) -> None:
    random = np.random.default_rng(0).bytes(1 << 20)
    for name, content in (("small.gz", lines().encode()), ("large.gz", random)):
        (tmp_path / name).write_bytes(gzip.compress(content))
    room = 1 << 28
    small, packed = (recognise(tmp_path / name) for name in ("small.gz", "large.gz"))
    assert not read_in_parts(small, room, strict=True)
    assert read_in_parts(packed, room, strict=True)
    assert not read_in_parts(packed, room, strict=False)
    assert read_in_parts(small, room, strict=True, begun=True)


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


def test_where_a_source_can_only_be_read_at_once_that_is_said_under_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for source in only_at_once(tmp_path):
        layout = recognise(source)
        check_limit(layout, 1 << 30)
        assert not caplog.records, source
        with monkeypatch.context() as patch:
            patch.setattr(limit_module, "_LIBRARIES", (1 << 30) - 4000)
            check_limit(layout, 1 << 30)
        assert f"{source} can only be read at once: that may take 1.0 GiB" in caplog.text
        caplog.clear()
        with pytest.raises(InputError, match="can only be read at once, which takes more than.*--memory.*in parts"):
            check_limit(layout, 2000)
    np.save(tmp_path / "ids.npy", np.zeros((2000, 3), np.int32))
    check_limit(recognise(tmp_path / "ids.npy"), 2000)


def test_prepare_says_so_only_if_a_limit_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limit_module, "LEAST", 1)
    monkeypatch.setattr(limit_module, "machine_bytes", lambda: 1)
    folder = libkge_folder(tmp_path / "libkge")
    with pytest.raises(InputError, match="libkge can only be read at once"):
        prepare(folder, tmp_path / "out", memory="1k")
    (tmp_path / "out.spill").mkdir()
    (tmp_path / "out.spill" / "manifest.json").write_text("{}")  # of another source, which was read in parts
    assert prepare(folder, tmp_path / "out").n_entities == 300


def test_a_damaged_archive_or_table_needs_nothing_before_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "g.npz").write_bytes(b"PK\x03\x04")
    (tmp_path / "g.parquet").write_bytes(b"PAR1")
    assert tables.archive_sizes(tmp_path / "g.npz") == [] and tables.parquet_rows(tmp_path / "g.parquet") == 0
    np.savez(tmp_path / "one.npz", train=np.zeros((5, 3)), other=np.zeros(()))
    assert [n for _, n in tables.archive_sizes(tmp_path / "one.npz")] == [5, 0]


@pytest.mark.parametrize("duplicates", ["drop", "keep"])
def test_tables_get_what_the_marks_of_triples_and_names_leave(
    tmp_path: Path, small_blocks: None, monkeypatch: pytest.MonkeyPatch, caplog, duplicates: str
) -> None:
    (tmp_path / "g.tsv").write_text(lines(n=400, n_names=60))
    rooms: dict[str, int] = {}

    def listen(name: str, place: int) -> None:
        call = getattr(large_module, name)

        def spy(*given, **options):
            rooms[name] = given[place]
            return call(*given, **options)

        monkeypatch.setattr(large_module, name, spy)

    listen("unite", 3)
    listen("find_repeats", 2)
    large(tmp_path / "g.tsv", tmp_path / "out", room=1 << 16, duplicates=duplicates)
    assert rooms == {"unite": (1 << 16) - 4 * 64, "find_repeats": (1 << 16) - 400 * (1 + (duplicates == "keep"))}
    assert not caplog.records
    large(tmp_path / "g.tsv", tmp_path / "tight", room=420, duplicates=duplicates)
    assert rooms["find_repeats"] == 420 // 8
    assert "more than the limit will be taken" in caplog.text


def test_the_verb_takes_a_limit(tmp_path: Path) -> None:
    (tmp_path / "g.tsv").write_text(lines())
    assert run_grash("prepare", tmp_path / "g.tsv", "-o", tmp_path / "out", "--memory", "2G").code == 0
    ran = run_grash("prepare", tmp_path / "g.tsv", "-o", tmp_path / "other", "--memory", "some")
    assert ran.code == 2 and "no amount of memory" in ran.err
