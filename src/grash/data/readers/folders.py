"""Recognize what a source is: a file of some format, or a folder in one of the usual layouts of graphs.

Looks at file names and first bytes only; load.py reads the files.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from grash.data.dataset import DATASET_FILE, SPLITS
from grash.data.readers.options import Format
from grash.data.readers.streams import COMPRESSED_SUFFIXES, without_compression_suffix
from grash.errors import InputError

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
    import yaml

    try:
        content = yaml.safe_load(path.read_bytes())
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{path} is not YAML ({str(error).splitlines()[0]}).") from error

    def dotted(value: Any, prefix: str) -> Iterable[tuple[str, Any]]:
        if not isinstance(value, dict):
            return [(prefix[:-1], value)]
        return [pair for key, inner in value.items() for pair in dotted(inner, f"{prefix}{key}.")]

    return dict(dotted(content, ""))


def _split_folder(folder: Path, file_format: Format | None) -> Layout:
    found = _split_files(folder)
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


def _split_files(folder: Path) -> dict[str, list[tuple[Path, Format]]]:
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
    hint = f" Did you mean {', '.join(repr(str(path.parent / n)) for n in near)}?" if near else ""
    return f"There is no file or folder {path}.{hint} Public datasets are listed by `grash datasets`."


def _no_graph_in(folder: Path) -> str:
    found = sorted(p.name + ("/" if p.is_dir() else "") for p in folder.iterdir())
    shown = ", ".join(found[:8]) + (", …" if len(found) > 8 else "") if found else "nothing"
    inside = [p for p in sorted(folder.iterdir()) if p.is_dir() and "train" in _split_files(p)]
    hint = f" {inside[0]} looks like a graph." if inside else ""
    return (
        f"{folder} contains no graph that grash reads. It contains {shown}.{hint} Looked for: an encoded dataset "
        f"({DATASET_FILE}); train, valid and test files (.txt, .tsv, .csv, .del, .nt, .nq, .ttl, .rdf, .parquet, "
        f".npy, or without a suffix, also compressed); a LibKGE folder (entity_ids.del); a RotatE or DGL-KE folder "
        f"(entities.dict); an OpenKE folder (entity2id.txt)."
    )
