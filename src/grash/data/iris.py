"""Names as IRIs: a line of N-Triples for any triple, and short forms of IRIs.

In N-Triples, a name that is no IRI becomes urn:entity:NAME or urn:relation:NAME, and `find_name` finds it again. Short
forms are prefixed names as dbo:genre, and the part after the last # or / if only one name ends in it. Prefixes are
those of the source (Turtle and RDF/XML declare them), and some that every RDF user knows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import quote, unquote

from grash.data.dataset import Dataset
from grash.data.vocabulary import Vocabulary
from grash.errors import UnknownName

COMMON = {
    "rdf": "http://www.w3.org/1999/02/22-rdf-syntax-ns#",
    "rdfs": "http://www.w3.org/2000/01/rdf-schema#",
    "owl": "http://www.w3.org/2002/07/owl#",
    "skos": "http://www.w3.org/2004/02/skos/core#",
    "foaf": "http://xmlns.com/foaf/0.1/",
    "schema": "http://schema.org/",
    "dct": "http://purl.org/dc/terms/",
    "dbr": "http://dbpedia.org/resource/",
    "dbo": "http://dbpedia.org/ontology/",
    "wd": "http://www.wikidata.org/entity/",
    "wdt": "http://www.wikidata.org/prop/direct/",
}
_LOCAL = re.compile(r"[\w][\w.-]*(?<!\.)")  # what may follow a prefix without escapes
_MOST_ENDINGS = 100  # names with the same end that are looked at and counted
_IRI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[^\x00-\x20<>\"{}|^`\\\ud800-\udfff]+\Z")
_BLANK = re.compile(r"_:[A-Za-z0-9_][A-Za-z0-9_.-]*(?<!\.)\Z")
_LITERAL = re.compile(r'"(?:[^"\\\n\r]|\\.)*"(?:@[A-Za-z]+(?:-[A-Za-z0-9]+)*|\^\^<[^\x00-\x20<>"{}|^`\\]*>)?\Z')


def ntriples_line(head: str, relation: str, tail: str) -> str:
    """Return a triple as a line of N-Triples. A tail that is a literal is written as it is."""
    value = tail if _LITERAL.match(tail) else as_rdf(tail, "entity")
    return f"{as_rdf(head, 'entity')} {as_rdf(relation, 'relation')} {value} .\n"


def as_rdf(name: str, kind: str) -> str:
    """Return a name as an N-Triples term: an IRI in angle brackets, a blank node, or urn:KIND:NAME, percent-encoded."""
    if kind == "entity" and _BLANK.match(name):  # a predicate is always an IRI
        return name
    return f"<{name}>" if _IRI.match(name) else f"<urn:{kind}:{quote(name, safe='', errors='surrogatepass')}>"


def find_name(name: str, vocabulary: Vocabulary) -> int | None:
    """Return the id of a name, or of the name that `as_rdf` wrote as this IRI; None if there is none."""
    found = vocabulary.find(name)
    if found is not None or not name.startswith(start := f"urn:{vocabulary.kind}:"):
        return found
    try:
        return vocabulary.find(unquote(name.removeprefix(start), errors="surrogatepass"))
    except UnicodeError:  # %FF: not written by us
        return None


def prefixes_of(dataset: Dataset) -> dict[str, str]:
    """Return prefix → namespace; what the source declares takes precedence."""
    declared = dataset.provenance.get("prefixes", {})
    return {**COMMON, **(declared if isinstance(declared, dict) else {})}


def shorten(name: str, prefixes: Mapping[str, str]) -> str:
    """Return a prefixed name for an IRI, e.g. dbo:genre, or the name as it is."""
    if "://" not in name:
        return name
    fitting = [(len(space), prefix) for prefix, space in prefixes.items() if space and name.startswith(space)]
    length, prefix = max(fitting, default=(0, ""))
    return f"{prefix}:{name[length:]}" if length and _LOCAL.fullmatch(name[length:]) else name


def find_id(name: str, vocabulary: Vocabulary, prefixes: Mapping[str, str]) -> int:
    """Return the id of a name, or of the IRI that a short form means. Raises UnknownName with suggestions."""
    found = find_short(name, vocabulary, prefixes)
    return vocabulary.id(name) if found is None else found


def find_short(name: str, vocabulary: Vocabulary, prefixes: Mapping[str, str]) -> int | None:
    """Return the id of a name, or of the IRI that <IRI>, prefix:local or a unique ending means, or None.

    Raises UnknownName if several IRIs have that ending, with some of them.
    """
    found = find_given(name, vocabulary, prefixes)
    if found is not None:
        return found
    endings = vocabulary.iris_ending_in(name, _MOST_ENDINGS)
    if len(endings) > 1:
        n = f"{len(endings)} or more" if len(endings) == _MOST_ENDINGS else len(endings)
        hint = f"{n} names end in it: give one of them, as an IRI or with a prefix."
        raise UnknownName(vocabulary.kind, name, [shorten(iri, prefixes) for iri in endings[:3]], hint=hint)
    return vocabulary.id(endings[0]) if endings else None


def find_given(name: str, vocabulary: Vocabulary, prefixes: Mapping[str, str]) -> int | None:
    """Return the id of a name, <IRI> or prefix:local, or None: what takes no look at the other names."""
    found = vocabulary.find(name)
    if found is None and name.startswith("<") and name.endswith(">"):
        found = vocabulary.find(name[1:-1])
    prefix, colon, local = name.partition(":")
    if found is None and colon and prefix in prefixes:
        found = vocabulary.find(prefixes[prefix] + local)
    return found
