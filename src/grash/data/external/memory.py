"""How much memory preparing a source may take, and how much it would take to read it at once. Used by prepare.py."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path

from grash.data.arrays import open_array
from grash.data.readers import tables
from grash.data.readers.folders import Layout
from grash.data.readers.streams import open_source
from grash.errors import ConfigError, InputError
from grash.formatting import format_bytes

DEFAULT_SHARE = 0.5  # of the machine's memory, or of what a container may have
LEAST = 1 << 30
_PROGRAM = 3 << 28  # of a limit, for Python, its libraries and the blocks of text on their way
_LIBRARIES = 3 << 27  # of that, without the text: 0.35 GiB measured
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?")

_PER_NAME = 60
_PER_ROW = 2 * 12 + 14  # ids twice, and the table of duplicates
_PER_LINE = _PER_ROW + 2 * _PER_NAME  # with two names that no other line has
_UNPACKED = 8  # times as large as it is, a compressed file may well be
_UNPACKED_AT_MOST = 1032  # of gzip; what others reach with text is less
_SAMPLE = 1 << 16
_NAMES = ("entities", "relations")
_log = logging.getLogger(__name__)


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


def read_in_parts(layout: Layout, room: int, *, strict: bool, begun: bool = False) -> bool:
    """Whether a source is read in parts, as one that was begun so or might not fit into `room` bytes.

    strict: of compressed files, the most that they can hold counts, not what is likely.
    """
    return _can_be_in_parts(layout) and (begun or needed_at_once(layout, strict=strict) > room)


def needed_at_once(layout: Layout, *, strict: bool = False) -> int:
    """Bytes that reading a source at once may take: as many names as its lines have room for."""
    return sum(_needed(layout, role, strict) for role in layout.files)


def check_limit(layout: Layout, limit: int) -> None:
    """Says where a limit that was asked for may not be kept, since a source, or the names beside its arrays, can only
    be read at once; InputError where it cannot be."""
    roles = [role for role in layout.files if role in _NAMES or not _can_be_in_parts(layout)]
    if not roles:
        return
    what = f"The names beside {layout.path}" if _can_be_in_parts(layout) else str(layout.path)
    instead = "Arrays of ids without names, and text, are read in parts"
    least = sum(_surely(layout, role) for role in roles)
    if least > limit:
        raise InputError(
            f"{what} can only be read at once, which takes more than {format_bytes(least)}, and memory={format_bytes(limit)} "
            f"is given: give more (--memory). {instead}."
        )
    needed = sum(_needed(layout, role, False) for role in roles)
    if needed + _LIBRARIES > limit:
        _log.warning(
            "%s can only be read at once: that may take %s, more than the %s given. %s.",
            what, format_bytes(needed + _LIBRARIES), format_bytes(limit), instead,
        )  # fmt: skip


def machine_bytes(root: Path = Path("/sys/fs/cgroup")) -> int:
    """The memory of the machine, or of the container (cgroup 2, then 1) if that has less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            return min(total, int((root / name).read_text()))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return total


def _can_be_in_parts(layout: Layout) -> bool:
    if layout.kind not in ("file", "splits", "arrays"):
        return False
    return not {"parquet", "npz"} & set(layout.formats.values())


def _needed(layout: Layout, role: str, strict: bool) -> int:
    path, file_format = layout.files[role], layout.formats.get(role, "text")
    size = path.stat().st_size
    if file_format == "npy":
        return _array_needs(path)
    if file_format == "npz":
        return sum(max(n_bytes + 12 * n_rows, _PER_ROW * n_rows) for n_bytes, n_rows in tables.archive_sizes(path))
    if file_format == "parquet":
        return _UNPACKED * size + _PER_LINE * tables.parquet_rows(path)
    try:
        with open_source(path) as stream:
            sample, compressed = stream.read(_SAMPLE), stream.compression is not None
    except InputError:
        return 0  # what is wrong with it is said when it is read
    if compressed:
        size *= _UNPACKED_AT_MOST if strict else _UNPACKED
    n_lines = size * (sample.count(b"\n") + 1) // max(1, len(sample))
    if role in _NAMES:
        return size + _PER_NAME * n_lines
    return _PER_ROW * n_lines if {*_NAMES} <= {*layout.files} else size + _PER_LINE * n_lines


def _array_needs(path: Path) -> int:
    try:
        array = open_array(path)
    except (ValueError, OSError):
        return 0
    return len(array) * _PER_ROW if array.ndim else 0


def _surely(layout: Layout, role: str) -> int:
    """Bytes that a file which is read at once takes at the very least."""
    if layout.formats.get(role) == "npz":
        return sum(n_bytes for n_bytes, _ in tables.archive_sizes(layout.files[role]))
    return layout.files[role].stat().st_size
