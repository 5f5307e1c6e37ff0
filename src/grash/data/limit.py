"""How much memory preparing a source may take, and how much it would take to read it at once. Used by prepare.py."""

from __future__ import annotations

import os
import re
from pathlib import Path

from grash.data.layouts import Layout
from grash.data.streams import open_source
from grash.errors import ConfigError, InputError

DEFAULT_SHARE = 0.5  # of the machine's memory, or of what a container may have
LEAST = 1 << 30
_PROGRAM = 3 << 28  # of a limit, for Python, its libraries and the blocks of text on their way
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?")

_PER_LINE = 2 * 12 + 14 + 2 * 60  # ids twice, the table of duplicates, and two names that no other line has
_PER_ROW = 2 * 12 + 14
_UNPACKED = 8  # times as large as it is, a compressed file may be
_SAMPLE = 1 << 16


def memory_limit(given: str | int | None) -> int:
    """Bytes: of a number, of a text as 8G or 500M, or half of the machine's memory if nothing is given."""
    if given is None:
        return max(LEAST, int(DEFAULT_SHARE * machine_bytes()))
    found = _SIZE.fullmatch(str(given).strip().lower())
    if found is None:
        raise ConfigError(f"memory={given!r} is no amount of memory: give a number of bytes, or 8G, 500M and the like.")
    limit = int(float(found[1]) * _UNITS[found[2]])
    if limit < LEAST:
        raise ConfigError(f"memory={given!r} is too little to work in: give 1G or more.")
    return limit


def room_within(limit: int) -> int:
    """What a limit leaves for names and triples."""
    return limit - _PROGRAM


def needed_at_once(layout: Layout) -> int:
    """Bytes that reading a source at once may take: as many names as its lines have room for. 0 where that is the only
    way to read it."""
    if layout.kind not in ("file", "splits", "arrays"):
        return 0
    return sum(_needed(path, layout.formats[role]) for role, path in layout.files.items() if role in layout.formats)


def machine_bytes(root: Path = Path("/sys/fs/cgroup")) -> int:
    """The memory of the machine, or of the container (cgroup 2, then 1) if that has less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            return min(total, int((root / name).read_text()))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return total


def _needed(path: Path, file_format: str) -> int:
    size = path.stat().st_size
    if file_format == "npy":
        return size // 12 * _PER_ROW
    if file_format in ("parquet", "npz"):
        return 0
    try:
        with open_source(path) as stream:
            sample, compressed = stream.read(_SAMPLE), stream.compression is not None
    except InputError:
        return 0  # what is wrong with it is said when it is read
    size *= _UNPACKED if compressed else 1
    return size + _PER_LINE * (size * (sample.count(b"\n") + 1) // max(1, len(sample)))
