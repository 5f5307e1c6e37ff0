"""Tables become triples: Parquet files of names, and .npy/.npz files of ids. Goes to prepare.py."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grash.data.arrays import in_blocks, open_array
from grash.data.dataset import MAX_ID, SPLITS
from grash.data.encoder import Encoder, Triples, read_triples
from grash.data.readers.options import SourceOptions
from grash.data.readers.text import Dialect, TextSource, parse_columns, places_by_name
from grash.errors import InputError

_ROWS = 1 << 18


def parquet_file(path: Path, encoder: Encoder, options: SourceOptions) -> Triples:
    """The triples (n, 3) of a Parquet file with three columns of strings or integers, which are its names."""
    with path.open("rb") as file:
        table = _parquet(path, file)
        names = _three_columns(path, table.columns, options)
        _check_columns(path, table, names)
        # as quoted commas, which the text scanner reads as it comes: no Python object per name
        quoted = Dialect(ord(","), quotes=True, header=False, columns=(0, 1, 2), n_columns=3)
        return read_triples(TextSource(_CsvStream(table, names), path), quoted, encoder.fields)


def array_file(path: Path) -> Triples:
    """The triples (n, 3) of a .npy file of integers, mapped where they are int32 already."""
    return np.ascontiguousarray(open_ids(path), np.int32).view(np.ndarray)


def open_ids(path: Path) -> NDArray[Any]:
    """The ids (n, 3) of a .npy file, of any type of integers, checked and mapped."""
    try:
        array = open_array(path)
    except (ValueError, OSError) as error:
        raise InputError(f"{path} cannot be read as a .npy array: {_reason(error)}.") from error
    _check_ids(array, str(path))
    return array


def archive_file(path: Path) -> dict[str, Triples]:
    """The triples (n, 3) of each array of a .npz file, by name."""
    try:
        with path.open("rb") as file:
            if file.read(2) != b"PK":
                raise InputError(f"{path} cannot be read as a .npz archive: its first bytes are not those of one.")
            file.seek(0)
            with np.load(file, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
    except InputError:
        raise
    except Exception as error:  # whatever zipfile, zlib and numpy's header reader make of damaged bytes
        raise InputError(f"{path} cannot be read as a .npz archive: {_reason(error)}.") from error
    if len(arrays) == 1:
        arrays = {"train": next(iter(arrays.values()))}
    if "train" not in arrays:
        found = ", ".join(sorted(arrays)) or "nothing"
        raise InputError(f"{path} holds {found}: arrays train, valid and test are needed, or a single one.")
    splits: dict[str, Triples] = {}
    for name in SPLITS:
        if name in arrays:
            _check_ids(arrays[name], f"{name} in {path}")
            splits[name] = np.ascontiguousarray(arrays.pop(name), np.int32)
    return splits


def archive_sizes(path: Path) -> list[tuple[int, int]]:
    """(bytes, rows) of each array of a .npz file, by its heads; none of one that is damaged."""
    try:
        with zipfile.ZipFile(path) as archive:
            return [(entry.file_size, _rows(archive, entry)) for entry in archive.infolist()]
    except Exception:  # what is wrong with it is said when it is read
        return []


def _rows(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> int:
    with archive.open(entry) as file:
        old = np.lib.format.read_magic(file) == (1, 0)
        shape, _, _ = (np.lib.format.read_array_header_1_0 if old else np.lib.format.read_array_header_2_0)(file)
    return shape[0] if shape else 0


def parquet_rows(path: Path) -> int:
    """How many rows a Parquet file says it has; 0 if it is damaged."""
    import polars as pl

    try:
        return int(pl.scan_parquet(path).select(pl.len()).collect().item())
    except (pl.exceptions.PolarsError, OSError, ValueError):
        return 0


def _check_ids(array: NDArray[Any], what: str) -> None:
    """InputError if an array is not one of ids (n, 3), 0 to MAX_ID."""
    if not isinstance(array, np.ndarray) or array.ndim != 2 or array.shape[1] != 3:
        shape = getattr(array, "shape", None)
        raise InputError(f"{what} has the shape {shape}, and (n, 3) is needed: head, relation, tail.")
    if array.dtype.kind not in "iu":
        raise InputError(f"{what} holds {array.dtype}, and integers are needed: the ids of head, relation, tail.")
    for start, block in in_blocks(array, _ROWS):
        if block.min() < 0 or block.max() > MAX_ID:
            row = int(np.argmax(((block < 0) | (block > MAX_ID)).any(axis=1)))
            value = next(int(v) for v in block[row] if not 0 <= int(v) <= MAX_ID)
            raise InputError(f"Row {start + row:,} of {what} has the id {value}, and 0 to {MAX_ID:,} are possible.")


def _reason(error: BaseException) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    if "allow_pickle" in text or "Python objects" in text:
        return "it holds Python objects, which are not loaded"
    return text.splitlines()[0].rstrip(".")


def _parquet(path: Path, file: Any) -> Any:
    import polars as pl

    try:
        return pl.read_parquet(file)
    except (pl.exceptions.PolarsError, OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as Parquet: {_reason(error)}.") from error


def _three_columns(path: Path, columns: list[str], options: SourceOptions) -> list[str]:
    places, _ = parse_columns(options.columns)
    if places is None:
        places = places_by_name(columns) or ((0, 1, 2) if len(columns) == 3 else None)
    found = ", ".join(columns) or "none"
    if places is None:
        raise InputError(
            f"{path} has the columns {found}: name three of them head, relation and tail, or say which to "
            f"take with columns (--columns)."
        )
    if max(places) >= len(columns):
        raise InputError(f"{path} has {len(columns)} columns ({found}), and columns asks for number {max(places)}.")
    return [columns[p] for p in places]


def _check_columns(path: Path, table: Any, names: list[str]) -> None:
    import polars as pl

    for name in names:
        column = table[name]
        if not (column.dtype in (pl.String, pl.Categorical) or column.dtype.is_integer()):
            raise InputError(f"{path}: the column {name} holds {column.dtype}, and strings or integers are needed.")
        if column.null_count():
            row = column.is_null().arg_max()
            raise InputError(f"{path}, row {row + 1:,}: the column {name} is empty, and a name is needed.")


class _CsvStream:
    """The columns of a table as quoted text, written some rows at a time."""

    def __init__(self, table: Any, names: list[str]) -> None:
        self._pieces = self._write(table.select(names))
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
