"""The bytes of a file, decompressed as they are read. The compression is recognized by the first bytes, not the name.

Goes to text.py and rdf.py. A truncated or damaged file raises InputError at the read that finds it.
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
    """Decompressed bytes of a file. `error` keeps the error of a read, for parsers that swallow it."""

    def __init__(self, path: Path, inner: Any, compression: str | None, file: BinaryIO | None = None) -> None:
        self.path, self.compression = path, compression
        self._inner, self._file = inner, file
        self.error: InputError | None = None

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        try:
            return self._inner.read(size)
        except _DAMAGE as error:
            self.error = InputError(self._message(error))
            raise self.error from error

    def readinto(self, buffer: Any, /) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    @property
    def position(self) -> int:
        """Number of bytes read from the file itself, compressed or not."""
        return self._file.tell() if self._file is not None else 0

    def skip(self, n_bytes: int) -> None:
        """Skip bytes; in an uncompressed file without reading them."""
        if self.compression is None:
            self._inner.seek(n_bytes, os.SEEK_CUR)
            return
        while n_bytes > 0 and (skipped := len(self.read(min(n_bytes, 1 << 24)))):
            n_bytes -= skipped

    def _message(self, error: BaseException) -> str:
        if self.compression is None:
            return f"{self.path} cannot be read: {getattr(error, 'strerror', None) or error}."
        reason = "it ends too early" if isinstance(error, EOFError) else str(error).rstrip(".")
        return f"{self.path} is a truncated or damaged {self.compression} file ({reason}). Copy or download it again."


@contextmanager
def open_source(path: Path) -> Iterator[SourceStream]:
    """Yield a stream of the decompressed bytes. Raises InputError for an unreadable file or an archive of files."""
    path = Path(path)
    try:
        file = path.open("rb")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from error
    with file:
        compression, inner = _decompressor(path, file)
        with inner:
            yield SourceStream(path, inner, compression, file)


def in_background(items: Generator[T, None, None]) -> Generator[T, None, None]:
    """Yield the same items; a thread prepares the next one while the caller works on this one.

    Close it (contextlib.closing) if it is not read to the end, so that its thread ends.
    """
    end: Any = object()
    thread = ThreadPoolExecutor(1)
    try:
        following = thread.submit(next, items, end)
        while (item := following.result()) is not end:
            following = thread.submit(next, items, end)
            yield item
    finally:
        thread.shutdown()
        items.close()


def without_compression_suffix(name: str) -> str:
    """Return the name of a file without .gz, .bz2, .xz, .zst."""
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
            raise InputError(f"{path} is {what}. Unpack it and give a file or folder of it.")
    if start[257:262] == b"ustar":
        raise InputError(f"{path} is a tar archive. Unpack it and give a file or folder of it.")
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
    """Consecutive zstd frames; unlike the reader of the library, it notices a missing end."""

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
