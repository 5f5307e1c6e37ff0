"""Exports read back with other programs' readers."""

from __future__ import annotations

import csv
from dataclasses import replace

import numpy as np
import pandas
import polars
import pytest
from pykeen.triples.utils import load_triples

from grash.data.dataset import SPLITS, Dataset
from grash.data.load import load_dataset
from grash.data.vocabulary import Vocabulary
from grash.errors import ConfigError, InputError
from small_graph import model_of, rings


def named(names: list[str]) -> Dataset:
    triples = np.array([[0, 0, 1]], np.int32)
    none = np.empty((0, 3), np.int32)
    return Dataset(triples, none, none, len(names), 1, Vocabulary.from_names(names), Vocabulary.from_names(["r"]))


def test_npy_comes_with_names(tmp_path):
    model = model_of(rings(), "rotate")
    files = model.export(tmp_path / "out", "npy")
    assert [f.name for f in files] == ["entities.npy", "entities.tsv", "relations.npy", "relations.tsv"]
    assert (np.load(tmp_path / "out" / "entities.npy") == model.entity_embeddings).all()
    assert np.load(tmp_path / "out" / "relations.npy").shape == (3, 2)
    lines = (tmp_path / "out" / "entities.tsv").read_text().splitlines()
    assert lines[2] == "2\tperson 2" and len(lines) == 12


ODD = ["a\tb", "c\nd", "e\\f", "ü 😀", '"quoted"', '"half', 'in "the" middle', "it's", " spaces ", "a,b"]


def read_by_csv(path, separator):
    with path.open(encoding="utf-8", newline="") as file:
        return [tuple(row) for row in csv.reader(file, delimiter=separator)]


def read_by_pandas(path, separator):
    return list(pandas.read_csv(path, sep=separator, header=None, dtype=str).itertuples(index=False, name=None))


def read_by_polars(path, separator):
    return polars.read_csv(path, separator=separator, has_header=False, infer_schema=False).rows()


@pytest.mark.parametrize("read", [read_by_csv, read_by_pandas, read_by_polars])
def test_odd_names_beside_arrays_are_read_back(tmp_path, read):
    model_of(named(ODD)).export(tmp_path / "out", "npy")
    assert read(tmp_path / "out" / "entities.tsv", "\t") == [(str(i), name) for i, name in enumerate(ODD)]


@pytest.mark.parametrize("read", [read_by_csv, read_by_pandas, read_by_polars])
@pytest.mark.parametrize("names", [ODD, ODD[6:]], ids=["csv", "tabs"])
def test_splits_with_odd_names_are_read_back(tmp_path, read, names, caplog):
    n = len(names)
    rows = np.stack([np.arange(n), np.zeros(n, np.int64), np.roll(np.arange(n), 1)], 1).astype(np.int32)
    none = np.empty((0, 3), np.int32)
    graph = Dataset(rows, none, rows[:1], n, 1, Vocabulary.from_names(names), Vocabulary.from_names(['of "x"']))
    files = model_of(graph).export(tmp_path / "out", "splits")
    end, separator = ("csv", ",") if names is ODD else ("txt", "\t")
    assert [f.name for f in files] == [f"test.{end}", f"train.{end}", f"valid.{end}"]
    assert ("needs quotes" in caplog.text) == (end == "csv")
    wanted = [(names[h], 'of "x"', names[t]) for h, _, t in rows.tolist()]
    assert read(tmp_path / "out" / f"train.{end}", separator) == wanted
    own = load_dataset(tmp_path / "out", separator="comma" if end == "csv" else "tab")
    assert [(own.entities.name(h), 'of "x"', own.entities.name(t)) for h, _, t in own.train.tolist()] == wanted
    assert [tuple(row) for row in load_triples(tmp_path / "out" / f"train.{end}", delimiter=separator)] == wanted


def test_splits_read_back_as_the_same_graph(tmp_path):
    model = model_of(rings())
    files = model.export(tmp_path / "out", "splits")
    assert [f.name for f in files] == ["test.txt", "train.txt", "valid.txt"]
    found, own = load_dataset(tmp_path / "out"), model.dataset
    for split in SPLITS:
        names = [
            [found.entities.name(h), found.relations.name(r), found.entities.name(t)]
            for h, r, t in found.split(split).tolist()
        ]
        mine = [
            [own.entities.name(h), own.relations.name(r), own.entities.name(t)] for h, r, t in own.split(split).tolist()
        ]
        assert names == mine


def test_word2vec_text_reads_back_exactly(tmp_path):
    model = model_of(rings())
    model.export(tmp_path / "out", "word2vec")
    header, *lines = (tmp_path / "out" / "entities.txt").read_text().splitlines()
    assert header == "12 4"
    words = [line.split(" ") for line in lines]
    assert [w[0] for w in words] == [f"person_{i}" for i in range(12)]
    assert (np.array([w[1:] for w in words], np.float32) == model.entity_embeddings).all()


@pytest.mark.parametrize("names", [["New York", "New_York"], ["a b", "a\tb"], ["x", "x"]])
def test_words_that_would_become_equal_are_refused(tmp_path, names):
    with pytest.raises(InputError, match="would both be written as"):
        model_of(named(names)).export(tmp_path / "out", "word2vec")
    assert list(tmp_path.iterdir()) == []


