"""Tables and graphs of other libraries become the same dataset as the same triples in a list."""

from __future__ import annotations

import builtins
import sys
from typing import Any

import networkx
import pytest

import grash
from grash.errors import InputError

ROWS = [("Peru", "speaks", "Spanish"), ("Peru", "borders", "Chile"), ("Chile", "speaks", "Spanish"), ("Ü", "r", "1")]
NONE: dict[str, Any] = {"n_valid": 0, "n_test": 0}
EXPECTED = grash.from_triples(ROWS, **NONE).fingerprint


def mapping(*names: str) -> dict[str, list[Any]]:
    return {"note": [1.5] * len(ROWS)} | {name: list(column) for name, column in zip(names, zip(*ROWS))}


class OnlyArrow:
    """A producer that has nothing but the PyCapsule interface."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)


def frame_of(kind: str, content: dict[str, list[Any]]) -> Any:
    if kind == "pandas":
        return pytest.importorskip("pandas").DataFrame(content)
    if kind == "pandas categories":
        return pytest.importorskip("pandas").DataFrame(content).astype({n: "category" for n in content if n != "note"})
    polars = pytest.importorskip("polars")
    if kind == "polars":
        return polars.DataFrame(content)
    if kind == "lazy polars":
        return polars.DataFrame(content).lazy()
    if kind == "pyarrow":
        return pytest.importorskip("pyarrow").table(content)
    if kind == "capsule":
        return OnlyArrow(polars.DataFrame(content))
    database = pytest.importorskip("duckdb").connect()
    columns = ", ".join(f'"{name}" TEXT' for name in content)
    database.execute(f"CREATE TABLE t ({columns})")
    database.executemany(f"INSERT INTO t VALUES ({', '.join('?' * len(content))})", list(zip(*content.values())))
    return database.sql("FROM t")


KINDS = ["pandas", "pandas categories", "polars", "lazy polars", "pyarrow", "capsule", "duckdb"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_table_is_the_graph_of_its_rows(kind: str) -> None:
    usual = grash.from_dataframe(frame_of(kind, mapping("subject", "predicate", "object")), **NONE)
    named = frame_of(kind, mapping("Start", "type", "end"))
    assert usual.fingerprint == EXPECTED
    assert grash.from_dataframe(named, columns=("start", "TYPE", "end"), **NONE).fingerprint == EXPECTED
    assert grash.from_dataframe(named, columns=(1, 2, 3), **NONE).fingerprint == EXPECTED


def test_a_capsule_is_read_with_polars_where_pyarrow_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = OnlyArrow(frame_of("polars", mapping("head", "relation", "tail")))
    importing = builtins.__import__

    def without_pyarrow(name: str, *rest: Any, **more: Any) -> Any:
        if name == "pyarrow":
            raise ImportError(name)
        return importing(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without_pyarrow)
    assert grash.from_dataframe(frame, **NONE).fingerprint == EXPECTED
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(InputError, match=r"Reading train, a OnlyArrow, needs polars.*'grash-kge\[parquet\]'"):
        grash.from_dataframe(frame, **NONE)


def test_the_only_three_columns_may_have_equal_names_or_line_breaks() -> None:
    frame = pytest.importorskip("pandas").DataFrame(ROWS, columns=["x", "x", "y"])
    graph = grash.from_dataframe(frame)
    assert graph.entities is not None and graph.entities.name(0) == ROWS[0][0]
    frame["two\nlines"] = 1
    with pytest.raises(InputError, match=r"train has the columns x, x, y, two\\nlines\. Name three"):
        grash.from_dataframe(frame)


def test_splits_are_tables_of_their_own_and_integers_are_names() -> None:
    pandas = pytest.importorskip("pandas")
    train = pandas.DataFrame({"h": [1, 2], "r": ["x", "x"], "t": [2, 3]})
    graph = grash.from_dataframe(train, test=train.iloc[:1], columns="h,r,t", n_valid=0)
    assert graph.entities is not None and list(graph.entities) == ["1", "2", "3"] and len(graph.test) == 1


@pytest.mark.parametrize(
    ("content", "columns", "sentence"),
    [
        (mapping("a", "b", "c"), None, "train has the columns note, a, b, c. Name three of them head"),
        (mapping("a", "b", "c"), ("a", "b", "d"), "train has no column 'd'"),
        (mapping("a", "b", "c"), (1, 2, 9), "train has 4 columns .* needs column 9"),
        (mapping("a", "b", "c"), (0, 2, 3), "Row 0 of train has the head 1.5, expected a string or an integer"),
    ],
)
def test_a_table_that_does_not_fit_is_a_sentence(content: Any, columns: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        grash.from_dataframe(frame_of("pandas", content), columns=columns)


@pytest.mark.parametrize("heads", [["a", "b", None], [1, 2, None]])
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_without_a_value_is_named(kind: str, heads: list[Any]) -> None:
    frame = frame_of(kind, {"head": heads, "relation": ["r"] * 3, "tail": ["b", "c", "d"]})
    with pytest.raises(InputError, match=r"^Row 2 of train has no head\.$"):
        grash.from_dataframe(frame)
    if kind in ("pandas", "polars"):
        with pytest.raises(InputError, match=r"^Row 2 of train has no head\.$"):
            grash.from_triples(frame, ids=True)


def test_something_that_is_no_table_is_a_sentence() -> None:
    with pytest.raises(InputError, match="train is a dict, expected a data frame: of pandas"):
        grash.from_dataframe({"head": ["a"]})


def test_a_networkx_graph_has_its_relations_in_an_attribute_or_in_its_keys() -> None:
    directed = networkx.DiGraph()
    multi = networkx.MultiDiGraph()
    for head, relation, tail in ROWS:
        directed.add_edge(head, tail, relation=relation)
        multi.add_edge(head, tail, key=relation)
    for graph in (directed, multi):
        triples = {(e[0], e[2] if len(e) == 4 else e[-1]["relation"], e[1]) for e in edges(graph)}
        made = grash.from_networkx(graph, **NONE)
        names = [(made.entities, made.relations, made.entities)] * len(made.train)
        assert {tuple(v.name(int(i)) for v, i in zip(n, t) if v) for n, t in zip(names, made.train)} == triples
    plain = networkx.path_graph(4)
    with pytest.raises(InputError, match=r"The edge \(0, 1\) has no attribute 'relation': name the attribute"):
        grash.from_networkx(plain)
    linked = grash.from_networkx(plain, default="next_to", **NONE)
    assert len(linked.train) == 3 and linked.relations is not None and list(linked.relations) == ["next_to"]


def edges(graph: Any) -> Any:
    return graph.edges(keys=True, data=True) if graph.is_multigraph() else graph.edges(data=True)


def test_errors_about_tables_use_the_words_of_python() -> None:
    frame = frame_of("pandas", mapping("x", "y", "z"))
    with pytest.raises(InputError) as caught:
        grash.from_dataframe(frame, columns=("a", "b", "c"))
    named = "Give three of these names, or places counted from 0, with columns=(…)."
    assert str(caught.value) == f"train has no column 'a' (note, x, y, z). {named}"
    with pytest.raises(InputError, match="Create a dataset of a data frame with grash.from_dataframe"):
        grash.Search(frame)
    with pytest.raises(InputError, match="of a NetworkX graph with grash.from_networkx"):
        grash.Search(networkx.DiGraph())
