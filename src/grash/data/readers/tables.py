"""Read tables: Parquet, .npy and .npz files; data frames, Arrow tables, query results and NetworkX. Goes to load.py.

Nothing is imported for tables in memory, except polars or pyarrow for an object that only has the Arrow PyCapsule
interface.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grash.data.arrays import Triples, in_blocks, open_array
from grash.data.dataset import MAX_ID, SPLITS
from grash.data.readers.source import SourceOptions, machine_bytes, parse_columns
from grash.data.readers.text import Dialect, TextSource, columns_by_name, named_columns, read_triples
from grash.data.vocabulary import Encoder
from grash.errors import InputError
from grash.formatting import format_bytes, printable
from grash.optional import optional_import

Columns = list[Any]  # head, relation, tail: a list or an array (n,) each
_ROWS = 1 << 18
_BYTES_PER_ROW = 3 * 16  # of a polars table, for long or short names


def read_parquet_file(path: Path, encoder: Encoder, options: SourceOptions) -> Triples:
    """Return the triples (n, 3) of a Parquet file with three columns of strings or integers, which are names."""
    pl = _polars(path)
    _check_size(path, _BYTES_PER_ROW * parquet_rows(path))
    with path.open("rb") as file:
        try:
            table = pl.read_parquet(file)
        except _damages(pl) as error:
            raise InputError(f"{path} cannot be read as Parquet: {_reason(error)}. It is damaged.") from error
        names = [table.columns[place] for place in _triple_columns(path, table.columns, options.columns, "--columns")]
        _check_columns(path, table, names, pl)
        # the text scanner reads the table as quoted CSV: no Python object per name
        csv = Dialect(ord(","), columns=(0, 1, 2), n_columns=3)
        source = TextSource(_CsvStream(table.select(names)), path)
        return read_triples(source, csv, lambda fields: encoder.encode_fields(*fields.groups))


def parquet_rows(path: Path) -> int:
    """Return the number of rows of a Parquet file, 0 if it is damaged."""
    pl = _polars(path)
    try:
        return int(pl.scan_parquet(path).select(pl.len()).collect().item())
    except _damages(pl):
        return 0


def _polars(path: Path) -> Any:
    return optional_import("polars", extra="parquet", purpose=f"Reading {path}")


def _damages(pl: Any) -> tuple[type[BaseException], ...]:
    """Return what polars raises for a damaged file: also the panics of its reader, which are no Exception."""
    return pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError, MemoryError


def _check_size(path: Path, n_bytes: int) -> None:
    """Raise InputError if a table that is read at once announces more than the memory of the machine."""
    if n_bytes > machine_bytes():
        raise InputError(
            f"{path} announces {format_bytes(n_bytes)}, but the machine has {format_bytes(machine_bytes())} of memory. "
            f"It is damaged, or has to be converted to text or .npy, which are read in parts."
        )


def read_npy_file(path: Path) -> Triples:
    """Return the triples (n, 3) of a .npy file of integers, memory-mapped if they are int32."""
    return np.ascontiguousarray(open_ids(path), np.int32).view(np.ndarray)


def open_ids(path: Path) -> NDArray[Any]:
    """Return the ids (n, 3) of a .npy file of any integer type, checked and memory-mapped."""
    try:
        array = open_array(path)
    except (ValueError, OSError) as error:
        raise InputError(f"{path} cannot be read as a .npy array: {_reason(error)}.") from error
    _check_ids(array, str(path))
    return array


def read_npz_file(path: Path) -> dict[str, Triples]:
    """Return the triples (n, 3) of each split of a .npz file."""
    _check_size(path, sum(n_bytes for n_bytes, _ in npz_sizes(path)))
    try:
        with path.open("rb") as file:
            if file.read(2) != b"PK":
                raise ValueError("its first bytes are not those of an archive")
            file.seek(0)
            with np.load(file, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
    except Exception as error:  # zipfile, zlib and NumPy's header reader raise many kinds for damaged bytes
        raise InputError(f"{path} cannot be read as a .npz archive: {_reason(error)}.") from error
    if len(arrays) == 1:
        arrays = {"train": next(iter(arrays.values()))}
    if "train" not in arrays:
        found = ", ".join(sorted(arrays)) or "nothing"
        raise InputError(f"{path} contains {found}, expected the arrays train, valid and test, or a single one.")
    splits: dict[str, Triples] = {}
    for name in SPLITS:
        if name in arrays:
            _check_ids(arrays[name], f"{name} in {path}")
            splits[name] = np.ascontiguousarray(arrays.pop(name), np.int32)
    return splits


def npz_sizes(path: Path) -> list[tuple[int, int]]:
    """Return (bytes, rows) of each array of a .npz file from its headers; an empty list if it is damaged."""
    try:
        with zipfile.ZipFile(path) as archive:
            return [(entry.file_size, _npz_rows(archive, entry)) for entry in archive.infolist()]
    except Exception:  # reported when the file is read
        return []


def _npz_rows(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> int:
    with archive.open(entry) as file:
        old = np.lib.format.read_magic(file) == (1, 0)
        shape, _, _ = (np.lib.format.read_array_header_1_0 if old else np.lib.format.read_array_header_2_0)(file)
    return shape[0] if shape else 0


def _check_ids(array: NDArray[Any], what: str) -> None:
    """Raise InputError unless an array has ids (n, 3) from 0 to MAX_ID."""
    if not isinstance(array, np.ndarray) or array.ndim != 2 or array.shape[1] != 3:
        shape = getattr(array, "shape", None)
        raise InputError(f"{what} has the shape {shape}, expected (n, 3): head, relation, tail.")
    if array.dtype.kind not in "iu":
        raise InputError(f"{what} has the type {array.dtype}, expected integers: the ids of head, relation, tail.")
    for start, block in in_blocks(array, _ROWS):
        if block.min() < 0 or block.max() > MAX_ID:
            row = int(np.argmax(((block < 0) | (block > MAX_ID)).any(axis=1)))
            value = next(int(v) for v in block[row] if not 0 <= int(v) <= MAX_ID)
            raise InputError(f"Row {start + row:,} of {what} has the id {value}, expected 0 to {MAX_ID:,}.")


def _reason(error: BaseException) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    if "allow_pickle" in text or "Python objects" in text:
        return "it contains Python objects, which are not loaded"
    if isinstance(error, zipfile.BadZipFile):  # its messages quote bytes of the file
        return "it is damaged"
    return text.splitlines()[0].rstrip(".")


def _triple_columns(
    what: Path | str, names: list[str], columns: str | Sequence[int | str] | None, option: str
) -> tuple[int, ...]:
    """Return the places of head, relation and tail: `columns`, or those with such names, or the only three."""
    wanted = parse_columns(columns)
    places: Any = wanted or columns_by_name(names) or ((0, 1, 2) if len(names) == 3 else None)
    if wanted is not None and isinstance(wanted[0], str):
        places = named_columns(what, names, wanted, where="", option=option)
    found = printable(", ".join(names)) or "none"
    if places is None:
        raise InputError(
            f"{what} has the columns {found}. Name three of them head, relation and tail, or give {option}."
        )
    if max(places) >= len(names):
        option = option.removesuffix("(…)")
        raise InputError(f"{what} has {len(names)} columns ({found}), but {option} needs column {max(places)}.")
    return tuple(places)


def _check_columns(path: Path, table: Any, names: list[str], pl: Any) -> None:
    for name in names:
        column = table[name]
        if not (column.dtype in (pl.String, pl.Categorical) or column.dtype.is_integer()):
            raise InputError(f"{path}: the column {name} has the type {column.dtype}, expected strings or integers.")
        if column.null_count():
            row = column.is_null().arg_max()
            raise InputError(f"{path}, row {row + 1:,}: the column {name} is empty, expected a name.")


class _CsvStream:
    """A polars table as a stream of quoted CSV, written in blocks of rows."""

    def __init__(self, table: Any) -> None:
        self._pieces = self._write(table)
        self._rest = b""

    def read(self, size: int) -> bytes:
        while len(self._rest) < size and (piece := next(self._pieces, b"")):
            self._rest += piece
        taken, self._rest = self._rest[:size], self._rest[size:]
        return taken

    @staticmethod
    def _write(table: Any) -> Iterator[bytes]:
        for start in range(0, len(table), _ROWS):
            piece = io.BytesIO()
            table.slice(start, _ROWS).write_csv(piece, include_header=False, quote_style="always")
            yield piece.getvalue()


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
    return [column(place) for place in _triple_columns(what, names, wanted, "columns=(…)")]


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
        by_place = frame.iloc if hasattr(frame, "iloc") else frame  # pandas allows equal names
        return [str(label) for label in labels], lambda i: _from_series(by_place[:, i])
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
