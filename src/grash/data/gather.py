"""A source larger than memory is read once: ids go to the spill as they are given, names whenever they are many.

Comes from text.py and rdf.py, goes to spill.py. Names are numbered by first appearance, as in memory, as long as they
fit; then a generation ends, and the numbering begins anew with the next line. unite.py puts the generations together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path

from grash.data.dataset import SPLITS
from grash.data.encode import Encoder, Triples, triple_dialect, triple_fields
from grash.data.intern import Interner
from grash.data.layouts import Layout
from grash.data.options import SourceOptions
from grash.data.rdf import RDF_FORMATS, rdf_blocks
from grash.data.spill import STEMS, Mark, Spill
from grash.data.streams import SourceStream, open_source
from grash.data.text import TextSource

Watch = Callable[[str, float, int], None]  # told what is being done, the share that is done, triples so far
Piece = tuple[Callable[[Encoder], Triples], int, int]  # what gives the ids; then next_byte, next_line

ROWS = 1 << 23  # between two marks: some seconds of work
_GROWTH = 3  # a table that is enlarged is there twice, the new one twice as large


def gather(layout: Layout, options: SourceOptions, spill: Spill, room: int, watch: Watch) -> None:
    """Reads into the spill what it does not hold yet of a source; names take up to `room` bytes meanwhile."""
    _Gathering(layout, options, spill, room, watch).run()


class _Gathering:
    def __init__(self, layout: Layout, options: SourceOptions, spill: Spill, room: int, watch: Watch) -> None:
        self.layout, self.options, self.spill, self.room, self.watch = layout, options, spill, room, watch
        sizes: dict[str, int] = {split: layout.files[split].stat().st_size for split in SPLITS if split in layout.files}
        self.n_bytes = max(1, sum(sizes.values()))
        self.before = {split: sum(list(sizes.values())[:i]) for i, split in enumerate(sizes)}

    def run(self) -> None:
        splits = list(self.before)
        if self.spill.mark.split is not None:
            self._begin_generation()
        while (split := self.spill.mark.split) is not None:
            notes = Counter(self.spill.mark.notes)
            with open_source(self.layout.files[split]) as stream:
                self._read(split, stream, notes)
            following = splits[splits.index(split) + 1 :]
            self._commit(split=following[0] if following else None, next_byte=0, next_line=1, notes=dict(notes))

    def _read(self, split: str, stream: SourceStream, notes: Counter[str]) -> None:
        since = 0
        with closing(self._pieces(split, stream, notes)) as pieces:
            for encode, byte, line in pieces:
                ids = encode(self.encoder)
                self.spill.add_rows(split, ids)
                self.rows[split] += len(ids)
                since += len(ids)
                full = _GROWTH * sum(interner.n_bytes for interner in self._interners()) > self.room
                if full or since >= ROWS:
                    self._commit(next_byte=byte, next_line=line)
                    share = (self.before[split] + stream.place) / self.n_bytes
                    self.watch("reading", min(1.0, share), sum(self.rows.values()))
                    since = 0
                if full:
                    self._begin_generation()

    def _pieces(self, split: str, stream: SourceStream, notes: Counter[str]) -> Generator[Piece, None, None]:
        """What comes after the mark."""
        mark, path, file_format = self.spill.mark, self.layout.files[split], self.layout.formats[split]
        if file_format in RDF_FORMATS:
            return _rdf_pieces(stream, file_format, self.options, notes, mark.next_byte)
        return _text_pieces(stream, path, self.options, mark)

    def _begin_generation(self) -> None:
        self.encoder = Encoder()
        self.rows = dict(self.spill.mark.rows)
        self.written = dict.fromkeys(STEMS, 0)
        self.spill.begin_generation()

    def _commit(self, **where: object) -> None:
        mark = self.spill.mark
        names, name_bytes = dict(mark.names), dict(mark.name_bytes)
        for stem, interner in zip(STEMS, self._interners()):
            text, lengths = interner.since(self.written[stem])
            self.spill.add_names(stem, text, lengths)
            self.written[stem] += len(lengths)
            names[stem] += len(lengths)
            name_bytes[stem] += len(text)
        changed = {"rows": dict(self.rows), "names": names, "name_bytes": name_bytes}
        self.spill.commit(replace(mark, **changed, **where))  # type: ignore[arg-type]

    def _interners(self) -> tuple[Interner, Interner]:
        return self.encoder.entities, self.encoder.relations


def _text_pieces(stream: SourceStream, path: Path, options: SourceOptions, mark: Mark) -> Generator[Piece, None, None]:
    source = TextSource(stream, path)
    dialect = triple_dialect(source, options)
    skip_lines = int(dialect.header) if mark.next_byte == 0 else 0
    source.go_on_at(mark.next_byte, mark.next_line)
    with closing(triple_fields(source, dialect, skip_lines=skip_lines)) as blocks:
        for fields in blocks:
            yield (lambda encoder, fields=fields: encoder.fields(fields)), fields.next_byte, fields.next_line  # type: ignore[misc]


def _rdf_pieces(
    stream: SourceStream, file_format: str, options: SourceOptions, notes: Counter[str], n_read: int
) -> Generator[Piece, None, None]:
    """RDF has no place to begin from but the start: blocks that have been read are parsed again and passed over."""
    blocks = rdf_blocks(stream, file_format, options, notes)
    for number, block in enumerate(islice(blocks, n_read, None), n_read + 1):
        yield (lambda encoder, block=block: encoder.names(*zip(*block))), number, 1  # type: ignore[misc]
