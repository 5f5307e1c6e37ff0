"""Read RDF files (N-Triples, N-Quads, Turtle, RDF/XML), parsed as a stream by pyoxigraph.

Names are IRIs without angle brackets, blank nodes as _:label, and literals, if they are kept, in their N-Triples form.
Graph names are ignored.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, cast

from grash.data.arrays import Triples
from grash.data.readers.source import SourceOptions, SourceStream, open_source
from grash.data.readers.text import concatenate_blocks
from grash.data.vocabulary import Encoder
from grash.errors import InputError

RDF_FORMATS = {"ntriples": "N_TRIPLES", "nquads": "N_QUADS", "turtle": "TURTLE", "rdfxml": "RDF_XML"}
_TITLES = {"ntriples": "N-Triples", "nquads": "N-Quads", "turtle": "Turtle", "rdfxml": "RDF/XML"}

_BLOCK = 100_000
_GENERATED = re.compile(r"_:[0-9a-f]{24,32}")  # the parser's name of a node without a label


def read_rdf_file(
    path: Path, rdf_format: str, encoder: Encoder, options: SourceOptions, notes: Counter[str]
) -> Triples:
    """Return the triples (n, 3) of an RDF file; `notes` counts the skipped literals and nested triples."""
    with open_source(path) as stream:
        blocks = rdf_blocks(stream, rdf_format, options, notes)
        return concatenate_blocks(encoder.encode(*zip(*block)) for block in blocks)


def rdf_blocks(
    stream: SourceStream, rdf_format: str, options: SourceOptions, notes: Counter[str]
) -> Iterator[list[tuple[str, str, str]]]:
    """Yield the triples of an RDF stream as names, in blocks."""
    names = _names(_parse(stream, rdf_format), rdf_format, options.literals == "keep", notes)
    while block := list(islice(names, _BLOCK)):
        yield block


def _parse(stream: SourceStream, rdf_format: str) -> Iterator[Any]:
    """Yield the quads of a stream. A syntax error becomes an InputError with its line."""
    from pyoxigraph import RdfFormat, parse

    title = _TITLES[rdf_format]
    try:
        # lenient: real dumps have IRIs with forbidden characters, which still work as names
        yield from parse(cast(Any, stream), format=getattr(RdfFormat, RDF_FORMATS[rdf_format]), lenient=True)
    except SyntaxError as error:
        location = f"{stream.path}, line {error.lineno:,}" if error.lineno else f"{stream.path}"
        raise InputError(f"{location}: this is not {title} ({error.msg}).") from error
    except (OSError, ValueError) as error:
        if stream.error is not None:
            raise stream.error from error
        raise InputError(f"{stream.path} cannot be read as {title} ({error}).") from error


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
            tail = target.value
        elif isinstance(target, BlankNode):
            tail = blank(target)
        elif isinstance(target, Literal) and keep_literals:
            tail = str(target)
        else:
            notes["literals_skipped" if isinstance(target, Literal) else "nested_triples_skipped"] += 1
            continue
        head = subject.value if isinstance(subject, NamedNode) else blank(subject)
        yield head or "<>", quad.predicate.value or "<>", tail or "<>"
