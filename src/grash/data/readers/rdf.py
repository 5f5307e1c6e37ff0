"""Read RDF files (N-Triples, N-Quads, Turtle, RDF/XML), parsed as a stream by pyoxigraph.

Names are IRIs without angle brackets, blank nodes as _:label, and literals, if they are kept, in their N-Triples form.
Graph names are ignored.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, cast

from grash.data.arrays import Triples
from grash.data.readers.source import SourceOptions, SourceStream, open_source
from grash.data.readers.text import MAX_LINE, concatenate_blocks
from grash.data.vocabulary import Encoder
from grash.errors import InputError

RDF_FORMATS = {"ntriples": "N_TRIPLES", "nquads": "N_QUADS", "turtle": "TURTLE", "rdfxml": "RDF_XML"}
_TITLES = {"ntriples": "N-Triples", "nquads": "N-Quads", "turtle": "Turtle", "rdfxml": "RDF/XML"}

_BLOCK = 100_000
_GENERATED = re.compile(r"_:[0-9a-f]{24,32}")  # the parser's name of a node without a label


def read_rdf_file(
    path: Path,
    rdf_format: str,
    encoder: Encoder,
    options: SourceOptions,
    notes: Counter[str],
    prefixes: dict[str, str],
) -> Triples:
    """Return the triples (n, 3) of an RDF file.

    `notes` counts the skipped literals and nested triples; `prefixes` receives those that the file declares.
    """
    with open_source(path) as stream:
        blocks = rdf_blocks(stream, rdf_format, options, notes, prefixes)
        return concatenate_blocks(encoder.encode(*zip(*block)) for block in blocks)


def rdf_blocks(
    stream: SourceStream,
    rdf_format: str,
    options: SourceOptions,
    notes: Counter[str],
    prefixes: dict[str, str] | None = None,
) -> Iterator[list[tuple[str, str, str]]]:
    """Yield the triples of an RDF stream as names, in blocks; `prefixes` receives those that it declares."""
    names = _names(_parse(stream, rdf_format, prefixes), rdf_format, options.literals == "keep", notes)
    while block := list(islice(names, _BLOCK)):
        yield block


def _parse(stream: SourceStream, rdf_format: str, prefixes: dict[str, str] | None) -> Iterator[Any]:
    """Yield the quads of a stream. A syntax error becomes an InputError with its line."""
    from pyoxigraph import RdfFormat, parse

    title = _TITLES[rdf_format]
    try:
        source = cast(Any, _TaggedStream(stream) if rdf_format == "rdfxml" else stream)
        # lenient: real dumps have IRIs with forbidden characters, which still work as names
        parser = parse(source, format=getattr(RdfFormat, RDF_FORMATS[rdf_format]), lenient=True)
        yield from parser
        if prefixes is not None:
            prefixes.update(parser.prefixes)
    except SyntaxError as error:
        if stream.error is not None:
            raise stream.error from error
        location = f"{stream.path}, line {error.lineno:,}" if error.lineno else f"{stream.path}"
        raise InputError(f"{location}: this is not {title} ({_short(error.msg)}).") from error
    except (OSError, ValueError) as error:
        if stream.error is not None:
            raise stream.error from error
        raise InputError(f"{stream.path} cannot be read as {title} ({_short(error)}).") from error


def _short(reason: object) -> str:
    """Return a reason without the content of a file that is no text."""
    return "".join(c if c.isprintable() else "�" for c in str(reason)[:200])


class _TaggedStream(io.RawIOBase):
    """A stream of XML that fails where no tag ends for too long, since the parser keeps all text between tags."""

    def __init__(self, stream: SourceStream) -> None:
        self._stream, self._n_bytes = stream, 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        data = self._stream.read(size)
        at = data.rfind(b">")
        self._n_bytes = self._n_bytes + len(data) if at < 0 else len(data) - at
        if self._n_bytes > MAX_LINE:
            reason = f"no tag ends within {MAX_LINE >> 20} MiB. This is not RDF/XML"
            self._stream.error = InputError(f"{self._stream.path}: {reason}.")
            raise self._stream.error
        return data


def _names(
    quads: Iterator[Any], rdf_format: str, keep_literals: bool, notes: Counter[str]
) -> Iterator[tuple[str, str, str]]:
    from pyoxigraph import BlankNode, Literal, NamedNode

    anonymous: dict[str, str] = {}

    def blank(node: Any) -> str:
        label = str(node)
        if rdf_format in ("turtle", "rdfxml") and _GENERATED.fullmatch(label):
            label = anonymous.setdefault(label, f"_:anonymous{len(anonymous) + 1}")
        return label

    for quad in quads:
        subject, target = quad.subject, quad.object
        if isinstance(target, NamedNode):
            tail = _iri(target.value)
        elif isinstance(target, BlankNode):
            tail = blank(target)
        elif isinstance(target, Literal) and keep_literals:
            tail = str(target)
        else:
            notes["literals_skipped" if isinstance(target, Literal) else "nested_triples_skipped"] += 1
            continue
        head = _iri(subject.value) if isinstance(subject, NamedNode) else blank(subject)
        yield head, _iri(quad.predicate.value), tail


def _iri(value: str) -> str:
    """Return the name of an IRI; one that looks like another kind of name, or is empty, keeps its brackets."""
    return value if value and not value.startswith(("_:", '"')) else f"<{value}>"
