"""The bytes of a file, decompressed as they are read. What a file is, is told by its first bytes, not its name.

Goes to text.py, rdf.py, tables.py. A truncated or damaged archive becomes an InputError at the read that meets it.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import zlib
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from grash.errors import InputError

T = TypeVar("T")

COMPRESSED_SUFFIXES = (".gz", ".bz2", ".xz", ".zst", ".zstd")
_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_ARCHIVES = {b"PK\x03\x04": "a zip archive", b"Rar!": "a rar archive", b"7z\xbc\xaf\x27\x1c": "a 7z archive"}
_DAMAGE = (EOFError, OSError, zlib.error, lzma.LZMAError)


class SourceStream(io.RawIOBase):
    """Decompressed bytes of a file. `error` keeps what a read raised, for parsers that swallow it."""

    def __init__(self, path: Path, inner: Any, compression: str | None, file: BinaryIO | None = None) -> None:
        self.path, self.compression = path, compression
        self._file = file
        self.error: InputError | None = None
        self._inner = inner

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        try:
            return self._inner.read(size)
        except _DAMAGE as error:
            self.error = InputError(self._sentence(error))
            raise self.error from error

    def readinto(self, buffer: Any, /) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    @property
    def place(self) -> int:
        """How many bytes of the file itself, compressed or not, have been read."""
        return self._file.tell() if self._file is not None else 0

    def skip(self, n_bytes: int) -> None:
        """Passes over so many bytes; in a plain file without reading them."""
        if self.compression is None:
            self._inner.seek(n_bytes, os.SEEK_CUR)
            return
        while n_bytes > 0 and (passed := len(self.read(min(n_bytes, 1 << 24)))):
            n_bytes -= passed

    def _sentence(self, error: BaseException) -> str:
        if self.compression is None:
            return f"{self.path} cannot be read: {getattr(error, 'strerror', None) or error}."
        reason = "it ends too early" if isinstance(error, EOFError) else str(error).rstrip(".")
        return f"{self.path} is a truncated or damaged {self.compression} file ({reason}): copy or download it again."


@contextmanager
def open_source(path: Path) -> Iterator[SourceStream]:
    """A stream of the decompressed bytes of a file; InputError if it cannot be opened or is an archive of files."""
    path = Path(path)
    try:
        file = path.open("rb")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from error
    with file:
        compression, inner = _decompressor(path, file)
        with inner:
            yield SourceStream(path, inner, compression, file)


def ahead(items: Generator[T, None, None]) -> Generator[T, None, None]:
    """The same items, the next one being made in another thread while the caller works on this one.

    To be closed where it is not read to its end (contextlib.closing), so that its thread ends with it.
    """
    end: Any = object()
    thread = ThreadPoolExecutor(1)
    try:
        coming = thread.submit(next, items, end)
        while (item := coming.result()) is not end:
            coming = thread.submit(next, items, end)
            yield item
    finally:
        thread.shutdown()
        items.close()


def without_compression_suffix(name: str) -> str:
    """A file's name without .gz, .bz2, .xz, .zst."""
    suffix = Path(name).suffix.lower()
    return name[: -len(suffix)] if suffix in COMPRESSED_SUFFIXES else name


def _decompressor(path: Path, file: BinaryIO) -> tuple[str | None, Any]:
    try:
        start = file.read(512)
        file.seek(0)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from error
    for magic, what in _ARCHIVES.items():
        if start.startswith(magic):
            raise InputError(f"{path} is {what}: unpack it and give what is inside.")
    if start[257:262] == b"ustar":
        raise InputError(f"{path} is a tar archive: unpack it and give what is inside.")
    compression = next((c for magic, c in _MAGIC.items() if start.startswith(magic)), None)
    if compression == "gzip":
        return compression, gzip.GzipFile(fileobj=file, mode="rb")
    if compression == "bzip2":
        return compression, bz2.BZ2File(file, "rb")
    if compression == "xz":
        return compression, lzma.LZMAFile(file, "rb")
    if compression == "zstd":
        return compression, io.BufferedReader(_ZstdFile(file), 1 << 20)
    return None, file


class _ZstdFile(io.RawIOBase):
    """Frames of zstd one after the other; unlike the library's own reader, it notices a missing end."""

    def __init__(self, file: BinaryIO) -> None:
        import zstandard

        self._file, self._zstandard = file, zstandard
        self._frame: Any = None
        self._raw, self._ready = b"", memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        while not self._ready:
            if not self._raw:
                self._raw = self._file.read(1 << 18)
            if not self._raw and self._frame is None:
                return 0
            if not self._raw:
                raise EOFError
            self._decompress()
        n = min(len(buffer), len(self._ready))
        buffer[:n] = self._ready[:n]
        self._ready = self._ready[n:]
        return n

    def _decompress(self) -> None:
        if self._frame is None:
            self._frame = self._zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()
        try:
            self._ready = memoryview(self._frame.decompress(self._raw))
        except self._zstandard.ZstdError as error:
            raise OSError(str(error)) from error
        self._raw = self._frame.unused_data if self._frame.eof else b""
        if self._frame.eof:
            self._frame = None
