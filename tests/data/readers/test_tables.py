"""Parquet files and arrays."""

import io

import numpy as np
import polars as pl
import pytest

from grash.data.load import load_dataset
from grash.data.readers import tables
from grash.errors import InputError

ROWS = {"head": ["a", 'q"uo,te', "two\nlines"], "relation": ["r", "r", "s"], "tail": ["b", "ü", "a"]}


def read(path, **options):
    dataset = load_dataset(path, n_valid=0, n_test=0, **options)
    entities, relations = dataset.entities, dataset.relations
    return [(entities.name(h), relations.name(r), entities.name(t)) for h, r, t in dataset.train.tolist()]


EXPECTED = list(zip(*ROWS.values()))


@pytest.mark.parametrize(
    ("columns", "options"),
    [
        (["head", "relation", "tail"], {}),
        (["tail", "head", "relation"], {}),
        (["weight", "tail", "head", "relation"], {}),
        (["weight", "tail", "head", "relation"], {"columns": (2, 3, 1)}),
    ],
)
def test_columns_are_found_by_name_or_option(tmp_path, columns, options):
    table = pl.DataFrame({**ROWS, "weight": [1.0, 2.0, 3.0]}).select(columns)
    table.write_parquet(tmp_path / "g.parquet")
    assert read(tmp_path / "g.parquet", **options) == EXPECTED


def test_three_columns_without_known_names_are_taken_as_they_come(tmp_path):
    pl.DataFrame(dict(zip("xyz", ROWS.values()))).write_parquet(tmp_path / "g.parquet")
    assert read(tmp_path / "g.parquet") == EXPECTED


def test_integers_are_names(tmp_path):
    pl.DataFrame({"s": [10**15, 7], "p": [1, 1], "o": [7, 9]}).write_parquet(tmp_path / "g.parquet")
    assert read(tmp_path / "g.parquet") == [(str(10**15), "1", "7"), ("7", "1", "9")]


def test_a_parquet_file_is_known_by_its_content(tmp_path):
    pl.DataFrame(ROWS).write_parquet(tmp_path / "no_suffix")
    assert read(tmp_path / "no_suffix") == EXPECTED


def test_many_rows_are_read_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "_ROWS", 7)
    table = pl.DataFrame({"h": [f"e{i}" for i in range(100)], "r": ["r"] * 100, "t": ["x"] * 100})
    table.write_parquet(tmp_path / "g.parquet")
    assert read(tmp_path / "g.parquet") == [(f"e{i}", "r", "x") for i in range(100)]


@pytest.mark.parametrize(
    ("table", "options", "sentence"),
    [
        ({"a": ["x"], "b": ["x"]}, {}, "has the columns a, b. Name three of them"),
        ({"a": ["x"], "b": ["x"]}, {"columns": (0, 1, 2)}, "has 2 columns .* needs column 2"),
        ({"head": [1.5], "relation": ["r"], "tail": ["b"]}, {}, "the column head has the type Float64"),
        ({"head": ["a", None], "relation": ["r", "r"], "tail": ["b", "b"]}, {}, "row 2: the column head is empty"),
        ({"head": ["a", ""], "relation": ["r", "r"], "tail": ["b", "b"]}, {}, "line 2: the head is empty"),
        ({"head": [], "relation": [], "tail": []}, {}, "has the type Null, expected strings|contains no triples"),
    ],
)
def test_a_parquet_file_that_is_no_graph(tmp_path, table, options, sentence):
    pl.DataFrame(table).write_parquet(tmp_path / "g.parquet")
    with pytest.raises(InputError, match=sentence):
        load_dataset(tmp_path / "g.parquet", **options)


def test_a_truncated_parquet_file(tmp_path):
    pl.DataFrame(ROWS).write_parquet(tmp_path / "g.parquet")
    raw = (tmp_path / "g.parquet").read_bytes()
    (tmp_path / "g.parquet").write_bytes(raw[:-10])
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        load_dataset(tmp_path / "g.parquet")


