"""Files and folders that are complete or absent: written under a temporary name, fsynced, then renamed.

Everything that outlives a run is written this way: encoded datasets, model folders, checkpoints, exports. Folders that
feed a later result also have a `checksums.json`, so that `verify_folder` notices a damaged file before it is used.
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
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from grash.errors import FormatError, InputError, OutputError

CHECKSUMS_FILE = "checksums.json"

_CHECKSUMS_SCHEMA, _CHECKSUMS_VERSION = "grash-checksums", 1
_CHECKSUM_BLOCK = 64 << 20  # bytes that one thread reads at a time
_large_checksums: dict[tuple[int, int, int, int], str] = {}  # by device, inode, size and time of the last change
_STALE_SECONDS = 3600.0  # without a write: a temporary folder of another machine is abandoned


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to. It replaces `path` on success and is deleted on failure."""
    path = Path(path)
    with _as_output_error(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
        os.close(handle)
    temporary = Path(name)
    try:
        with _as_output_error(path):
            yield temporary
            sync_folder(temporary)
            temporary.chmod(0o666 & ~_umask())
            temporary.replace(path)
            sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path, *, overwrite: bool = False, checksums: bool = False) -> Iterator[Path]:
    """Yield an empty temporary folder to fill. It becomes `path` on success and is deleted on failure.

    With `overwrite`, an existing folder stays intact until the new one is complete. With `checksums`, the folder also
    gets the checksums of its files, which `verify_folder` compares.
    """
    path = Path(path)
    if not overwrite:
        check_absent(path)
    with _as_output_error(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        prefix = f".{path.name}.{_machine()}-{os.getpid()}-"
        temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=prefix, suffix=".part"))
    old = temporary.with_suffix(".old")
    try:
        with _as_output_error(path):
            yield temporary
            if checksums:
                write_checksums(temporary)
            for file in temporary.rglob("*"):
                file.chmod((0o777 if file.is_dir() else 0o666) & ~_umask())
                sync_folder(file)
            sync_folder(temporary)
            temporary.chmod(0o777 & ~_umask())
            if path.exists():
                path.rename(old)
            temporary.rename(path)
            sync_folder(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if old.exists() and not path.exists():
            old.rename(path)
        shutil.rmtree(old, ignore_errors=True)


def verify_folder(folder: Path, *, without: str = "") -> None:
    """Raise FormatError if a file of a folder written with `checksums` is missing or differs from its checksum.

    Files of subfolders are not checked, nor is the file `without`. A large file is read once per process, unless it
    changes.
    """
    path = folder / CHECKSUMS_FILE
    if not path.is_file():
        raise FormatError(f"{folder} is incomplete: it has no {CHECKSUMS_FILE}. Create it again.")
    files = read_json(path, schema=_CHECKSUMS_SCHEMA, version=_CHECKSUMS_VERSION).get("files")
    if not isinstance(files, dict):
        raise FormatError(f"{path} is damaged: it has no list of files. Create the folder again.")
    for name, expected in files.items():
        file = folder / name
        if name == without:
            continue
        if file.parent != folder or not file.is_file():
            raise FormatError(f"{file} is missing: the folder is incomplete or damaged. Create it again.")
        if _checksum(file) != expected:
            raise FormatError(
                f"{file} is damaged: its content does not match its checksum in {CHECKSUMS_FILE}. Restore it from a "
                f"copy, or create the folder again."
            )


def write_checksums(folder: Path, *, without: str = "") -> None:
    """Write the checksums of a folder's files, for `verify_folder`; README.md is for people, who may edit it."""
    left_out = (CHECKSUMS_FILE, "README.md", without)
    files = {f.name: _checksum(f) for f in sorted(folder.iterdir()) if f.is_file() and f.name not in left_out}
    write_json(folder / CHECKSUMS_FILE, {"schema": _CHECKSUMS_SCHEMA, "version": _CHECKSUMS_VERSION, "files": files})


def _checksum(path: Path) -> str:
    """Return CRC-32 of the CRC-32s of a file's blocks, and its size.

    CRC-32 finds every error of up to 32 consecutive bits. It finds damage; it does not stop an attacker.
    """
    found = path.stat()
    n_bytes = found.st_size
    if n_bytes <= _CHECKSUM_BLOCK:
        return _checksum_of_blocks([_crc(path, 0)], n_bytes)
    same = found.st_dev, found.st_ino, n_bytes, found.st_mtime_ns  # a file keeps these when its folder is renamed
    if same not in _large_checksums:
        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:  # zlib releases the GIL
            blocks = list(pool.map(functools.partial(_crc, path), range(0, n_bytes, _CHECKSUM_BLOCK)))
        _large_checksums[same] = _checksum_of_blocks(blocks, n_bytes)
    return _large_checksums[same]


def _checksum_of_blocks(blocks: list[int], n_bytes: int) -> str:
    return f"{zlib.crc32(b''.join(crc.to_bytes(4, 'little') for crc in blocks)):08x}-{n_bytes}"


def _crc(path: Path, start: int) -> int:
    """Return the CRC-32 of a block, read in pieces that stay in the cache of a core."""
    crc, left, piece = 0, _CHECKSUM_BLOCK, memoryview(bytearray(1 << 18))
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        while left and (n := file.readinto(piece[: min(left, len(piece))]) or 0):
            crc, left = zlib.crc32(piece[:n], crc), left - n
    return crc


def repair_folder(path: Path) -> None:
    """Clean up after a process that was killed inside `atomic_folder`.

    Restores the old folder if there is no new one, and deletes temporary folders of dead processes. A temporary
    folder of another machine is deleted if nothing was written to it for an hour.
    """
    olds = sorted(_temporary_folders(path, ".old"), key=lambda p: p.stat().st_mtime)
    with _as_output_error(path):
        if olds and not path.exists():
            olds.pop().rename(path)
    for folder in [*olds, *(p for p in _temporary_folders(path, ".part") if _is_abandoned(p))]:
        shutil.rmtree(folder, ignore_errors=True)


def check_replaceable(folder: Path, *, overwrite: bool, kind: str, marker: str) -> None:
    """Raise InputError unless `folder` is absent or empty, or has the file `marker` of this kind and `overwrite`."""
    repair_folder(folder)
    if not overwrite:
        check_absent(folder)
    elif folder.exists() and not (folder / marker).is_file() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} is not {kind}, so it is not overwritten. Choose another folder.")


