"""Triples in tables and graphs of other libraries: data frames, Arrow tables, query results, NetworkX. Goes to load.py.

Nothing is imported for them, except polars or pyarrow for an object that only has the Arrow PyCapsule interface.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from grash.data.readers.source import parse_columns
from grash.data.readers.text import columns_by_name, named_columns
from grash.errors import InputError
from grash.optional import optional_import

Columns = list[Any]  # head, relation, tail: a list or an array (n,) each


def is_frame(given: Any) -> bool:
    """Return whether this is a table with named columns."""
    if isinstance(given, np.ndarray):
        return False
    named = hasattr(given, "columns") and hasattr(given, "to_numpy")
    return named or any(hasattr(given, f"__{name}__") for name in ("arrow_c_stream", "dataframe"))


def frame_columns(frame: Any, what: str, wanted: str | Sequence[int | str] | None = None) -> Columns:
    """Return heads, relations and tails of a table.

    wanted: three columns by name or place; else those named head, relation and tail (or subject, predicate, object, …),
    or the only three. what: names the table in errors.
    """
    names, column = _table(frame, what)
    places: Any = parse_columns(wanted)
    if places is not None and isinstance(places[0], str):
        places = named_columns(what, names, places)  # type: ignore[arg-type]
    elif places is None:
        places = columns_by_name(names) or ((0, 1, 2) if len(names) == 3 else None)
    found = ", ".join(names) or "none"
    if places is None or len(set(names)) < len(names):
        raise InputError(
            f"{what} has the columns {found}. Name three of them head, relation and tail, or give columns=(…)."
        )
    if max(places) >= len(names):
        raise InputError(f"{what} has {len(names)} columns ({found}), but columns= needs column {max(places)}.")
    return [column(place) for place in places]


def edge_columns(graph: Any, relation: str, default: str | None) -> Columns:
    """Return the edges of a NetworkX graph as heads, relations and tails.

    The relation of an edge is its attribute `relation`, or in a multigraph its key, or `default`. An edge of an
    undirected graph becomes one triple, in the direction in which NetworkX lists it.
    """
    heads, relations, tails = [], [], []
    multi = bool(graph.is_multigraph())
    for edge in graph.edges(keys=True, data=True) if multi else graph.edges(data=True):
        head, tail, data = edge[0], edge[1], edge[-1]
        name = data.get(relation, edge[2] if multi and isinstance(edge[2], str) else default)
        if name is None:
            raise InputError(
                f"The edge ({head!r}, {tail!r}) has no attribute {relation!r}: name the attribute with relation=, or "
                f"give default= for edges without it."
            )
        heads.append(head)
        relations.append(name)
        tails.append(tail)
    return [heads, relations, tails]


def _table(frame: Any, what: str) -> tuple[list[str], Callable[[int], Any]]:
    """Return the names of the columns, and a function that returns the values of one."""
    if callable(collect := getattr(frame, "collect", None)) and not hasattr(frame, "to_numpy"):
        frame = collect()  # a lazy frame of polars
    if hasattr(frame, "columns") and hasattr(frame, "to_numpy"):  # pandas, polars
        labels = list(frame.columns)
        return [str(label) for label in labels], lambda i: _from_series(frame[labels[i]])
    if hasattr(frame, "column_names") and hasattr(frame, "column"):  # pyarrow
        return list(frame.column_names), lambda i: frame.column(i).to_pylist()
    if hasattr(frame, "__arrow_c_stream__"):  # a relation of DuckDB, or any other producer
        return _table(_from_arrow(frame, what), what)
    if hasattr(frame, "__dataframe__"):  # the interchange protocol
        polars = optional_import("polars", extra="parquet", purpose=f"Reading {what}, a {type(frame).__name__},")
        return _table(polars.from_dataframe(frame), what)
    raise InputError(
        f"{what} is a {type(frame).__name__}, expected a data frame: of pandas, polars or pyarrow, or anything with "
        f"the Arrow PyCapsule interface."
    )


def _from_series(series: Any) -> Any:
    """Return the values (n,) of a column of pandas or polars, None where it has none."""
    missing = (series.isna() if hasattr(series, "isna") else series.is_null()).to_numpy()
    values = series.to_numpy()
    if missing.any():
        values = values.astype(object)  # with nulls, integers became floats
        values[missing] = None
    return values


def _from_arrow(frame: Any, what: str) -> Any:
    try:
        import pyarrow

        return pyarrow.table(frame)
    except ImportError:
        polars = optional_import("polars", extra="parquet", purpose=f"Reading {what}, a {type(frame).__name__},")
        return polars.DataFrame(frame)
