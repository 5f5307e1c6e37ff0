"""Writers of embeddings (NumPy with TSV, word2vec text, Parquet) and of splits, a block of rows at a time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from grash.data.arrays import in_blocks
from grash.data.dataset import SPLITS, Dataset
from grash.data.vocabulary import Vocabulary
from grash.errors import InputError
from grash.kernels.bf16_rows import to_float32
from grash.models.base import KgeModel

_ROWS = 1 << 14  # rows per block
_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})
_SPACE = re.compile(r"\s")
_BREAK = re.compile(r"[\t\n\r]")


def write_npy(kge: KgeModel, dataset: Dataset, folder: Path) -> None:
    for stem, table, names in _tables(kge, dataset):
        with (folder / f"{stem}.npy").open("wb") as file:
            header = {"descr": "<f4", "fortran_order": False, "shape": tuple(table.shape)}
            np.lib.format.write_array_header_1_0(file, header)
            for _, block in _blocks(table):
                file.write(block.tobytes())
        with (folder / f"{stem}.tsv").open("w", encoding="utf-8", newline="\n") as text:
            for i in range(len(table)):
                text.write(f"{i}\t{names(i).translate(_ESCAPES)}\n")


def write_word2vec(kge: KgeModel, dataset: Dataset, folder: Path) -> None:
    _, table, names = next(_tables(kge, dataset))
    _check_distinct(names, len(table), dataset.entities)
    with (folder / "entities.txt").open("w", encoding="utf-8", newline="\n") as text:
        text.write(f"{len(table)} {table.shape[1]}\n")
        for start, block in _blocks(table):
            for i, row in enumerate(block, start):
                text.write(f"{_one_word(names(i))} {' '.join(map(str, row))}\n")


def write_parquet(kge: KgeModel, dataset: Dataset, folder: Path) -> None:
    import polars
    from polars.io.plugins import register_io_source

    schema: dict[str, Any] = {"id": polars.Int32, "name": polars.String, "embedding": polars.List(polars.Float32)}
    for stem, table, names in _tables(kge, dataset):

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


def write_splits(dataset: Dataset, folder: Path) -> None:
    entity, relation = (str if v is None else v.name for v in (dataset.entities, dataset.relations))
    named = (entity, relation, entity)
    for split in SPLITS:
        with (folder / f"{split}.txt").open("w", encoding="utf-8", newline="\n") as text:
            for _, block in in_blocks(dataset.split(split), _ROWS):
                for triple in block.tolist():
                    names = [name(i) for name, i in zip(named, triple)]
                    if any(_BREAK.search(name) for name in names):
                        raise InputError(
                            f"A name in {names} has a tab or a line end, which {split}.txt cannot contain."
                        )
                    text.write("\t".join(names) + "\n")


WRITERS: dict[str, Callable[[KgeModel, Dataset, Path], None]] = {
    "npy": write_npy,
    "word2vec": write_word2vec,
    "parquet": write_parquet,
}


def _tables(kge: KgeModel, dataset: Dataset) -> Iterator[tuple[str, Tensor, Callable[[int], str]]]:
    """Yield (file stem, table, name of a row) for entities and relations; names of inverse relations end in _inverse."""
    entity, relation = (str if v is None else v.name for v in (dataset.entities, dataset.relations))
    n = dataset.n_relations
    yield "entities", kge.entity, entity
    yield "relations", kge.relation, lambda i: relation(i) if i < n else f"{relation(i - n)}_inverse"


def _blocks(table: Tensor) -> Iterator[tuple[int, NDArray[np.float32]]]:
    for start in range(0, len(table), _ROWS):
        yield start, to_float32(table[start : start + _ROWS]).cpu().numpy().astype("<f4", copy=False)


def _check_distinct(names: Callable[[int], str], n: int, vocabulary: Vocabulary | None) -> None:
    """Raise an error if two names become one word. Keeps a hash of 8 bytes per name with a space, not the names."""
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