IDS = np.array([[0, 0, 1], [1, 1, 2], [2, 0, 0]])


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int32, np.uint64, ">i4"])
def test_a_single_array_is_split(tmp_path, dtype):
    np.save(tmp_path / "g.npy", np.asfortranarray(IDS.astype(dtype)))
    dataset = load_dataset(tmp_path / "g.npy", n_valid=0, n_test=0)
    assert dataset.train.tolist() == IDS.tolist()
    assert (dataset.n_entities, dataset.n_relations, dataset.entities) == (3, 2, None)


def test_an_archive_of_arrays(tmp_path):
    np.savez(tmp_path / "g.npz", train=IDS, valid=IDS[:1], test=IDS[1:], other=np.zeros(3))
    dataset = load_dataset(tmp_path / "g.npz")
    assert [len(dataset.split(s)) for s in ("train", "valid", "test")] == [3, 1, 2]
    np.savez_compressed(tmp_path / "one.npz", triples=IDS)
    assert load_dataset(tmp_path / "one.npz", n_valid=0, n_test=0).train.tolist() == IDS.tolist()


@pytest.mark.parametrize(
    ("array", "sentence"),
    [
        (IDS[:, :2], r"has the shape \(3, 2\)"),
        (IDS.astype(float), "has the type float64, expected integers"),
        (np.array([[0, 0, 1], [0, -4, 1]]), "Row 1 of .* has the id -4"),
        (np.array([[0, 0, 2**31]]), "Row 0 of .* has the id 2147483648"),
        (np.array([[0, 0, 2**64 - 1]], np.uint64), "has the id 18446744073709551615"),
        (np.empty((0, 3), np.int32), "contains no triples"),
        (np.array([["a", "b", "c"]]), "has the type <U1, expected integers"),
    ],
)
def test_an_array_that_is_no_graph(tmp_path, array, sentence):
    np.save(tmp_path / "g.npy", array)
    with pytest.raises(InputError, match=sentence):
        load_dataset(tmp_path / "g.npy")


def test_python_objects_are_never_loaded(tmp_path):
    np.save(tmp_path / "g.npy", np.array([[{}, {}, {}]], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="it contains Python objects, which are not loaded"):
        load_dataset(tmp_path / "g.npy")
    np.savez(tmp_path / "g.npz", train=np.array([[{}, {}, {}]], dtype=object))
    with pytest.raises(InputError, match="it contains Python objects, which are not loaded"):
        load_dataset(tmp_path / "g.npz")


def test_the_error_for_a_damaged_archive_does_not_quote_its_bytes(tmp_path):
    content = io.BytesIO()
    np.savez(content, train=IDS)
    (tmp_path / "g.npz").write_bytes(content.getvalue().replace(b"train.npy", b"\x00\x1brai.npy", 1))
    with pytest.raises(InputError, match=r"g.npz cannot be read as a .npz archive: it is damaged\.$"):
        load_dataset(tmp_path / "g.npz")


def test_truncated_arrays(tmp_path):
    content = io.BytesIO()
    np.savez(content, train=IDS)
    (tmp_path / "g.npz").write_bytes(content.getvalue()[:-30])
    with pytest.raises(InputError, match="cannot be read as a .npz archive"):
        load_dataset(tmp_path / "g.npz")
    np.save(tmp_path / "g.npy", IDS)
    (tmp_path / "g.npy").write_bytes((tmp_path / "g.npy").read_bytes()[:-3])
    with pytest.raises(InputError, match="cannot be read as a .npy array"):
        load_dataset(tmp_path / "g.npy")


def test_an_archive_without_train(tmp_path):
    np.savez(tmp_path / "g.npz", a=IDS, b=IDS)
    with pytest.raises(InputError, match="contains a, b, expected the arrays train, valid and test"):
        load_dataset(tmp_path / "g.npz")
