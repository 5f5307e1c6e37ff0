"""How the text files of a source are understood, said before they are read, so that a wrong guess can be seen.

Comes from layouts.py (which files there are); what it returns goes into the provenance, whichever way a source is read.
"""

from __future__ import annotations

import logging
from typing import Any

from grash.data.dataset import SPLITS
from grash.data.dialect import header_in_doubt, separator_name
from grash.data.encode import triple_dialect
from grash.data.layouts import Layout
from grash.data.options import SourceOptions
from grash.data.streams import open_source
from grash.data.text import TextSource

_log = logging.getLogger(__name__)


def say_understood(layout: Layout, options: SourceOptions) -> dict[str, Any]:
    """{"read_as": by split, separator, header and columns} of text files of names; nothing of other sources.

    Says so for all files that are alike in one line, and warns of a first line that may be a header. Takes the first
    bytes of each file.
    """
    if layout.kind not in ("file", "splits"):
        return {}
    read_as = {s: _look_at(layout, s, options) for s in SPLITS if layout.formats.get(s) == "text"}
    lines: dict[str, list[str]] = {}
    for split, found in read_as.items():
        lines.setdefault(in_words(found), []).append(layout.files[split].name)
    for words, names in lines.items():
        _log.info("%s: %s.", ", ".join(names), words)
    return {"read_as": read_as} if read_as else {}


def in_words(read_as: dict[str, Any]) -> str:
    """A file's entry of read_as: separated by tabs, no header, columns 0, 1, 2 (head, relation, tail)."""
    header = "a header" if read_as["header"] else "no header"
    places = ", ".join(map(str, read_as["columns"]))
    return f"separated by {read_as['separator']}, {header}, columns {places} (head, relation, tail)"


def _look_at(layout: Layout, split: str, options: SourceOptions) -> dict[str, Any]:
    path = layout.files[split]
    with open_source(path) as stream:
        source = TextSource(stream, path)
    dialect = triple_dialect(source, options)
    doubtful = header_in_doubt(source.sample, dialect) if options.header is None else None
    if doubtful is not None:
        _log.warning(
            "%s: the first line (%s) looks like a header, and is read as a triple: say whether it is one with header "
            "(--header or --no-header).", path, ", ".join(doubtful),
        )  # fmt: skip
    return {
        "separator": separator_name(dialect.separator),
        "header": dialect.header,
        "columns": list(dialect.columns),
    }
