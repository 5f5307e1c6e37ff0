"""A source of triples: the options for reading it, its layout and format, and its decompressed bytes.

recognize() looks at file names and first bytes only. load.py chooses the reader, and the readers open their files with
open_source(), which recognizes a compression by the first bytes, not by the name.
"""

from __future__ import annotations

import bz2
import difflib
import gzip
import io
import lzma
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, BinaryIO, Literal, get_args

from grash.data.dataset import DATASET_FILE, SPLITS
from grash.errors import ConfigError, InputError

Format = Literal["text", "ntriples", "nquads", "turtle", "rdfxml", "parquet", "npy", "npz"]
FORMATS: tuple[Format, ...] = get_args(Format)
LayoutKind = Literal["encoded", "file", "splits", "arrays", "libkge", "dictionaries", "openke"]

SUFFIXES: dict[Format, tuple[str, ...]] = {
    "text": (".txt", ".tsv", ".csv", ".del", ".tab", ""),
    "ntriples": (".nt", ".ntriples"),
    "nquads": (".nq", ".nquads"),
    "turtle": (".ttl", ".turtle"),
    "rdfxml": (".rdf", ".owl", ".xml"),
    "parquet": (".parquet", ".pq"),
    "npy": (".npy",),
    "npz": (".npz",),
}
_STEMS = {"train": ("train",), "valid": ("valid", "dev", "validation", "val"), "test": ("test",)}
_SPLIT_OF_STEM = {stem: split for split, stems in _STEMS.items() for stem in stems}
_PREFIXED = re.compile(r"(.+)[_.-](" + "|".join(_SPLIT_OF_STEM) + ")")
_MAGIC: dict[bytes, Format] = {b"PAR1": "parquet", b"\x93NUMPY": "npy"}
_OPENKE = {"entities": "entity2id.txt", "relations": "relation2id.txt"} | {s: f"{s}2id.txt" for s in SPLITS}
COMPRESSED_SUFFIXES = (".gz", ".bz2", ".xz", ".zst", ".zstd")
_COMPRESSIONS = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_ARCHIVES = {b"PK\x03\x04": "a zip archive", b"Rar!": "a rar archive", b"7z\xbc\xaf\x27\x1c": "a 7z archive"}
_DAMAGE = (EOFError, OSError, zlib.error, lzma.LZMAError)

DEFAULT_FRACTION, DEFAULT_MAX = 0.05, 10_000
WHITESPACE = -1  # separator: any run of spaces and tabs
_SEPARATORS = {"tab": 9, "comma": 44, "semicolon": 59, "space": 32, "whitespace": WHITESPACE, "\\t": 9}


@dataclass(frozen=True)
class SourceOptions:
    """How to read a source, and how to split it if it has no valid or test."""

    separator: str | None = None  # one character, or tab, comma, semicolon, space, whitespace; None: guessed
    header: bool | None = None  # whether the first line names the columns; None: guessed from its words
    columns: str | tuple[int | str, ...] | None = None  # "htr", or places or names in a header of head, relation, tail
    bad_lines: Literal["error", "skip", "list"] = "error"  # lines of text that are not triples
    literals: Literal["skip", "keep"] = "skip"  # RDF triples whose object is a literal
    duplicates: Literal["drop", "keep"] = "drop"  # repeated triples of train
    valid_fraction: float | None = None  # split off train if the source has no valid; None: 5 %, at most 10,000
    test_fraction: float | None = None
    n_valid: int | None = None  # number of triples instead of a fraction
    n_test: int | None = None
    seed: int = 0  # of the split
    format: Format | None = None  # of a file whose name does not show it

    def __post_init__(self) -> None:
        if isinstance(self.columns, list):
            object.__setattr__(self, "columns", tuple(self.columns))
        parse_separator(self.separator)
        parse_columns(self.columns)
        _check_choice("bad_lines", self.bad_lines, ("error", "skip", "list"))
        _check_choice("literals", self.literals, ("skip", "keep"))
        _check_choice("duplicates", self.duplicates, ("drop", "keep"))
        _check_choice("format", self.format, (None, *FORMATS))
        for name in ("valid", "test"):
            _check_size(name, getattr(self, f"{name}_fraction"), getattr(self, f"n_{name}"))
        if (self.valid_fraction or 0) + (self.test_fraction or 0) >= 1:
            raise ConfigError("valid_fraction and test_fraction leave nothing for train. Give less than 1 in total.")
        if self.seed < 0:
            raise ConfigError(f"seed={self.seed} is negative. Give 0 or more.")

    @classmethod
    def of(cls, options: SourceOptions | None, changes: Mapping[str, Any]) -> SourceOptions:
        """Return the options with changes by keyword. Raises ConfigError for an unknown keyword."""
        known = [f.name for f in fields(cls)]
        for name in changes:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                hint = f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(known)}."
                raise ConfigError(f"There is no option {name!r} for reading a source. {hint}")
        return cls(**{**asdict(options or cls()), **changes})

    def n_split_off(self, split: Literal["valid", "test"], n_triples: int) -> int:
        """Return how many of n triples go to a split that the source does not have."""
        count, fraction = getattr(self, f"n_{split}"), getattr(self, f"{split}_fraction")
        if count is not None:
            return count
        if fraction is not None:
            return round(fraction * n_triples)
        return min(round(DEFAULT_FRACTION * n_triples), DEFAULT_MAX)


