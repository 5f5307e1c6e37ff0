"""Export for other programs: the embeddings of a model, the splits of its graph, or its configuration.

Embeddings and splits are written a block of rows at a time. `pykeen.py` and `libkge.py` translate a configuration; the
file lists the settings that the other tool does not have.
"""

from __future__ import annotations

import csv
import logging
import re
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from grash.data.arrays import in_blocks
from grash.data.dataset import SPLITS, Dataset
from grash.data.iris import ntriples_line
from grash.data.vocabulary import Vocabulary
from grash.errors import ConfigError, FormatError, InputError
from grash.files import atomic_file, atomic_folder, check_absent, read_json, write_json
from grash.interop.libkge import config_to_libkge, libkge_dataset
from grash.interop.pykeen import config_to_pykeen, pykeen_dataset
from grash.kernels.storage import to_float32
from grash.models.base import KgeModel
from grash.models.store import SCHEMA, VERSION
from grash.optional import optional_import
from grash.training.config import TrainConfig, make_config, read_config
from grash.yaml_files import read_yaml

Format = Literal["npy", "word2vec", "parquet", "neo4j", "splits", "ntriples", "pykeen", "libkge"]
FORMATS: tuple[Format, ...] = get_args(Format)
GRAPH_FORMATS = ("splits", "ntriples")  # of a graph; no model is needed
CONFIG_FILES = {"pykeen": "pykeen.json", "libkge": "libkge.yaml"}
_FILES = {
    *(f"{stem}.{end}" for stem in ("entities", "relations") for end in ("npy", "tsv", "parquet")),
    "entities.txt",
    *(f"{split}.{end}" for split in SPLITS for end in ("txt", "csv")),
    *("nodes.csv", "relationships.csv", "graph.nt"),
}
_ROWS = 1 << 14  # rows per block
_SPACE = re.compile(r"\s")
_NEEDS_QUOTES = re.compile(r'^"|[\t\n\r]')  # in a file with tabs; readers disagree about quotes in such files
_log = logging.getLogger(__name__)


def export_model(
    kge: KgeModel,
    dataset: Dataset,
    config: TrainConfig,
    folder: str | Path,
    format: Format = "npy",
    *,
    dataset_there: str | Path | None = None,
    overwrite: bool = False,
) -> list[Path]:
    """Write the folder and return its files. A folder is written completely or not at all.

    npy        entities.npy (E, D), relations.npy, entities.tsv and relations.tsv (id, tab, name; quoted as in CSV if
               the name has a quotation mark, tab or line end)
    word2vec   entities.txt: a line "E D", then the name and D numbers of each entity; spaces in names become
               underscores, and names that would become equal are an error
    parquet    entities.parquet and relations.parquet: id, name, embedding (list of float32)
    neo4j      nodes.csv (id, name, embedding) and relationships.csv (start, end, type, split), with the headers that
               `neo4j-admin database import` reads
    splits     train.txt, valid.txt and test.txt of the dataset: names of head, relation and tail, with tabs between;
               if a name starts with a quotation mark or has a tab or line end, train.csv, valid.csv and test.csv
    ntriples   graph.nt: the triples of all splits; names that are no IRIs become urn:entity:… and urn:relation:…
    pykeen     pykeen.json, a pipeline; settings that PyKEEN does not have are logged, and listed in the file
    libkge     libkge.yaml, a training, likewise

    dataset_there: with pykeen and libkge, the name of the graph in that tool, or for PyKEEN a folder of splits.
    """
    check_format(format, dataset_there)
    if format in CONFIG_FILES:
        known = {"graph": dataset.name, "dataset": dataset_there, "splits": 'model.export("FOLDER", "splits")'}
        path, notes = export_config(config, folder, format, overwrite=overwrite, **known)  # type: ignore[arg-type]
        for note in notes:
            _log.warning("%s", note)
        return [path]
    if format in GRAPH_FORMATS:
        return export_graph(dataset, folder, format, overwrite=overwrite)
    writers = {"npy": _write_npy, "word2vec": _write_word2vec, "parquet": _write_parquet, "neo4j": _write_neo4j}
    writer = writers[format]
    return _write(folder, lambda temporary: writer(kge, dataset, temporary), overwrite)


