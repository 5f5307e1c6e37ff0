"""Triples in memory become the dataset that the same triples in a file become."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import grash
from grash.errors import ConfigError, InputError

NAMED = [(f"person {i % 7}", f"r{i % 3}", f"person {(i * i) % 11}") for i in range(80)]  # with duplicates
NONE = np.empty((0, 3), np.int32)


def frame(rows: list[tuple[Any, Any, Any]], *labels: str) -> polars.DataFrame:
    return polars.DataFrame(dict(zip(labels, map(list, zip(*rows)))))


def pandas_frame(rows: list[tuple[Any, Any, Any]]) -> Any:
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame(rows)  # columns 0, 1, 2


FORMS = {
    "tuples": lambda rows: rows,
    "generator": iter,
    "array": np.array,
    "objects": lambda rows: np.array(rows, object),
    "polars": lambda rows: frame(rows, "a", "b", "c"),
    "polars by name": lambda rows: frame([(t, 0, h, r) for h, r, t in rows], "tail", "weight", "head", "relation"),
    "polars categories": lambda rows: frame(rows, "s", "p", "o").with_columns(polars.all().cast(polars.Categorical)),
    "pandas": pandas_frame,
}


def written(rows: list[tuple[str, str, str]], path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("options", [{}, {"duplicates": "keep"}, {"n_valid": 5, "test_fraction": 0.2, "seed": 3}])
def test_a_graph_is_that_of_its_file(tmp_path, form, options):
    file = grash.load_dataset(written(NAMED, tmp_path / "people.tsv"), **options)
    found = grash.from_triples(FORMS[form](NAMED), name="people", **options)
    assert found.fingerprint == file.fingerprint and repr(found) == repr(file)
    left = ("source", "layout", "files", "read_as")
    assert {k: v for k, v in found.provenance.items() if k not in left} == {
        k: v for k, v in file.provenance.items() if k not in left
    }


@pytest.mark.parametrize("form", FORMS)
def test_splits_that_are_given_stay(tmp_path, form):
    parts = {"train": NAMED[:60], "valid": NAMED[60:70], "test": [*NAMED[70:], ("new", "r0", "newer")]}
    for split, rows in parts.items():
        written(rows, tmp_path / "graph" / f"{split}.txt")
    found = grash.from_triples(**{split: FORMS[form](rows) for split, rows in parts.items()})
    assert found.fingerprint == grash.load_dataset(tmp_path / "graph").fingerprint
    (tmp_path / "graph" / "valid.txt").unlink()
    found = grash.from_triples(FORMS[form](parts["train"]), test=FORMS[form](parts["test"]), n_valid=4)
    assert found.fingerprint == grash.load_dataset(tmp_path / "graph", n_valid=4).fingerprint


names = st.text(st.characters(exclude_characters="\t\n\r", exclude_categories=["Cs"]), min_size=1).filter(
    lambda name: name.strip() == name and name[0] not in '"\ufeff'
)


@settings(max_examples=40, deadline=None)
@given(rows=st.lists(st.tuples(names, names, names), min_size=1))
def test_any_names_are_those_of_the_file(tmp_path_factory, rows):
    path = written(rows, tmp_path_factory.mktemp("any") / "graph.tsv")
    file = grash.load_dataset(path, separator="tab", header=False)
    assert grash.from_triples(rows).fingerprint == file.fingerprint


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint64, object])
def test_integers_are_ids_only_if_they_are_called_so(tmp_path, dtype):
    numbers = np.array([[i % 5, i % 2, (i + 1) % 9] for i in range(40)])
    np.save(tmp_path / "ids.npy", numbers)
    file = grash.load_dataset(tmp_path / "ids.npy")
    for given_as in (numbers.astype(dtype), numbers.tolist(), frame(numbers.tolist(), "head", "relation", "tail")):
        found = grash.from_triples(given_as, ids=True)
        assert found.fingerprint == file.fingerprint and found.entities is None
    assert len(grash.from_triples(numbers, valid=[], test=NONE, ids=True).valid) == 0


@pytest.mark.parametrize("form", ["tuples", "array", "objects", "polars", "pandas"])
def test_integers_are_names_as_in_a_text_file(tmp_path, form):
    numbers = [(i * 7 % 50, i % 2 + 90, (i * i) % 9) for i in range(40)]
    file = grash.load_dataset(written([tuple(map(str, row)) for row in numbers], tmp_path / "g.tsv"))
    found = grash.from_triples(FORMS[form](numbers))
    assert found.fingerprint == file.fingerprint
    assert found.entities is not None and found.entities.find("7") == found.entities.id("7") != 7
    mixed = grash.from_triples([("a", 7, "b"), ("b", 8, "a")], valid=[], test=[])
    assert mixed.relations is not None and mixed.relations.names([0, 1]) == ["7", "8"]


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (np.array([[0, 0, -1]]), "Row 0 of train has the tail .*-1.*, expected an id from 0 to 2,147,483,647"),
        (np.array([[0, 2**31, 1]]), "the relation .*2147483648"),
        ([(2**70, 0, 1)], "the head 1180591620717411303424"),
        ([(0, 0, 1), (0, "r", 1)], "Row 1 of train has the relation 'r', expected an id .* Leave out ids=True"),
        ([(0, 0, True)], "the tail True"),
        ([(0.5, 0, 1)], "the head 0.5"),
    ],
)
def test_invalid_ids_are_an_input_error(train, message):
    with pytest.raises(InputError, match=message):
        grash.from_triples(train, ids=True)


class Reads:
    """Something else."""


@pytest.mark.parametrize(
    ("train", "said"),
    [
        ([], "no triples"),
        (None, "no triples"),
        (NONE, "no triples"),
        ("people.tsv", "Read files with load_dataset"),
        (Path("people.tsv"), "Read files with load_dataset"),
        ({("a", "r", "b")}, "train is a set"),
        (Reads(), "train is a Reads"),
        ([("a", "r")], r"Row 0 of train is \('a', 'r'\), expected \(head, relation, tail\)"),
        ([("a", "r", "b"), "arb"], "Row 1 of train is 'arb'"),
        ([("a", "r", None)], "Row 0 of train has no tail"),
        ([("a", "", "b")], "Row 0 of train has the relation '', expected a string or an integer"),
        ([("a", "r", True)], "has the tail True"),
        ([(0.5, 0, 1)], "has the head 0.5"),
        ([("a\ud800", "r", "b")], "UTF-8"),
        (np.zeros((4, 2), int), r"shape \(4, 2\), expected \(n, 3\)"),
        (np.zeros(3, int), r"shape \(3,\)"),
        (np.array([[b"a", b"r", b"b"]]), "has the head b'a'"),
        (frame([("a", "r", "b", "c")], "a", "b", "c", "d"), "has the columns a, b, c, d. Name three of them head"),
        (frame([("a", "r", "b"), ("a", "r", None)], "a", "b", "c"), "Row 1 of train has no tail"),
    ],
)
def test_invalid_triples_are_an_input_error(train, said):
    with pytest.raises(InputError, match=said):
        grash.from_triples(train)


def test_options_of_files_are_refused():
    with pytest.raises(ConfigError, match="separator is an option for files"):
        grash.from_triples(NAMED, separator="tab")
    with pytest.raises(ConfigError, match="Did you mean 'n_valid'"):
        grash.from_triples(NAMED, n_vaild=3)


@pytest.mark.parametrize("read", [grash.load_dataset, grash.train, lambda s: grash.prepare(s, "out")])
@pytest.mark.parametrize("source", [NAMED, np.array(NAMED), frame(NAMED, "h", "r", "t"), None])
def test_triples_instead_of_a_path_are_referred_to_the_function_that_takes_them(read, source):
    takes = "from_dataframe" if hasattr(source, "columns") else "from_triples"
    with pytest.raises(InputError, match=f"with grash.{takes}"):
        read(source)


def test_columns_of_a_data_frame_given_one_by_one_are_explained() -> None:
    table = frame([("a", "r", "b", 1)], "start", "type", "end", "weight")
    with pytest.raises(ConfigError, match=r"give columns=\('start', 'type', 'end'\)\."):
        grash.from_dataframe(table, head="start", relation="type", tail="end")  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="There is no option 'seperator'"):
        grash.from_dataframe(table, seperator=",")  # type: ignore[call-arg]
