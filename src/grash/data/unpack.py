"""unpack: the regular files of a tar or zip archive, and nothing that could reach outside of the folder.

Used by download.py. Links, devices and paths that climb are errors, whatever the archive was meant for.
"""

from __future__ import annotations

import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from grash.errors import InputError

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