def export_graph(dataset: Dataset, folder: str | Path, format: str, *, overwrite: bool = False) -> list[Path]:
    """Write a graph as splits or ntriples, and return the files."""
    writer = _write_splits if format == "splits" else _write_ntriples
    return _write(folder, lambda temporary: writer(dataset, temporary), overwrite)


def export_config(
    config: TrainConfig,
    folder: str | Path,
    format: str,
    *,
    graph: str | None = None,
    dataset: str | Path | None = None,
    splits: str = "grash export GRAPH --format splits -o FOLDER",
    overwrite: bool = False,
) -> tuple[Path, list[str]]:
    """Write pykeen.json or libkge.yaml into the folder; return the file and notes for the user.

    The notes list settings without a counterpart and how to give the graph to the other tool.
    graph: our name of the graph, which is translated. dataset: instead, its name in the other tool, or for PyKEEN a
    folder with train.txt, valid.txt and test.txt. splits: the command or call that writes these.
    """
    if format not in CONFIG_FILES:
        raise ConfigError(f"format={format!r} is unknown: give {' or '.join(CONFIG_FILES)}.")
    path = Path(folder) / CONFIG_FILES[format]
    if not overwrite:
        check_absent(path)
    advice = None
    if dataset is None:
        if graph is None:
            raise InputError(f"The graph is not known: give its name in {format} with --dataset (dataset=).")
        dataset, advice = (pykeen_dataset if format == "pykeen" else libkge_dataset)(graph, splits)
    if format == "pykeen":
        content, left_out = config_to_pykeen(config, str(dataset))
        write_json(path, content)
    else:
        text, left_out = config_to_libkge(config, str(dataset))
        with atomic_file(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return path, [f"not carried over: {line}" for line in left_out] + ([advice] if advice else [])


def check_format(format: str, dataset: object = None) -> None:
    """Raise an error for an unknown format, or for a dataset that the format does not use."""
    if format not in FORMATS:
        raise ConfigError(f"format={format!r} is unknown: give {', '.join(FORMATS)}.")
    if dataset is not None and format not in CONFIG_FILES:
        raise ConfigError(f"--dataset (dataset=) is for the formats pykeen and libkge, not {format}: leave it out.")


def find_config(source: str | Path) -> tuple[TrainConfig, str | None]:
    """Return the configuration of a model folder, a run folder or a YAML file, and the name of its graph if known."""
    source = Path(source)
    if not source.is_dir():
        return read_config(source), None
    if (source / "model.json").is_file():
        record = read_json(source / "model.json", schema=SCHEMA, version=VERSION)
        try:
            return make_config(record["config"]), str(record["dataset"]["name"])
        except (ConfigError, KeyError, TypeError) as error:
            raise FormatError(f"{source} is a damaged model folder: its config is wrong ({error}).") from error
    if (source / "best.yaml").is_file():
        return read_config(source / "best.yaml"), _searched_graph(source)
    raise InputError(
        f"{source} has no configuration: give a model folder, a YAML file, or the run folder of a finished search "
        f"(with best.yaml)."
    )


def _write(folder: str | Path, write: Callable[[Path], None], overwrite: bool) -> list[Path]:
    folder = Path(folder)
    export = not folder.exists() or (folder.is_dir() and {path.name for path in folder.iterdir()} <= _FILES)
    if overwrite and not export:
        raise InputError(f"{folder} has files that are not of an export, so it is not overwritten: give another.")
    with atomic_folder(folder, overwrite=overwrite) as temporary:
        write(temporary)
        names = sorted(path.name for path in temporary.iterdir())
    return [folder / name for name in names]


def _write_npy(kge: KgeModel, dataset: Dataset, folder: Path) -> None:
    for stem, table, names in _tables(kge, dataset):
        with (folder / f"{stem}.npy").open("wb") as file:
            header = {"descr": "<f4", "fortran_order": False, "shape": tuple(table.shape)}
            np.lib.format.write_array_header_1_0(file, header)
            for _, block in _blocks(table):
                file.write(block.tobytes())
        with (folder / f"{stem}.tsv").open("w", encoding="utf-8", newline="") as text:
            csv.writer(text, "excel-tab", lineterminator="\n").writerows((i, names(i)) for i in range(len(table)))


def _write_word2vec(kge: KgeModel, dataset: Dataset, folder: Path) -> None:
    _, table, names = next(_tables(kge, dataset))
    _check_distinct(names, len(table), dataset.entities)
    with (folder / "entities.txt").open("w", encoding="utf-8", newline="\n") as text:
        text.write(f"{len(table)} {table.shape[1]}\n")
        for start, block in _blocks(table):
            for i, row in enumerate(block, start):
                text.write(f"{_one_word(names(i))} {' '.join(map(str, row))}\n")


def _write_parquet(kge: KgeModel, dataset: Dataset, folder: Path) -> None:
    polars = optional_import("polars", extra="parquet", purpose="An export as Parquet")
    plugins = optional_import("polars.io.plugins", extra="parquet", purpose="An export as Parquet")
    schema: dict[str, Any] = {"id": polars.Int32, "name": polars.String, "embedding": polars.List(polars.Float32)}
    for stem, table, names in _tables(kge, dataset):

        def frames(*_: Any, table: Tensor = table, names: Callable[[int], str] = names) -> Iterator[Any]:
            for start, block in _blocks(table):
                ids = np.arange(start, start + len(block), dtype=np.int32)
                rows = polars.Series(block).cast(polars.List(polars.Float32))
                yield polars.DataFrame({"id": ids, "name": [names(int(i)) for i in ids], "embedding": rows})

        plugins.register_io_source(frames, schema=schema).sink_parquet(folder / f"{stem}.parquet")


def _write_splits(dataset: Dataset, folder: Path) -> None:
    """Write files with tabs and without quotes, or CSV files if a name needs quotes: what all readers read alike."""
    vocabularies = (dataset.entities, dataset.relations)
    quoted = any(_NEEDS_QUOTES.search(name) for names in vocabularies if names is not None for name in names)
    if quoted:
        _log.warning(
            "A name needs quotes, so the splits are CSV files: PyKEEN reads them with load_triples(path, ',')."
        )
    entity, relation = (str if v is None else v.name for v in vocabularies)
    for split in SPLITS:
        with (folder / f"{split}.{'csv' if quoted else 'txt'}").open("w", encoding="utf-8", newline="") as text:
            rows = csv.writer(text, lineterminator="\n")
            for _, block in in_blocks(dataset.split(split), _ROWS):
                for h, r, t in block.tolist():
                    names = (entity(h), relation(r), entity(t))
                    rows.writerow(names) if quoted else text.write("\t".join(names) + "\n")


def _write_neo4j(kge: KgeModel, dataset: Dataset, folder: Path) -> None:
    _, table, names = next(_tables(kge, dataset))
    with (folder / "nodes.csv").open("w", encoding="utf-8", newline="") as text:
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(("id:ID", "name", "embedding:float[]", ":LABEL"))
        for start, block in _blocks(table):
            rows.writerows((i, names(i), ";".join(map(str, row)), "Entity") for i, row in enumerate(block, start))
    relation = str if dataset.relations is None else dataset.relations.name
    with (folder / "relationships.csv").open("w", encoding="utf-8", newline="") as text:
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow((":START_ID", ":END_ID", ":TYPE", "split"))
        for split in SPLITS:
            for _, block in in_blocks(dataset.split(split), _ROWS):
                rows.writerows((h, t, relation(r), split) for h, r, t in block.tolist())


def _write_ntriples(dataset: Dataset, folder: Path) -> None:
    entity, relation = (str if v is None else v.name for v in (dataset.entities, dataset.relations))
    with (folder / "graph.nt").open("w", encoding="utf-8", newline="\n") as text:
        for split in SPLITS:
            for _, block in in_blocks(dataset.split(split), _ROWS):
                for h, r, t in block.tolist():
                    text.write(ntriples_line(entity(h), relation(r), entity(t)))


def _tables(kge: KgeModel, dataset: Dataset) -> Iterator[tuple[str, Tensor, Callable[[int], str]]]:
    """Yield (file stem, table, name of a row) for entities and relations; inverse relations end in _inverse."""
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


def _searched_graph(run: Path) -> str | None:
    """Return the name of the graph in search.yaml."""
    try:
        return str(read_yaml(run / "search.yaml")["dataset"]["name"])
    except (InputError, KeyError, TypeError):
        return None
