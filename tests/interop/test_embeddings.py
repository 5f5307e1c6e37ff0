"""Exports read back with other programs' readers."""

from __future__ import annotations

import numpy as np
import polars
import pytest

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


def test_odd_names_keep_one_line_each(tmp_path):
    names = ["a\tb", "c\nd", "e\\f", "ü 😀"]
    model_of(named(names)).export(tmp_path / "out", "npy")
    lines = (tmp_path / "out" / "entities.tsv").read_text(encoding="utf-8").splitlines()
    assert lines == ["0\ta\\tb", "1\tc\\nd", "2\te\\\\f", "3\tü 😀"]


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
    with pytest.raises(InputError, match="a tab or a line end"):
        model_of(named(["a\tb", "c"])).export(tmp_path / "other", "splits")
    assert not (tmp_path / "other").exists()


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


def test_an_unknown_format_is_a_sentence(tmp_path):
    with pytest.raises(ConfigError, match="give npy, word2vec, parquet, splits, pykeen, libkge"):
        model_of(rings()).export(tmp_path / "out", "pickle")
