"""Damaged tables, bombs, pipes and archives: a sentence each, in little memory."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import subprocess
import sys
import tarfile
import zipfile
from functools import partial
from pathlib import Path

import numpy as np
import polars
import pytest
import zstandard

from grash.data.arrays import open_array
from grash.data.catalog import CatalogEntry, RemoteFile, download
from grash.data.dataset import Dataset
from grash.data.load import load_dataset
from grash.data.readers import tables
from grash.errors import FormatError, InputError
from small_graph import grash

READ = """
import resource, sys
from grash.data.load import load_dataset
from grash.errors import InputError
load_dataset("world")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    load_dataset(sys.argv[1])
except InputError as error:
    print(error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


def table(path: Path) -> bytes:
    polars.DataFrame({"h": [f"e{i}" for i in range(99)], "r": ["r"] * 99, "t": ["x"] * 99}).write_parquet(path)
    return path.read_bytes()


def test_a_panic_of_the_parquet_reader_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table(tmp_path / "g.parquet")

    def panic(*_, **__):
        raise polars.exceptions.PanicException("index out of bounds: the len is 3 but the index is 7")

    monkeypatch.setattr(polars, "read_parquet", panic)
    done = grash("describe", tmp_path / "g.parquet")
    assert done.code == 2 and "Traceback" not in done.err
    assert "g.parquet cannot be read as Parquet: index out of bounds" in done.err and "It is damaged." in done.err
    monkeypatch.setattr(polars, "scan_parquet", panic)
    assert tables.parquet_rows(tmp_path / "g.parquet") == 0


@pytest.mark.parametrize("cut", [4, 5, 30, -1, -9])
def test_a_truncated_parquet_file_is_a_sentence(tmp_path: Path, cut: int) -> None:
    raw = table(tmp_path / "g.parquet")
    (tmp_path / "g.parquet").write_bytes(raw[:cut])
    with pytest.raises(InputError, match=r"cannot be read as Parquet: .*\. It is damaged\."):
        load_dataset(tmp_path / "g.parquet")


def test_tables_larger_than_the_machine_are_refused_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez_compressed(tmp_path / "g.npz", train=np.zeros((1 << 20, 3), np.int64))
    table(tmp_path / "g.parquet")
    monkeypatch.setattr(tables, "machine_bytes", lambda: 1000)
    for name in ("g.npz", "g.parquet"):
        with pytest.raises(InputError, match=rf"{name} announces .* but the machine has 1.* of memory"):
            load_dataset(tmp_path / name)


OPENERS = {
    "gz": partial(gzip.GzipFile, mode="wb", compresslevel=1),
    "bz2": partial(bz2.BZ2File, mode="wb", compresslevel=1),
    "xz": partial(lzma.LZMAFile, mode="wb", preset=0),
    "zst": lambda path: zstandard.ZstdCompressor(19).stream_writer(path.open("wb")),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("compression", "suffix", "n"),
    [("zst", ".tsv", 1024), ("zst", ".rdf", 1024), ("gz", ".tsv", 200), ("bz2", ".tsv", 200), ("xz", ".nt", 200)],
)
def test_a_small_file_of_endless_zeros_takes_little_memory(
    tmp_path: Path, compression: str, suffix: str, n: int
) -> None:
    path = tmp_path / f"bomb{suffix}"
    with OPENERS[compression](path) as file:
        for _ in range(n):
            file.write(bytes(1 << 20))
    assert path.stat().st_size < 1 << 20
    done = subprocess.run([sys.executable, "-c", READ, path], capture_output=True, text=True, check=True)
    sentence, mebibytes = done.stdout.rsplit("\n", 2)[:2]
    assert sentence.startswith(f"{path}") and ("64 MiB" in sentence or "this is not N-Triples" in sentence)
    assert int(mebibytes) < 700, mebibytes


def test_pipes_and_folders_in_place_of_files_are_sentences(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="pipe is neither a file nor a folder"):
        load_dataset(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "folder" / "train.txt")
    with pytest.raises(InputError, match="folder contains no graph"):
        load_dataset(tmp_path / "folder")
    (tmp_path / "g.tsv").mkdir()
    with pytest.raises(InputError, match="g.tsv contains no graph"):
        load_dataset(tmp_path / "g.tsv")
    load_dataset("world").save(tmp_path / "encoded")
    (tmp_path / "encoded" / "train.npy").unlink()
    os.mkfifo(tmp_path / "encoded" / "train.npy")
    with pytest.raises(ValueError, match="not a regular file"):
        open_array(tmp_path / "encoded" / "train.npy")
    with pytest.raises(FormatError):
        Dataset.load(tmp_path / "encoded")


def archive(path: Path, name: str) -> Path:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as packed:
            packed.writestr(name, "a\tr\tb\n")
    else:
        with tarfile.open(path, "w:gz") as packed:
            member = tarfile.TarInfo(name)
            member.size = 6
            packed.addfile(member, io.BytesIO(b"a\tr\tb\n"))
    return path


@pytest.mark.parametrize("suffix", [".zip", ".tar.gz"])
@pytest.mark.parametrize("name", ["../out.txt", "/tmp/out.txt", "a/../../out.txt", "C:/out.txt", "..\\out.txt"])
def test_an_archive_with_paths_outside_is_not_unpacked(tmp_path: Path, suffix: str, name: str) -> None:
    file = RemoteFile("https://x.org/g", f"g{suffix}")
    entry = CatalogEntry("g", "G", (file,), "archive", "nobody")
    (tmp_path / "here" / "g.download").mkdir(parents=True)
    archive(tmp_path / "here" / "g.download" / f"g{suffix}", name)
    with pytest.raises(InputError, match="a path outside of the folder. Nothing was unpacked"):
        download(entry, tmp_path / "here")
    assert {p.name for p in tmp_path.rglob("*")} == {f"g{suffix}", "g.download", "here"}


def test_folders_and_files_in_the_way_of_a_download_are_sentences(tmp_path: Path) -> None:
    entry = CatalogEntry("g", "G", (RemoteFile("https://x.org/g", "g.tsv"),), "files", "nobody")
    (tmp_path / "g").write_text("")
    with pytest.raises(InputError, match="g is not a folder. Move it away"):
        download(entry, tmp_path)
    (tmp_path / "g").unlink()
    (tmp_path / "g.download" / "g.tsv").mkdir(parents=True)
    with pytest.raises(InputError, match="is not the file of the catalog: it is not a regular file"):
        download(entry, tmp_path)
