"""Random bytes at every reader: a Dataset or a sentence, never anything else."""

import bz2
import gzip
import io
import lzma

import numpy as np
import pytest
import zstandard
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from data.readers.fuzz import fuzz
from grash.data.dataset import Dataset
from grash.data.load import load_dataset
from grash.data.readers.source import FORMATS
from grash.errors import GrashError

QUIET = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
pieces = st.sampled_from(
    [b"\t", b"\n", b"\r\n", b",", b'"', b'""', b" ", b"a", b"b", b"0", b"1", b"2", b"\xc3\xa4", b"\xff", b"\0", b"#"]
    + [b"<http://x/a>", b" .\n", b"_:b", b'"x"@en', b"a\tr\tb\n", b"0\t0\t1\n", b"1,2,3\n", b"\xef\xbb\xbf", b"@prefix"]
    + [
        b"<?xml version='1.0'?>",
        b"<rdf:RDF",
        b"PAR1",
        b"\x93NUMPY\x01\0",
        b"PK\x03\x04",
        b"\x1f\x8b\x08",
        b"\x28\xb5\x2f\xfd",
    ]
)
contents = st.one_of(st.binary(max_size=300), st.lists(pieces, max_size=40).map(b"".join))


def only_a_dataset_or_a_sentence(path, **options):
    try:
        dataset = load_dataset(path, **options)
    except GrashError as error:
        assert str(error).endswith((".", "?", ")")), str(error)
    else:
        assert isinstance(dataset, Dataset)
        assert len(dataset.train)
        for vocabulary in (dataset.entities, dataset.relations):
            assert vocabulary is None or all(vocabulary)


@pytest.mark.parametrize("file_format", FORMATS)
@QUIET
@given(content=contents)
def test_files_of_every_format(tmp_path, file_format, content):
    path = tmp_path / "graph"
    path.write_bytes(content)
    only_a_dataset_or_a_sentence(path, format=file_format)


@pytest.mark.parametrize("separator", [None, ",", "tab", "whitespace"])
@QUIET
@given(content=contents)
@example(content=b'"')
@example(content=b'a,"b""')
def test_text_with_every_separator(tmp_path, separator, content):
    path = tmp_path / "graph.csv"
    path.write_bytes(content)
    only_a_dataset_or_a_sentence(path, separator=separator, n_valid=1, n_test=1)


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress, zstandard.ZstdCompressor().compress])
@QUIET
@given(content=contents, at=st.integers(0, 400), with_what=st.binary(max_size=3))
def test_damaged_archives(tmp_path, compress, content, at, with_what):
    raw = compress(content)
    path = tmp_path / "graph.tsv"
    path.write_bytes(raw[:at] + with_what + raw[at + len(with_what) :])
    only_a_dataset_or_a_sentence(path)


FOLDERS = {
    "three files": ["train.txt", "valid.txt", "test.txt"],
    "libkge": ["train.del", "valid.del", "entity_ids.del", "relation_ids.del", "dataset.yaml"],
    "dictionaries": ["train.txt", "test.txt", "entities.dict", "relations.dict"],
    "openke": ["train2id.txt", "test2id.txt", "entity2id.txt", "relation2id.txt"],
    "arrays": ["train.npy", "valid.npy", "entities.txt"],
    "encoded": ["dataset.json", "train.npy", "valid.npy", "test.npy", "entities.names.npy", "entities.offsets.npy"],
}


@pytest.mark.parametrize("kind", FOLDERS)
@QUIET
@given(data=st.data())
def test_folders_of_every_layout(tmp_path, kind, data):
    for name in FOLDERS[kind]:
        (tmp_path / name).write_bytes(data.draw(contents))
    only_a_dataset_or_a_sentence(tmp_path)


@QUIET
@given(data=st.data())
def test_a_flipped_byte_in_an_encoded_dataset(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("fuzz") / "d"
    (folder.parent / "g.tsv").write_text("a\tr\tb\nb\tr\tc\nc\ts\ta\n")
    load_dataset(folder.parent / "g.tsv").save(folder)
    path = folder / data.draw(st.sampled_from(sorted(p.name for p in folder.iterdir())))
    raw = bytearray(path.read_bytes())
    raw[data.draw(st.integers(0, 10**6)) % len(raw)] = data.draw(st.integers(0, 255))
    path.write_bytes(raw)
    try:
        dataset = Dataset.load(folder)
        list(dataset.entities)
        [dataset.entities.find(name) for name in "abc"]
        dataset.entities.suggest("x")
    except GrashError:
        pass


@QUIET
@given(array=st.sampled_from([np.zeros((2, 3)), np.zeros((2, 3), np.int32), np.zeros(3, "M8[s]")]), data=st.data())
def test_a_flipped_byte_in_an_array(tmp_path, array, data):
    content = io.BytesIO()
    np.save(content, array)
    raw = bytearray(content.getvalue())
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "g.npy"
    path.write_bytes(raw)
    only_a_dataset_or_a_sentence(path)


@pytest.mark.slow
def test_mutated_files_are_read_as_plain_readers_read_them_or_refused():
    outcomes, findings = fuzz(1500, seed=7)
    assert findings == []
    assert outcomes["compared"] > 300 and outcomes["refused"] > 300, outcomes
