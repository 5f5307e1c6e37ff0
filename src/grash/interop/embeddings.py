"""A model's embeddings for other programs (NumPy and TSV, word2vec text, Parquet), the splits of its graph, and its
configuration.

Folders are written whole or not at all, a block of rows at a time.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from grash.data.arrays import in_blocks
from grash.data.dataset import SPLITS, Dataset
from grash.data.vocabulary import Vocabulary
from grash.errors import ConfigError, InputError
from grash.files import atomic_folder
from grash.interop.config import CONFIG_FILES, ConfigFormat, export_config
from grash.kernels.bf16_rows import to_float32

if TYPE_CHECKING:
    from grash.api.model import Model


Format = Literal["npy", "word2vec", "parquet", "splits", "pykeen", "libkge"]

_ROWS = 1 << 14  # written together
_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})
_SPACE = re.compile(r"\s")
_BREAK = re.compile(r"[\t\n\r]")
_log = logging.getLogger(__name__)


def export(
    model: Model,
    folder: str | Path,
    format: Format = "npy",
    *,
    dataset: str | Path | None = None,
    overwrite: bool = False,
) -> list[Path]:
    """Writes the folder and gives back its files.

    npy        entities.npy (E, D), relations.npy, entities.tsv and relations.tsv (id, tab, name; in names a
               backslash, tab or line end is written as \\\\, \\t, \\n or \\r)
    word2vec   entities.txt: a line "E D", then per entity its name and D numbers; spaces in names become
               underscores, and names that would become equal are an error
    parquet    entities.parquet and relations.parquet: id, name, embedding (list of float32)
    splits     train.txt, valid.txt and test.txt of the model's dataset: head, relation, tail by name, with tabs; a
               name with a tab or a line end is an error
    pykeen     pykeen.json, a pipeline; what it cannot carry over is logged as warnings, and stands in the file
    libkge     libkge.yaml, a training, in the same way

    dataset, with pykeen and libkge: the graph as that tool knows it, or for PyKEEN a folder of splits.
    """
    check_format(format, dataset)
    if format in CONFIG_FILES:
        path, said = export_config(
            model.config, folder, cast(ConfigFormat, format), graph=model.dataset.name,
            dataset=None if dataset is None else str(dataset), splits='model.export("FOLDER", "splits")',
            overwrite=overwrite,
        )  # fmt: skip
        for line in said:
            _log.warning("%s", line)
        return [path]
    if format == "splits":
        return export_splits(model.dataset, folder, overwrite=overwrite)
    return _write(folder, lambda aside: _WRITERS[format](model, aside), overwrite)


def export_splits(dataset: Dataset, folder: str | Path, *, overwrite: bool = False) -> list[Path]:
    """Writes train.txt, valid.txt and test.txt of a graph and gives back the files."""
    return _write(folder, lambda aside: _write_splits(dataset, aside), overwrite)


def check_format(format: str, dataset: object = None) -> None:
    """ConfigError for a format that is none, or that has no use for a dataset which is given."""
    if format not in FORMATS:
        raise ConfigError(f"format={format!r} is unknown: give {', '.join(FORMATS)}.")
    if dataset is not None and format not in CONFIG_FILES:
        raise ConfigError(
            f"dataset (--dataset) goes with the formats pykeen and libkge, and {format} is given: leave it out."
        )


def _write(folder: str | Path, write: Callable[[Path], None], overwrite: bool) -> list[Path]:
    folder = Path(folder)
    if overwrite and folder.exists() and not _is_export(folder):
        raise InputError(f"{folder} holds something else than an export, so it is not overwritten: give another.")
    with atomic_folder(folder, overwrite=overwrite) as aside:
        write(aside)
        names = sorted(path.name for path in aside.iterdir())
    return [folder / name for name in names]


def _write_npy(model: Model, folder: Path) -> None:
    for stem, table, names in _tables(model):
        with (folder / f"{stem}.npy").open("wb") as file:
            header = {"descr": "<f4", "fortran_order": False, "shape": tuple(table.shape)}
            np.lib.format.write_array_header_1_0(file, header)
            for _, block in _blocks(table):
                file.write(block.tobytes())
        with (folder / f"{stem}.tsv").open("w", encoding="utf-8", newline="\n") as text:
            for i in range(len(table)):
                text.write(f"{i}\t{names(i).translate(_ESCAPES)}\n")


def _write_word2vec(model: Model, folder: Path) -> None:
    _, table, names = next(_tables(model))
    _check_distinct(names, len(table), model.dataset.entities)
    with (folder / "entities.txt").open("w", encoding="utf-8", newline="\n") as text:
        text.write(f"{len(table)} {table.shape[1]}\n")
        for start, block in _blocks(table):
            for i, row in enumerate(block, start):
                text.write(f"{_one_word(names(i))} {' '.join(map(_shortest, row))}\n")


def _write_parquet(model: Model, folder: Path) -> None:
    import polars
    from polars.io.plugins import register_io_source

    schema: dict[str, Any] = {"id": polars.Int32, "name": polars.String, "embedding": polars.List(polars.Float32)}
    for stem, table, names in _tables(model):

        def frames(
            with_columns: Any,
            predicate: Any,
            n_rows: Any,
            batch_size: Any,
            table: Tensor = table,
            names: Callable[[int], str] = names,
        ) -> Iterator[polars.DataFrame]:
            for start, block in _blocks(table):
                ids = np.arange(start, start + len(block), dtype=np.int32)
                rows = polars.Series(block).cast(polars.List(polars.Float32))
                yield polars.DataFrame({"id": ids, "name": [names(int(i)) for i in ids], "embedding": rows})

        register_io_source(frames, schema=schema).sink_parquet(folder / f"{stem}.parquet")


def _write_splits(dataset: Dataset, folder: Path) -> None:
    entity, relation = (str if v is None else v.name for v in (dataset.entities, dataset.relations))
    named = (entity, relation, entity)
    for split in SPLITS:
        with (folder / f"{split}.txt").open("w", encoding="utf-8", newline="\n") as text:
            for _, block in in_blocks(dataset.split(split), _ROWS):
                for triple in block.tolist():
                    names = [name(i) for name, i in zip(named, triple)]
                    if any(_BREAK.search(name) for name in names):
                        raise InputError(f"{names} has a name with a tab or a line end, which {split}.txt cannot hold.")
                    text.write("\t".join(names) + "\n")


_WRITERS: dict[str, Callable[[Model, Path], None]] = {
    "npy": _write_npy,
    "word2vec": _write_word2vec,
    "parquet": _write_parquet,
}
FORMATS: tuple[Format, ...] = get_args(Format)
_FILES = {
    *(f"{stem}.{end}" for stem in ("entities", "relations") for end in ("npy", "tsv", "parquet")),
    "entities.txt",
    *(f"{split}.txt" for split in SPLITS),
}


def _tables(model: Model) -> Iterator[tuple[str, Tensor, Callable[[int], str]]]:
    """(file stem, table, name of a row) for entities and relations; rows of inverse relations end in _inverse."""
    n = model.dataset.n_relations

    def relation(i: int) -> str:
        return model.relation_name(i) if i < n else f"{model.relation_name(i - n)}_inverse"

    yield "entities", model.kge.entity, model.entity_name
    yield "relations", model.kge.relation, relation


def _blocks(table: Tensor) -> Iterator[tuple[int, NDArray[np.float32]]]:
    for start in range(0, len(table), _ROWS):
        yield start, to_float32(table[start : start + _ROWS]).cpu().numpy().astype("<f4", copy=False)


def _check_distinct(names: Callable[[int], str], n: int, vocabulary: Vocabulary | None) -> None:
    """InputError if two names become one word. Eight bytes per name with a space are kept, not the names."""
    if vocabulary is None:
        return
    hashes = np.zeros(n, np.uint64)
    for i in range(n):
        name, word = names(i), _one_word(names(i))
        if word == name:
            if vocabulary.find(name) != i:
                raise _clash(name, name, word)
            continue
        if vocabulary.find(word) is not None:
            raise _clash(name, word, word)
        digest = blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        hashes[i] = int.from_bytes(digest, "little")
    values, counts = np.unique(hashes[hashes != 0], return_counts=True)
    seen: dict[str, str] = {}
    for i in np.flatnonzero(np.isin(hashes, values[counts > 1])).tolist():
        name, word = names(i), _one_word(names(i))
        if word in seen:
            raise _clash(seen[word], name, word)
        seen[word] = name


def _clash(first: str, second: str, word: str) -> InputError:
    return InputError(
        f"The entities {first!r} and {second!r} would both be written as {word!r}, since word2vec text has no spaces "
        f"in names: export as npy or parquet."
    )


def _one_word(name: str) -> str:
    return _SPACE.sub("_", name)


def _shortest(value: np.float32) -> str:
    """The shortest decimal that reads back as the same float32."""
    return str(value)


def _is_export(folder: Path) -> bool:
    return folder.is_dir() and {path.name for path in folder.iterdir()} <= _FILES
