"""Files and folders that are either wholly there or not at all: written aside, fsynced, renamed.

Used by everything that outlives a run: encoded datasets, model folders, checkpoints, exports.
"""

from __future__ import annotations

import functools
import glob
import hashlib
import json
import os
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from grash.errors import FormatError, InputError, OutputError

_STALE = 3600.0  # seconds after which what another machine writes aside has been left


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yields a path to write to; on success it becomes `path`, on any failure nothing is left behind."""
    path = Path(path)
    with _as_output_error(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
        os.close(handle)
    aside = Path(name)
    try:
        with _as_output_error(path):
            yield aside
            _fsync(aside)
            aside.chmod(0o666 & ~_umask())
            aside.replace(path)
            sync_folder(path.parent)
    finally:
        aside.unlink(missing_ok=True)


@contextmanager
def whole_folder(path: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Yields an empty folder to fill; on success it becomes `path`, on any failure nothing is left behind.

    With `overwrite`, an existing folder stays intact until the new one is complete.
    """
    path = Path(path)
    if path.exists() and not overwrite:
        raise InputError(f"{path} exists already: give another folder, or --overwrite (overwrite=True).")
    with _as_output_error(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        prefix = f".{path.name}.{_machine()}-{os.getpid()}-"
        aside = Path(tempfile.mkdtemp(dir=path.parent, prefix=prefix, suffix=".part"))
    old = aside.with_suffix(".old")
    try:
        with _as_output_error(path):
            yield aside
            for file in aside.rglob("*"):
                file.chmod((0o777 if file.is_dir() else 0o666) & ~_umask())
                _fsync(file)
            _fsync(aside)
            aside.chmod(0o777 & ~_umask())
            if path.exists():
                path.rename(old)
            aside.rename(path)
            sync_folder(path.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        if old.exists() and not path.exists():
            old.rename(path)
        shutil.rmtree(old, ignore_errors=True)


def check_writable(path: Path) -> None:
    """Says that nothing could be written at `path`, before there is something to lose."""
    with _as_output_error(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass


def sync_folder(folder: Path) -> None:
    """Makes the entry of a new file in it last, too."""
    _fsync(folder)


def mend_folder(path: Path) -> None:
    """Clears up after a process that was killed inside `whole_folder`: brings the old folder back if there is no new
    one, and removes what a process that is gone left; one of another machine, if nothing was written for an hour."""
    olds = sorted(_left_beside(path, ".old"), key=lambda p: p.stat().st_mtime)
    with _as_output_error(path):
        if olds and not path.exists():
            olds.pop().rename(path)
    for left in [*olds, *(p for p in _left_beside(path, ".part") if _is_left(p))]:
        shutil.rmtree(left, ignore_errors=True)


def _left_beside(path: Path, suffix: str) -> list[Path]:
    """What `whole_folder` made for this path, and not for one whose name goes on after a dot."""
    start = f".{path.name}."
    found = path.parent.glob(f"{glob.escape(start)}*{suffix}")
    return [p for p in found if "." not in p.name[len(start) : -len(suffix)]]


def _is_left(part: Path) -> bool:
    owner = re.search(r"\.([0-9a-f]{8})-(\d+)-[^.-]*\.part$", part.name)
    if owner is not None and owner[1] == _machine():
        try:
            os.kill(int(owner[2]), 0)
        except ProcessLookupError:
            return True
        except OSError:  # another user's
            pass
    return time.time() - _last_written(part) > _STALE


@functools.cache
def _machine() -> str:
    """Of this machine, since it was started, and of this container: where a process number means one process."""
    marks = [socket.gethostname()]
    with suppress(OSError):
        marks.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8"))
        marks.append(str(Path("/proc/self/ns/pid").readlink()))
    return hashlib.sha256("\n".join(marks).encode()).hexdigest()[:8]


def _last_written(folder: Path) -> float:
    return max(p.stat().st_mtime for p in (folder, *folder.rglob("*")))


def write_json(path: Path, content: dict[str, Any]) -> None:
    with whole_file(path) as aside:
        aside.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path: Path, *, schema: str, version: int) -> dict[str, Any]:
    """The JSON object at `path`, checked to be of this schema and version.

    Every file of ours that outlives a run carries `"schema": NAME` and `"version": N`.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise FormatError(f"{path} is damaged ({error}): it should hold the JSON of a {schema}.") from error
    if not isinstance(content, dict) or content.get("schema") != schema:
        raise FormatError(f"{path} does not describe a {schema}: its 'schema' entry is missing or another.")
    if content.get("version") != version:
        raise FormatError(
            f"{path} is a {schema} of version {content.get('version')}, and this grash reads version {version}: "
            f"use the grash that wrote it, or make it anew."
        )
    return content


@contextmanager
def _as_output_error(path: Path) -> Iterator[None]:
    try:
        yield
    except OutputError as error:  # of a file inside a folder: what counts is the folder
        raise OutputError(path, error.reason) from error
    except OSError as error:
        raise OutputError(path, error.strerror or str(error)) from error


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