def test_parquet_has_ids_names_and_lists(tmp_path, monkeypatch):
    monkeypatch.setattr("grash.interop.export._ROWS", 5)  # several blocks
    model = model_of(rings())
    model.export(tmp_path / "out", "parquet")
    frame = polars.read_parquet(tmp_path / "out" / "entities.parquet")
    assert frame.schema == {"id": polars.Int32, "name": polars.String, "embedding": polars.List(polars.Float32)}
    assert frame["id"].to_list() == list(range(12))
    assert frame["name"][7] == "person 7"
    assert (np.array(frame["embedding"].to_list(), np.float32) == model.entity_embeddings).all()
    assert polars.read_parquet(tmp_path / "out" / "relations.parquet").height == 3


def test_rows_of_inverse_relations_are_named(tmp_path):
    import torch

    from grash.api.model import Model
    from grash.models import model_class

    plain = model_of(rings())
    kge = model_class("complex")(plain.kge.entity, torch.zeros(6, 4), reciprocal=True)
    model = Model(kge, plain.dataset, plain.config.changed(reciprocal=True))
    model.export(tmp_path / "out", "npy")
    lines = (tmp_path / "out" / "relations.tsv").read_text().splitlines()
    assert lines[3:] == ["3\tnext_inverse", "4\ttwo on_inverse", "5\tbeside_inverse"]


def test_only_an_export_is_overwritten(tmp_path):
    model = model_of(rings())
    model.export(tmp_path / "out")
    with pytest.raises(InputError, match="already exists"):
        model.export(tmp_path / "out")
    model.export(tmp_path / "out", "parquet", overwrite=True)
    assert not (tmp_path / "out" / "entities.npy").exists()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("dear")
    with pytest.raises(InputError, match="not of an export"):
        model.export(tmp_path / "other", overwrite=True)
    assert (tmp_path / "other" / "letter.txt").read_text() == "dear"


@pytest.mark.filterwarnings("ignore")
def test_gensim_reads_word2vec_text(tmp_path):
    from gensim.models import KeyedVectors

    model = model_of(rings(), "complex")
    model.export(tmp_path / "out", "word2vec")
    vectors = KeyedVectors.load_word2vec_format(str(tmp_path / "out" / "entities.txt"))
    assert np.array_equal(vectors["person_3"], model.entity_embeddings[3]) and len(vectors) == 12
    nearest = [name.replace("_", " ") for name, _ in vectors.most_similar("person_3", topn=3)]
    assert nearest == [answer.name for answer in model.neighbors("person 3", 3)]


def test_neo4j_files_have_its_headers_and_every_triple(tmp_path):
    model = model_of(rings(), "complex")
    assert [f.name for f in model.export(tmp_path / "out", "neo4j")] == ["nodes.csv", "relationships.csv"]
    header, *nodes = read_by_csv(tmp_path / "out" / "nodes.csv", ",")
    assert header == ("id:ID", "name", "embedding:float[]", ":LABEL")
    rows = np.array([row[2].split(";") for row in nodes], np.float32)
    assert np.array_equal(rows, model.entity_embeddings) and nodes[2][:2] == ("2", "person 2")
    header, *triples = read_by_csv(tmp_path / "out" / "relationships.csv", ",")
    assert header == (":START_ID", ":END_ID", ":TYPE", "split")
    relation = {"next": 0, "two on": 1, "beside": 2}
    for split in SPLITS:
        found = [(int(h), relation[r], int(t)) for h, t, r, name in triples if name == split]
        assert found == [tuple(t) for t in getattr(model.dataset, split).tolist()]


RDF_NAMES = [
    "http://x.org/a#1",
    "_:b0",
    "person 1",
    "<b>&amp;",
    'say "hi"',
    "a\\b",
    "ü 😀",
    "line\nend",
    "urn:x",
    "no:",
    "é:1",
]


def test_ntriples_are_read_back_with_iris_as_they_were(tmp_path):
    literal = '"two \\"words\\""@en'
    data = named([*RDF_NAMES, literal])
    n = len(RDF_NAMES)
    train = np.array([[i, 0, (i + 1) % (n + 1)] for i in range(n)], np.int32)
    (path,) = model_of(replace(data, train=train)).export(tmp_path / "out", "ntriples")
    back = load_dataset(path, n_valid=0, n_test=0, literals="keep")
    names = [back.entities.name(i) for i in range(back.n_entities)]
    assert back.n_entities == n + 1 and len(back.train) == n
    assert {"http://x.org/a#1", "_:b0", "urn:x", literal} <= set(names)
    assert "urn:entity:person%201" in names and "urn:entity:%3Cb%3E%26amp%3B" in names
    assert back.relations.name(0) == "urn:relation:r"


def test_an_unknown_format_is_a_sentence(tmp_path):
    with pytest.raises(ConfigError, match="give npy, word2vec, parquet, neo4j, splits, ntriples, pykeen, libkge"):
        model_of(rings()).export(tmp_path / "out", "pickle")
