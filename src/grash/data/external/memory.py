"""The memory limit of `grash prepare`, and estimates of what reading a source at once takes. Used by load.py."""

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

MIN_LIMIT = 1 << 30
_DEFAULT_FRACTION = 0.5  # of the memory of the machine or container
_OVERHEAD = 3 << 28  # of a limit, for Python, its libraries and blocks of text
_LIBRARIES = 3 << 27  # of that, without the text: 0.35 GiB measured
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?")

_PER_NAME = 60
_PER_ROW = 2 * 12 + 14  # ids twice, and the table of duplicates
_PER_LINE = _PER_ROW + 2 * _PER_NAME  # with two names that occur nowhere else
_EXPANSION = 8  # likely ratio of uncompressed to compressed size
_MAX_EXPANSION = 1032  # of gzip; other formats reach less with text
_SAMPLE = 1 << 16
_NAMES = ("entities", "relations")
_log = logging.getLogger(__name__)


def memory_limit(given: str | int | None) -> int:
    """Return a limit in bytes from a number or a text such as 8G or 500M; None: half of the machine's memory."""
    if given is None:
        return max(MIN_LIMIT, int(_DEFAULT_FRACTION * machine_bytes()))
    found = _SIZE.fullmatch(str(given).strip().lower())
    if found is None:
        raise ConfigError(f"memory={given!r} is not an amount of memory. Give a number of bytes, or e.g. 8G or 500M.")
    limit = int(float(found[1]) * _UNITS[found[2]])
    if limit < MIN_LIMIT:
        raise ConfigError(f"memory={given!r} is too little. Give 1G or more.")
    return limit


def usable_memory(limit: int) -> int:
    """Return what a limit leaves for names and triples."""
    return limit - _OVERHEAD


def must_read_in_parts(layout: Layout, usable: int, *, strict: bool, started: bool = False) -> bool:
    """Return whether a source is read in parts: because that was started, or because it may exceed `usable` bytes.

    strict: assume the maximum expansion of compressed files instead of the likely one.
    """
    return _can_read_in_parts(layout) and (started or bytes_at_once(layout, strict=strict) > usable)


def bytes_at_once(layout: Layout, *, strict: bool = False) -> int:
    """Return the bytes that reading a source at once may take, with as many names as its lines allow."""
    return sum(_estimate(layout, role, strict) for role in layout.files)


def check_limit(layout: Layout, limit: int) -> None:
    """Warn if a source that can only be read at once may exceed a given limit. Raises InputError if it must."""
    in_parts = _can_read_in_parts(layout)
    roles = [role for role in layout.files if role in _NAMES or not in_parts]
    if not roles:
        return
    what = f"The names beside {layout.path}" if in_parts else str(layout.path)
    advice = "Text, and arrays of ids without names, can be read in parts"
    least = sum(_minimum(layout, role) for role in roles)
    if least > limit:
        raise InputError(
            f"{what} can only be read at once, which takes more than {format_bytes(least)}, but the limit is "
            f"{format_bytes(limit)}. Give more memory (--memory). {advice}."
        )
    likely = sum(_estimate(layout, role, False) for role in roles) + _LIBRARIES
    if likely > limit:
        message = "%s can only be read at once, which may take %s, more than the limit of %s. %s."
        _log.warning(message, what, format_bytes(likely), format_bytes(limit), advice)


def machine_bytes(root: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the memory of the machine, or of the container (cgroup 2, then 1) if it has less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            return min(total, int((root / name).read_text()))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return total


def _can_read_in_parts(layout: Layout) -> bool:
    if layout.kind not in ("file", "splits", "arrays"):
        return False
    return not {"parquet", "npz"} & set(layout.formats.values())


def _estimate(layout: Layout, role: str, strict: bool) -> int:
    path, file_format = layout.files[role], layout.formats.get(role, "text")
    size = path.stat().st_size
    if file_format == "npy":
        return _PER_ROW * _npy_rows(path)
    if file_format == "npz":
        return sum(max(n_bytes + 12 * n_rows, _PER_ROW * n_rows) for n_bytes, n_rows in tables.npz_sizes(path))
    if file_format == "parquet":
        return _EXPANSION * size + _PER_LINE * tables.parquet_rows(path)
    try:
        with open_source(path) as stream:
            sample, compressed = stream.read(_SAMPLE), stream.compression is not None
    except InputError:
        return 0  # reported when the file is read
    if compressed:
        size *= _MAX_EXPANSION if strict else _EXPANSION
    n_lines = size * (sample.count(b"\n") + 1) // max(1, len(sample))
    if role in _NAMES:
        return size + _PER_NAME * n_lines
    return _PER_ROW * n_lines if {*_NAMES} <= {*layout.files} else size + _PER_LINE * n_lines


def _npy_rows(path: Path) -> int:
    try:
        array = open_array(path)
    except (ValueError, OSError):
        return 0
    return len(array) if array.ndim else 0


def _minimum(layout: Layout, role: str) -> int:
    """Return the bytes that a file which is read at once takes at least."""
    if layout.formats.get(role) == "npz":
        return sum(n_bytes for n_bytes, _ in tables.npz_sizes(layout.files[role]))
    return layout.files[role].stat().st_size