def check_absent(path: Path) -> None:
    """Raise InputError if something exists at `path`."""
    if path.exists():
        raise InputError(f"{path} already exists. Choose another, or replace it with --overwrite (overwrite=True).")


def beside(path: Path, ending: str) -> Path:
    """Return the path beside `path` with the ending after its name; . and .. have the names of their folders."""
    named = path if path.name not in ("", "..") else path.resolve()
    return named.parent / f"{named.name}{ending}"


def check_writable(path: Path) -> None:
    """Raise OutputError if nothing can be written at `path`, before there are results to lose."""
    with _as_output_error(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path.parent).close()


def sync_folder(path: Path) -> None:
    """Flush a folder (or a file) to disk, so that a new file in it survives a power failure."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path, content: dict[str, Any]) -> None:
    with atomic_file(path) as temporary:
        temporary.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path: Path, *, schema: str, version: int) -> dict[str, Any]:
    """Return the JSON object at `path` after checking its entries `"schema": NAME` and `"version": N`."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:  # also numbers of thousands of digits, or nested too deeply
        raise FormatError(f"{path} is damaged: it should contain the JSON of a {schema} ({error}).") from error
    return check_schema(content, path, schema=schema, version=version)


def check_schema(content: Any, path: Path, *, schema: str, version: int) -> dict[str, Any]:
    """Return the content of `path` if it is a mapping with this schema and version."""
    if not isinstance(content, dict) or content.get("schema") != schema:
        raise FormatError(f"{path} does not describe a {schema}: its 'schema' entry is missing or different.")
    if content.get("version") != version:
        raise FormatError(
            f"{path} is a {schema} of version {content.get('version')}, but this grash reads version {version}. "
            f"Use the grash that wrote it, or create it again."
        )
    return content


def _temporary_folders(path: Path, suffix: str) -> list[Path]:
    """Return what `atomic_folder` created for this path, but not for `path` plus a further suffix."""
    start = f".{path.name}."
    found = path.parent.glob(f"{glob.escape(start)}*{suffix}")
    return [p for p in found if "." not in p.name[len(start) : -len(suffix)]]


def _is_abandoned(part: Path) -> bool:
    owner = re.search(r"\.([0-9a-f]{8})-(\d+)-[^.-]*\.part$", part.name)
    if owner is not None and owner[1] == _machine():
        try:
            os.kill(int(owner[2]), 0)
        except ProcessLookupError:
            return True
        except OSError:  # another user's process
            pass
    last_write = max(p.stat().st_mtime for p in (part, *part.rglob("*")))
    return time.time() - last_write > _STALE_SECONDS


@functools.cache
def _machine() -> str:
    """Identify this machine, boot and container: within it, a process id belongs to one process."""
    marks = [socket.gethostname()]
    with suppress(OSError):
        marks.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8"))
        marks.append(str(Path("/proc/self/ns/pid").readlink()))
    return hashlib.sha256("\n".join(marks).encode()).hexdigest()[:8]


@contextmanager
def _as_output_error(path: Path) -> Iterator[None]:
    try:
        yield
    except OutputError as error:  # of a file inside a folder: report the folder
        raise OutputError(path, error.reason) from error
    except OSError as error:  # NumPy's has no number: "1024 requested and 992 written"
        raise OutputError(path, error.strerror or f"the disk may be full ({error})") from error


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
