"""The public datasets that grash knows by name: where they are, how large, under which license, by whom.

`grash datasets` lists them and download.py fetches them. The entries are in bundled/catalog.json; a number or checksum
that was not verified is missing there. Counts are those of the published files, before duplicates are dropped.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import ConfigDict, TypeAdapter

from grash.errors import UnknownName

CATALOG_FILE = Path(__file__).parent / "bundled" / "catalog.json"


@dataclass(frozen=True)
class RemoteFile:
    """A file to download."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    url: str
    name: str  # its name in the download folder
    size: int | None = None  # bytes
    sha256: str | None = None
    md5: str | None = None


@dataclass(frozen=True)
class CatalogEntry:
    """A public dataset."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    name: str
    title: str
    files: tuple[RemoteFile, ...]
    form: Literal["archive", "files"]  # archives are unpacked
    citation: str
    entities: int | None = None
    relations: int | None = None
    train: int | None = None
    valid: int | None = None
    test: int | None = None
    triples: int | None = None  # of all splits, if their sizes are not all known
    members: dict[str, str] = field(default_factory=dict)  # path in the archive → file name; empty: all members
    columns: str = "head,relation,tail"  # order of the columns, or their names in the header
    license: str | None = None
    notes: str = ""
    instructions: str | None = None  # what to do if grash cannot download it

    @property
    def n_triples(self) -> int | None:
        """Number of triples in all splits."""
        if self.train is None or self.valid is None or self.test is None:
            return self.triples
        return self.train + self.valid + self.test

    @property
    def size(self) -> int | None:
        """Bytes to download, None if the size of a file is unknown."""
        sizes = [file.size for file in self.files if file.size is not None]
        return sum(sizes) if sizes and len(sizes) == len(self.files) else None


_ENTRIES = TypeAdapter(tuple[CatalogEntry, ...]).validate_json(CATALOG_FILE.read_bytes())
CATALOG = {entry.name: entry for entry in _ENTRIES}


def find_entry(name: str) -> CatalogEntry:
    """Return the entry of that name in any case. Raises UnknownName with suggestions."""
    wanted = name.strip().lower().replace("_", "-")
    if wanted not in CATALOG:
        close = get_close_matches(wanted, CATALOG, n=3, cutoff=0.5)
        raise UnknownName("public dataset", name, close, hint="`grash datasets` lists them all.")
    return CATALOG[wanted]
