"""download: from a catalog entry to files that prepare.py can read, whole or not at all.

Fetches into FOLDER/NAME.download (resumed after a break, verified), unpacks to FOLDER/NAME. A file that
someone put into the download folder by hand is verified and used, so that this works without a network.
"""

from __future__ import annotations

import hashlib
import http.client
import logging
import os
import shutil
import tarfile
import time
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any
from urllib.error import HTTPError
from urllib.parse import urlsplit

from grash import __version__
from grash.data.catalog import CatalogEntry, RemoteFile
from grash.errors import InputError, OutputError
from grash.files import atomic_folder

logger = logging.getLogger(__name__)

ATTEMPTS = 4
TIMEOUT_SECONDS = 60

Progress = Callable[[str, int, "int | None"], None]

_BLOCK = 1 << 20


class _Broken(Exception):
    """A transfer that failed, and may go better next time unless it is `final`."""

    def __init__(self, reason: str, *, final: bool = False) -> None:
        super().__init__(reason)
        self.final = final


class _Wrong(Exception):
    """Content that is not what the catalog says."""


def download(
    entry: CatalogEntry,
    folder: Path,
    *,
    open_url: Callable[..., Any] = urllib.request.urlopen,
    wait: Callable[[float], None] = time.sleep,
    progress: Progress | None = None,
) -> Path:
    """The folder FOLDER/NAME, or the one file in it where a dataset is one; made if it is not there yet.

    `progress` is called with (file name, bytes so far, bytes in all or None).
    """
    if entry.instead is not None:
        raise InputError(f"{entry.name} cannot be downloaded by grash. {entry.instead}")
    folder = Path(folder)
    target = folder / entry.name
    if not target.exists():
        place = folder / f"{entry.name}.download"
        paths = [_fetch(file, place / file.name, open_url, wait, progress) for file in entry.files]
        with atomic_folder(target) as aside:
            for path in paths:
                _put(path, aside, entry)
        logger.info("%s is complete; %s may be deleted", target, place)
    content = sorted(target.iterdir())
    return content[0] if len(content) == 1 and content[0].is_file() else target


def _put(path: Path, aside: Path, entry: CatalogEntry) -> None:
    if entry.form == "archive":
        unpack(path, aside, keep=entry.keep)
        return
    try:
        os.link(path, aside / path.name)  # the same bytes under two names cost nothing
    except OSError:
        shutil.copyfile(path, aside / path.name)


def _fetch(
    file: RemoteFile,
    path: Path,
    open_url: Callable[..., Any],
    wait: Callable[[float], None],
    progress: Progress | None,
) -> Path:
    """`path`, downloaded unless it is there, and verified."""
    if urlsplit(file.url).scheme not in ("http", "https"):
        raise InputError(f"{file.url} is no http or https address, and grash fetches nothing else.")
    if path.exists():
        try:
            _verify(path, file)
        except _Wrong as error:
            raise InputError(
                f"{path} is not the file that the catalog means: {error}. "
                f"Delete it and run the same command again to download it, or put the right file there."
            ) from error
        return path
    part = path.with_name(f"{path.name}.part")
    reason = _transfer_stubbornly(file, part, open_url, wait, progress)
    if reason is not None:
        raise InputError(
            f"{file.url} could not be downloaded ({reason}). Try again later, or download it in a browser, "
            f"put it at {path}, and run the same command again."
        )
    with _as_output_error(path):
        part.replace(path)
        _mark_of(part).unlink(missing_ok=True)
    return path


def _transfer_stubbornly(
    file: RemoteFile,
    part: Path,
    open_url: Callable[..., Any],
    wait: Callable[[float], None],
    progress: Progress | None,
) -> str | None:
    """Why it did not work after several attempts; None if `part` is complete and verified."""
    reason = ""
    for attempt in range(ATTEMPTS):
        if attempt:
            logger.warning("%s: %s; trying again (%d of %d)", file.url, reason, attempt + 1, ATTEMPTS)
            wait(2.0 ** (attempt - 1))
        try:
            resumed = _transfer(file, part, open_url, progress)
        except _Broken as error:
            reason = str(error)
            if error.final:
                return reason
            continue
        try:
            _verify(part, file)
            return None
        except _Wrong as error:
            reason = str(error)
            _forget(part)
            if not resumed:  # fetched in one piece, so it is the file there that differs
                return reason
    return reason