def _check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    if value not in choices:
        raise ConfigError(
            f"{name}={value!r} is unknown. Give one of {', '.join(repr(c) for c in choices if c is not None)}."
        )


def _check_size(split: str, fraction: float | None, count: int | None) -> None:
    if fraction is not None and count is not None:
        raise ConfigError(f"Both {split}_fraction and n_{split} are given. Give one of them.")
    if fraction is not None and not 0 <= fraction < 1:
        raise ConfigError(f"{split}_fraction={fraction} is out of range. Give a fraction from 0 to below 1.")
    if count is not None and count < 0:
        raise ConfigError(f"n_{split}={count} is negative. Give 0 or more.")


def parse_columns(columns: str | Sequence[int | str] | None) -> tuple[int, ...] | tuple[str, ...] | None:
    """Return the places or names of the columns of head, relation and tail of a `columns` option, or None.

    "htr" names the three columns of a file; (0, 2, 1) or "0,2,1" are places, "start,type,end" are names in a header.
    """
    if columns is None:
        return None
    if is_order(columns):
        return tuple(str(columns).lower().index(role) for role in "hrt")
    given = columns.split(",") if isinstance(columns, str) else columns
    parts = [str(part).strip() for part in given] if isinstance(given, Sequence) else []
    if all(part.lstrip("-").isdecimal() for part in parts):
        places = tuple(map(int, parts))
        if len(set(places)) == len(places) == 3 and min(places) >= 0:
            return places
    elif len({part.lower() for part in parts}) == len(parts) == 3 and all(parts):
        return tuple(parts)
    raise ConfigError(
        f"columns={columns!r} does not tell which columns are head, relation and tail. Give an order such as "
        f'"htr", three different columns counted from 0 such as (0, 2, 1), or three names of a header.'
    )


def is_order(columns: object) -> bool:
    """Return whether a `columns` option is the order of exactly three columns, such as "htr"."""
    return isinstance(columns, str) and sorted(columns.lower()) == ["h", "r", "t"]


def separator_option(separator: int) -> str:
    """Return how a separator is given as an option, e.g. comma."""
    return next((name for name, byte in _SEPARATORS.items() if byte == separator), chr(max(0, separator)))


def parse_separator(separator: str | None) -> int | None:
    """Return the byte of a `separator` option: an ASCII character, tab, comma, semicolon, space or whitespace."""
    if separator is None or separator == "auto":
        return None
    if separator in _SEPARATORS:
        return _SEPARATORS[separator]
    if len(separator) == 1 and separator.isascii() and separator not in '\n\r"':
        return ord(separator)
    raise ConfigError(
        f"separator={separator!r} is not usable. Give tab, comma, semicolon, space, whitespace or one ASCII character."
    )


