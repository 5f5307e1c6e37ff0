"""RDF files become triples: N-Triples, N-Quads, Turtle, RDF/XML, parsed as a stream by pyoxigraph.

Names are IRIs without their angle brackets, blank nodes as _:label, literals (where they are kept) in their
N-Triples form. Graph names are left out.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, cast

from grash.data.encoder import Encoder, Triples, stack
from grash.data.readers.options import SourceOptions
from grash.data.readers.streams import SourceStream, open_source
from grash.errors import InputError

RDF_FORMATS = {"ntriples": "N_TRIPLES", "nquads": "N_QUADS", "turtle": "TURTLE", "rdfxml": "RDF_XML"}
_TITLES = {"ntriples": "N-Triples", "nquads": "N-Quads", "turtle": "Turtle", "rdfxml": "RDF/XML"}

_BLOCK = 100_000
_GENERATED = re.compile(r"_:[0-9a-f]{24,32}")  # what the parser calls a node that has no label
_log = logging.getLogger(__name__)


def rdf_file(path: Path, rdf_format: str, encoder: Encoder, options: SourceOptions, notes: Counter[str]) -> Triples:
    """The triples (n, 3) of an RDF file; notes counts the literals (and nested triples) that were skipped."""
    with open_source(path) as stream:
        return stack(encoder.names(*zip(*block)) for block in rdf_blocks(stream, rdf_format, options, notes))


def rdf_blocks(
    stream: SourceStream, rdf_format: str, options: SourceOptions, notes: Counter[str]
) -> Iterator[list[tuple[str, str, str]]]:
    """The triples of an RDF stream by name, in blocks."""
    names = _names(_parse(stream, rdf_format), rdf_format, options.literals == "keep", notes)
    while block := list(islice(names, _BLOCK)):
        yield block


def _parse(stream: SourceStream, rdf_format: str) -> Iterator[Any]:
    """The quads of a stream; a syntax error, with its line, becomes an InputError."""
    from pyoxigraph import RdfFormat, parse

    title = _TITLES[rdf_format]
    try:
        # lenient: real dumps hold IRIs with characters that the standard forbids, and names they are anyway
        yield from parse(cast(Any, stream), format=getattr(RdfFormat, RDF_FORMATS[rdf_format]), lenient=True)
    except SyntaxError as error:
        place = f"{stream.path}, line {error.lineno:,}" if error.lineno else f"{stream.path}"
        raise InputError(f"{place}: this is not {title} ({error.msg}).") from error
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