def _transfer(file: RemoteFile, part: Path, open_url: Callable[..., Any], progress: Progress | None) -> bool:
    """Appends to `part` what it lacks; whether it built on what was there. _Broken if that did not work."""
    with _as_output_error(part):
        part.parent.mkdir(parents=True, exist_ok=True)
    start, mark = _resume_point(file, part)
    headers = {"User-Agent": f"grash/{__version__}", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
        if mark:
            headers["If-Range"] = mark
    try:
        response = open_url(urllib.request.Request(file.url, headers=headers), timeout=TIMEOUT_SECONDS)
    except HTTPError as error:
        error.close()
        if error.code == 416 and start:  # nothing beyond what is there: complete, or of another file
            if file.size == start or (file.size is None and (file.sha256 or file.md5)):
                return True
            _forget(part)
        final = 400 <= error.code < 500 and error.code not in (408, 416, 429)
        raise _Broken(f"the server says {error.code} {error.reason}", final=final) from error
    except (OSError, http.client.HTTPException) as error:
        raise _Broken(_reason(error)) from error
    with response:
        if urlsplit(response.geturl()).scheme not in ("http", "https"):
            raise _Broken(f"it leads to {response.geturl()}, which is no http or https address")
        return _receive(response, file, part, start, progress)


def _resume_point(file: RemoteFile, part: Path) -> tuple[int, str | None]:
    """How many bytes are there to build on, and the server's mark of the version that they are of.

    Without a mark or a checksum nobody could tell whether the rest fits, so it starts anew.
    """
    if not part.exists():
        return 0, None
    mark_file = _mark_of(part)
    mark = mark_file.read_text(encoding="latin-1").strip() if mark_file.exists() else None
    if mark is None and file.sha256 is None and file.md5 is None:
        return 0, None
    start = part.stat().st_size
    return (0, None) if file.size is not None and start > file.size else (start, mark)


def _receive(response: Any, file: RemoteFile, part: Path, start: int, progress: Progress | None) -> bool:
    resumed = response.status == 206 and _range_start(response) == start
    if response.status == 206 and not resumed:
        _forget(part)
        raise _Broken("the server sent another part than the one asked for")
    done = start if resumed else 0
    length = response.headers.get("Content-Length")
    total = done + int(length) if length and length.isdigit() else None
    expected = file.size if file.size is not None else total
    mark = response.headers.get("ETag") or response.headers.get("Last-Modified")
    with _as_output_error(part):
        if mark and not mark.startswith("W/"):  # a weak tag does not promise equal bytes
            _mark_of(part).write_text(mark, encoding="latin-1")
        else:
            _mark_of(part).unlink(missing_ok=True)
        sink = part.open("ab" if resumed else "wb")
    with sink:
        while block := _read(response):
            with _as_output_error(part):
                sink.write(block)
                sink.flush()
            done += len(block)
            if progress is not None:
                progress(file.name, done, expected)
            if file.size is not None and done > file.size:
                return resumed  # longer than it can be: _verify says so
        with _as_output_error(part):
            os.fsync(sink.fileno())
    if total is not None and done < total:
        raise _Broken(f"the connection ended after {done:,} of {total:,} bytes")
    return resumed


def _read(response: Any) -> bytes:
    try:
        return response.read(_BLOCK)
    except (OSError, http.client.HTTPException) as error:
        raise _Broken(_reason(error)) from error


def _range_start(response: Any) -> int | None:
    text = response.headers.get("Content-Range", "")  # bytes 100-199/200
    number = text.removeprefix("bytes ").split("-")[0].strip()
    return int(number) if number.isdigit() else None


def _verify(path: Path, file: RemoteFile) -> None:
    size = path.stat().st_size
    if file.size is not None and size != file.size:
        raise _Wrong(f"it has {size:,} bytes, and {file.size:,} are expected")
    for kind, expected in (("sha256", file.sha256), ("md5", file.md5)):
        if expected is not None:
            found = _digest(path, kind)
            if found != expected:
                raise _Wrong(f"its {kind} is {found}, and {expected} is expected")
            return
    if size == 0:
        raise _Wrong("it is empty")


def _digest(path: Path, kind: str) -> str:
    digest = hashlib.new(kind, usedforsecurity=False)
    with path.open("rb") as source:
        while block := source.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _forget(part: Path) -> None:
    part.unlink(missing_ok=True)
    _mark_of(part).unlink(missing_ok=True)


def _mark_of(part: Path) -> Path:
    return part.with_name(f"{part.name}.version")


def _reason(error: BaseException) -> str:
    return str(getattr(error, "reason", None) or error) or type(error).__name__


@contextmanager
def _as_output_error(path: Path) -> Iterator[None]:
    """Writing that fails is a sentence about the disk, not about the network."""
    try:
        yield
    except OSError as error:
        kept = "What is there so far is kept; run the same command again to go on."
        raise OutputError(path, error.strerror or str(error), then=kept) from error


# = unpack: the regular files of a tar or zip archive, and nothing that could reach outside of the folder.
# =
# = Used by download.py. Links, devices and paths that climb are errors, whatever the archive was meant for.

_IGNORED = {"__MACOSX", ".DS_Store"}


def unpack(archive: Path, folder: Path, *, keep: Sequence[tuple[str, str]] = ()) -> None:
    """Fills `folder` with the archive's files, a lone top folder taken away.

    keep: (path inside, new name) pairs; only these files are written, under their new names.
    """
    wanted = dict(keep)
    with _as_input_error(archive):
        for name, content in _files(archive):
            inside = _safe(name, archive)
            if _IGNORED & set(inside.parts):
                continue
            if not keep:
                _write(content, folder / inside)
                continue
            for path in [path for path in wanted if _ends_with(inside, path)]:
                _write(content, folder / wanted.pop(path))
    if keep and wanted:
        raise InputError(f"{archive} holds no {', '.join(wanted)}: it is not the archive that was expected.")
    if not keep:
        _lift(folder)


def _files(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """(name, content) of every regular file, in the order of the archive."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as packed:
            for info in packed.infolist():
                kind = info.external_attr >> 28  # upper bits of the Unix mode: 8 file, 4 folder, 10 link
                if kind == 10:
                    raise InputError(_refused(archive, info.filename, "a link"))
                if not info.is_dir():
                    with packed.open(info) as unzipped:
                        yield info.filename, unzipped
        return
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.isdir():
                continue
            content = tar.extractfile(member) if member.isfile() else None
            if content is None:
                raise InputError(_refused(archive, member.name, "no regular file"))
            with content:
                yield member.name, content


def _safe(name: str, archive: Path) -> PurePosixPath:
    path = PurePosixPath(name.replace("\\", "/"))
    parts = [part for part in path.parts if part != "."]
    if path.is_absolute() or ".." in parts or not parts or ":" in parts[0] or "\0" in name:
        raise InputError(_refused(archive, name, "a path that leads out of the folder"))
    return PurePosixPath(*parts)


def _refused(archive: Path, name: str, what: str) -> str:
    return f"{archive} holds {name!r}, {what}: nothing was unpacked. Get the archive from another place."


def _ends_with(inside: PurePosixPath, path: str) -> bool:
    parts = PurePosixPath(path).parts
    return inside.parts[-len(parts) :] == parts


def _write(content: IO[bytes], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as sink:  # never over another file of the archive
        shutil.copyfileobj(content, sink, 1 << 20)


def _lift(folder: Path) -> None:
    """Moves the content of a lone top folder up."""
    content = list(folder.iterdir())
    if len(content) != 1 or not content[0].is_dir():
        return
    inner = content[0].rename(folder / ".inner")
    for child in inner.iterdir():
        child.rename(folder / child.name)
    inner.rmdir()


@contextmanager
def _as_input_error(archive: Path) -> Iterator[None]:
    try:
        yield
    except (
        tarfile.TarError,
        zipfile.BadZipFile,
        EOFError,
        zlib.error,
        RuntimeError,
        NotImplementedError,
    ) as error:
        raise InputError(_unreadable(archive, error)) from error
    except OSError as error:
        # gzip and bz2 call broken data an OSError without a number; a name may stand there twice
        if error.errno is None or isinstance(error, (FileExistsError, NotADirectoryError, IsADirectoryError)):
            raise InputError(_unreadable(archive, error)) from error
        raise


def _unreadable(archive: Path, error: BaseException) -> str:
    return f"{archive} cannot be unpacked ({error}): delete it and run the same command again."
