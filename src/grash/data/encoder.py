"""Names become ids: one encoder per graph, fed with its files in turn (train first).

Comes from text.py (fields) and rdf.py (strings); its vocabularies and arrays go to prepare.py.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from grash.data.dataset import MAX_ID
from grash.data.interning import Interner, Whole
from grash.data.readers.options import SourceOptions
from grash.data.readers.streams import open_source
from grash.data.readers.text import Dialect, Fields, TextSource, guess_dialect
from grash.errors import InputError

Triples = NDArray[np.int32]


class Encoder:
    """Two interners. Ids go by first appearance, heads before tails within a line."""

    def __init__(self) -> None:
        self.entities, self.relations = Interner(), Interner()

    def text_file(self, path: Path, options: SourceOptions) -> Triples:
        """The triples (n, 3) of a text file of names."""
        with open_source(path) as stream:
            return self.text_stream(stream, path, options)

    def text_stream(self, stream: Any, path: Path, options: SourceOptions) -> Triples:
        """The triples (n, 3) of anything with read(n) that gives text; `path` is its name in errors."""
        source = TextSource(stream, path)
        return read_triples(source, triple_dialect(source, options), self.fields)

    def fields(self, fields: Fields) -> Triples:
        """The ids (n, 3) of fields in two groups: head with tail, and relation."""
        ids = np.empty((fields.n_rows, 3), np.int32)
        ids[:, ::2] = self.entities.add_fields(fields.groups[0]).reshape(-1, 2)
        ids[:, 1] = self.relations.add_fields(fields.groups[1])
        return ids

    def names(self, heads: Sequence[str], relations: Sequence[str], tails: Sequence[str]) -> Triples:
        """The ids (n, 3) of three lists of names."""
        ends = [name for pair in zip(heads, tails) for name in pair]
        ids = np.empty((len(heads), 3), np.int32)
        ids[:, ::2] = self.entities.add(ends).reshape(-1, 2)
        ids[:, 1] = self.relations.add(relations)
        return ids


def triple_dialect(source: TextSource, options: SourceOptions) -> Dialect:
    return guess_dialect(
        source.sample,
        source.path,
        separator=options.separator,
        header=options.header,
        columns=options.columns,
    )


def read_triples(
    source: TextSource, dialect: Dialect, encode: Callable[[Fields], Triples], *, skip_lines: int = 0
) -> Triples:
    """The triples (n, 3) of a text source, each block of fields (head with tail; relation) turned into ids."""
    with closing(triple_fields(source, dialect, skip_lines=skip_lines + dialect.header)) as blocks:
        return stack(map(encode, blocks))


def triple_fields(source: TextSource, dialect: Dialect, *, skip_lines: int) -> Generator[Fields, None, None]:
    """The fields of a text source in two groups: head with tail, and relation. To be closed."""
    head, relation, tail = dialect.columns
    return source.fields(dialect, wanted=((head, tail), (relation,)), skip_lines=skip_lines)


def stack(blocks: Iterable[Triples]) -> Triples:
    """Blocks (n_i, 3) as one array, each block freed once it is copied."""
    waiting = list(blocks)
    waiting.reverse()
    if len(waiting) == 1:
        return waiting[0]
    whole = np.empty((sum(map(len, waiting)), 3), np.int32)
    at = 0
    while waiting:
        block = waiting.pop()
        whole[at : at + len(block)] = block
        at += len(block)
    return whole


def numbers(fields: Fields, group: int, what: str) -> NDArray[np.int64]:
    """The non-negative integers (rows, columns) of a group; InputError with the line of one that is none."""
    hashed = fields.groups[group]
    values = np.empty((fields.n_rows, len(hashed.starts) // max(1, fields.n_rows)), np.int64)
    bad = _parse_numbers(hashed.buffer, hashed.starts, hashed.lengths, values.reshape(-1))
    if bad >= 0:
        row, column = divmod(bad, values.shape[1])
        raise InputError(
            f"{fields.place(row)}: {fields.text(row, group, column)!r} stands where the {what} should be, "
            f"and a number from 0 to {MAX_ID:,} is needed."
        )
    return values


@njit(cache=True, nogil=True)
def _parse_numbers(
    buffer: NDArray[np.uint8], starts: NDArray[Any], lengths: NDArray[Any], values: NDArray[np.int64]
) -> Whole:
    """Fills values; returns the first row that is no number, or -1."""
    for row in range(starts.size):
        value = np.int64(0)
        if lengths[row] > 10 or lengths[row] < 1:
            return row
        for at in range(starts[row], starts[row] + lengths[row]):
            digit = np.int64(buffer[at]) - 48
            if digit < 0 or digit > 9:
                return row
            value = value * 10 + digit
        if value > MAX_ID:
            return row
        values[row] = value
    return -1
