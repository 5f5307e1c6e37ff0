"""Names that are almost the same: other ids, and most likely meant as one. Used by describe.py; changes no name."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable

MOST = 1_000_000  # names that are looked at: two or three seconds
_SHOWN = 4


def variant_warnings(kind: str, names: Iterable[str]) -> list[str]:
    """A sentence for each way in which some of the names differ only; `kind` is the word for several of them."""
    found: dict[str, list[str]] = {}
    for group in _alike(names):
        found.setdefault(_difference(group), []).extend(group)
    warnings = []
    for difference, alike in found.items():
        shown = ", ".join(quoted(name) for name in alike[:_SHOWN]) + (", …" if len(alike) > _SHOWN else ".")
        warnings.append(f"{len(alike):,} {kind} differ only in {difference}: {shown}")
    return warnings


def quoted(name: str) -> str:
    """The name in quotes, with whatever is not NFC written as escapes, so that both can be told apart."""
    return repr(name) if unicodedata.is_normalized("NFC", name) else ascii(name)


def _alike(names: Iterable[str]) -> list[list[str]]:
    """Groups of different names that are the same without surrounding spaces, in one normal form and case."""
    first: dict[str, str] = {}
    groups: dict[str, dict[str, None]] = {}
    for name in names:
        key = _composed(_composed(name.strip()).casefold())
        other = first.setdefault(key, name)
        if other != name:
            groups.setdefault(key, {other: None})[name] = None
    return [list(group) for group in groups.values()]


def _difference(group: list[str]) -> str:
    """What makes a difference in a group, in words."""
    ways: dict[str, Callable[[str], str]] = {
        "surrounding spaces": str.strip,
        "Unicode normal form": _composed,
        "letter case": str.casefold,
    }
    helping = [words for words, way in ways.items() if len({way(name) for name in group}) < len(group)]
    *most, last = helping or list(ways)  # none helps alone where they only differ in several ways at once
    return f"{', '.join(most)} {'and' if helping else 'or'} {last}" if most else last


def _composed(name: str) -> str:
    return name if name.isascii() else unicodedata.normalize("NFC", name)