@dataclass(frozen=True)
class Layout:
    kind: LayoutKind
    path: Path
    files: dict[str, Path] = field(default_factory=dict)  # by role: train, valid, test, entities, relations
    formats: dict[str, Format] = field(default_factory=dict)  # by split


def recognize(path: Path, *, file_format: Format | None = None) -> Layout:
    """Return the layout of a path. Raises InputError if there is no graph in a known layout."""
    try:
        return _recognize(Path(path), file_format)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from error


def _recognize(path: Path, file_format: Format | None) -> Layout:
    if not path.exists():
        raise InputError(_not_found(path))
    if path.is_file():
        if path.stat().st_size == 0:
            raise InputError(f"{path} is empty, expected a file with triples.")
        return Layout("file", path, {"train": path}, {"train": file_format or format_of(path)})
    if not path.is_dir():
        raise InputError(f"{path} is neither a file nor a folder.")
    if (path / DATASET_FILE).is_file():
        return Layout("encoded", path)
    return _openke(path) or _libkge(path) or _split_folder(path, file_format)


def format_of(path: Path) -> Format:
    """Return the format of a file by its first bytes or its name; text if neither shows another."""
    with path.open("rb") as file:
        start = file.read(8)
    for magic, file_format in _MAGIC.items():
        if start.startswith(magic):
            return file_format
    suffix = Path(without_compression_suffix(path.name)).suffix.lower()
    return next((f for f, suffixes in SUFFIXES.items() if suffix in suffixes), "text")


def dataset_name(path: Path) -> str:
    """Return the name of a dataset: that of its folder or file, without suffixes."""
    name = path.resolve().name
    if path.is_dir():
        return name or "unnamed"
    name = without_compression_suffix(name)
    return name.rsplit(".", 1)[0] or name or "unnamed"


def _openke(folder: Path) -> Layout | None:
    return _dictionary_layout("openke", folder, _OPENKE)


def _libkge(folder: Path) -> Layout | None:
    names = {"entities": "entity_ids.del", "relations": "relation_ids.del"} | {s: f"{s}.del" for s in SPLITS}
    if (folder / "dataset.yaml").is_file():
        settings = _libkge_settings(folder / "dataset.yaml")
        keys = {"entities": "entity_ids", "relations": "relation_ids"} | {s: s for s in SPLITS}
        for role, key in keys.items():
            given = settings.get(f"dataset.files.{key}.filename")
            names[role] = given if isinstance(given, str) else names[role]
    return _dictionary_layout("libkge", folder, names)


def _dictionary_layout(kind: LayoutKind, folder: Path, names: dict[str, str]) -> Layout | None:
    files = {role: folder / name for role, name in names.items() if (folder / name).is_file()}
    return Layout(kind, folder, files) if {"entities", "relations", "train"} <= set(files) else None


def _libkge_settings(path: Path) -> dict[str, Any]:
    """Return the settings of a dataset.yaml by dotted key; keys may be nested or dotted in the file."""
    from grash.yaml_files import read_yaml

    def dotted(value: Any, prefix: str) -> Iterable[tuple[str, Any]]:
        if not isinstance(value, dict):
            return [(prefix[:-1], value)]
        return [pair for key, inner in value.items() for pair in dotted(inner, f"{prefix}{key}.")]

    return dict(dotted(read_yaml(path), ""))


def _split_folder(folder: Path, file_format: Format | None) -> Layout:
    found = split_files(folder)
    formats = [f for f in SUFFIXES if any(f == g for _, g in found.get("train", []))]
    if file_format is not None:
        formats = [file_format] if file_format in formats else []
    if not formats:
        raise InputError(_no_graph_in(folder))
    files: dict[str, Path] = {}
    kinds: dict[str, Format] = {}
    for split in SPLITS:
        of_format = [(p, f) for p, f in found.get(split, []) if f == formats[0]] or found.get(split, [])
        if len(of_format) > 1:
            both = " and ".join(sorted(p.name for p, _ in of_format))
            raise InputError(f"{folder} contains {both}, expected one {split} file. Move the others away.")
        if of_format:
            files[split], kinds[split] = of_format[0]
    names = _name_files(folder, ("txt",) if formats[0] == "npy" else ("dict", "tsv"))
    if formats[0] == "npy":
        return Layout("arrays", folder, files | names, kinds)
    if formats[0] == "text" and len(names) == 2:
        return Layout("dictionaries", folder, files | names, kinds)
    return Layout("splits", folder, files, kinds)


def split_files(folder: Path) -> dict[str, list[tuple[Path, Format]]]:
    """Return the files of each split: train.*, valid.*, test.*, or without train, NAME_train.* of a single NAME."""
    plain: dict[str, list[tuple[Path, Format]]] = {}
    prefixed: dict[str, dict[str, list[tuple[Path, Format]]]] = {}
    for path in sorted(p for p in folder.iterdir() if p.is_file()):
        name = without_compression_suffix(path.name.lower())
        suffix = next((s for f in SUFFIXES.values() for s in f if s and name.endswith(s)), "")
        file_format = next(f for f, suffixes in SUFFIXES.items() if suffix in suffixes)
        stem = name.removesuffix(suffix) if suffix else name
        if stem in _SPLIT_OF_STEM:
            plain.setdefault(_SPLIT_OF_STEM[stem], []).append((path, file_format))
        elif match := _PREFIXED.fullmatch(stem):
            of_prefix = prefixed.setdefault(match[1], {})
            of_prefix.setdefault(_SPLIT_OF_STEM[match[2]], []).append((path, file_format))
    with_train = [splits for splits in prefixed.values() if "train" in splits]
    return plain if "train" in plain or len(with_train) != 1 else with_train[0]


def _name_files(folder: Path, suffixes: tuple[str, ...]) -> dict[str, Path]:
    compressed = ("", *COMPRESSED_SUFFIXES)
    names = {}
    for role in ("entities", "relations"):
        tries = [folder / f"{role}.{suffix}{more}" for suffix in suffixes for more in compressed]
        if found := [path for path in tries if path.is_file()]:
            names[role] = found[0]
    return names


def _not_found(path: Path) -> str:
    near: list[str] = []
    if path.parent.is_dir():
        names = [p.name for p in path.parent.iterdir() if not p.name.startswith(".")]
        near = difflib.get_close_matches(path.name, names, 3, 0.6)
        near += [n for n in names if n.split(".")[0] == path.name and n not in near][:3]
    near = [str(path.parent / name) for name in near]
    if path.parent == Path():
        from grash.data.catalog import CATALOG

        near += difflib.get_close_matches(path.name.lower(), ["world", *CATALOG], 3, 0.7)
    hint = f" Did you mean {', '.join(map(repr, near))}?" if near else ""
    return f"There is no file or folder {path}, and no dataset of that name.{hint} `grash datasets` lists the datasets."


def _no_graph_in(folder: Path) -> str:
    found = sorted(p.name + ("/" if p.is_dir() else "") for p in folder.iterdir())
    shown = ", ".join(found[:8]) + (", …" if len(found) > 8 else "") if found else "nothing"
    inside = [p for p in sorted(folder.iterdir()) if p.is_dir() and "train" in split_files(p)]
    hint = f" {inside[0]} looks like a graph." if inside else ""
    return (
        f"{folder} contains no graph that grash reads. It contains {shown}.{hint} Looked for: an encoded dataset "
        f"({DATASET_FILE}); train, valid and test files (.txt, .tsv, .csv, .del, .nt, .nq, .ttl, .rdf, .parquet, "
        f".npy, or without a suffix, also compressed); a LibKGE folder (entity_ids.del); a RotatE or DGL-KE folder "
        f"(entities.dict); an OpenKE folder (entity2id.txt)."
    )


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


def machine_bytes(root: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the memory of the machine, or of the container (cgroup 2, then 1) if it has less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            return min(total, int((root / name).read_text()))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return total


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
    compression = next((c for magic, c in _COMPRESSIONS.items() if start.startswith(magic)), None)
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
                self._raw = self._file.read(1 << 12)  # at most 128 MiB of content
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
