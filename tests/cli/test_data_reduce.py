"""grash reduce: what it writes, prints, draws and refuses."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from grash.data.dataset import Dataset
from grash.data.load import load_dataset
from grash.reduction.cores import peel
from grash.reduction.subgraph import cut
from small_graph import grash, rings, write_tsv


@pytest.fixture(scope="module")
def world() -> Dataset:
    return load_dataset("world")


def test_a_subgraph_is_written_with_its_names(tmp_path: Path, world: Dataset) -> None:
    ran = grash("reduce", "world", "--fraction", "1/8", "--method", "core-order", "-o", tmp_path / "small")
    assert ran.code == 0, ran.err
    small = Dataset.load(tmp_path / "small")
    expected = cut(world, peel(world.train, world.n_entities), 0.125, seed=0)
    assert np.array_equal(small.train, expected.dataset.train) and np.array_equal(small.valid, expected.dataset.valid)
    assert small.entities is not None and world.entities is not None
    assert small.entities.names(range(5)) == world.entities.names(expected.entity_ids[:5])
    assert small.provenance["reduced_from"] == "world"
    assert small.provenance["reduction"] == {
        "method": "kcore", "reduction": "core-order", "degree": "neighbors", "fraction": "1/8", "seed": 0,
    }  # fmt: skip
    aim = len(world.train) // 8
    missed = aim - len(small.train)
    assert f"k = {expected.k}. Target 0.125, or {aim} train triples; missed by {missed}." in ran.out
    assert f"{len(small.train):,}" in ran.out and f"{small.n_relations}" in ran.out
    assert grash("describe", tmp_path / "small").code == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("--fraction", 0.25, "--method", "k-core", "--degree", "triples"),
        ("--fraction", 0.25, "--method", "triples"),
        ("--fraction", 0.25, "--method", "walk", "--length", 5),
        ("--starts", 30, "--method", "walk", "--seed", 3),
        ("--fraction", 0.25, "--method", "kgtuner"),
        ("--fraction", 0.01, "--method", "k-core"),
        ("--fraction", 0.95),
    ],
)
def test_every_method_has_a_document(tmp_path: Path, words: tuple[object, ...]) -> None:
    ran = grash("reduce", "world", *words, "-o", tmp_path / "small", "--json")
    assert ran.code == 0, ran.err
    document = json.loads(ran.out)
    small = Dataset.load(tmp_path / "small")
    assert document["n_triples"] == {"train": len(small.train), "valid": len(small.valid)}
    assert (document["n_entities"], document["n_relations"]) == (small.n_entities, small.n_relations)
    assert document["fraction"] <= document["target"] or document["whole"]
    again = grash("reduce", "world", *words, "-o", tmp_path / "small", "--overwrite")
    assert again.code == 0 and "train triples" in again.out


def test_the_folder_is_named_after_graph_and_fraction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_tsv(rings(), tmp_path / "rings.tsv")
    assert grash("reduce", "rings.tsv", "--fraction", "0.5").code == 0
    assert Dataset.load(tmp_path / "rings-0.5.grash").name == "rings-0.5"
    ran = grash("reduce", "rings.tsv", "--fraction", "0.5")
    assert ran.code == 2 and "rings-0.5.grash already exists" in ran.err


def test_a_graph_without_names_keeps_its_numbers_as_names(tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", load_dataset("world").train)
    ran = grash("reduce", tmp_path / "ids.npy", "--fraction", "0.1", "-o", tmp_path / "small")
    assert ran.code == 0, ran.err
    full, small = load_dataset(tmp_path / "ids.npy"), Dataset.load(tmp_path / "small")
    assert small.entities is not None
    ids = cut(full, peel(full.train, full.n_entities), 0.1, seed=0).entity_ids
    assert small.entities.names(range(small.n_entities)) == [str(i) for i in ids]


def test_the_core_order_is_drawn(tmp_path: Path) -> None:
    picture = tmp_path / "cores.svg"
    ran = grash("reduce", "world", "--fraction", "0.125", "-o", tmp_path / "small", "--plot", picture)
    assert ran.code == 0, ran.err
    drawn = ElementTree.parse(picture).getroot()
    texts = {element.text for element in drawn.iter("{http://www.w3.org/2000/svg}text")}
    assert {"0.125", "train triples", "entities", "relations"} <= texts and any("k up to" in text for text in texts)
    paths = [element.get("d", "") for element in drawn.iter("{http://www.w3.org/2000/svg}path")]
    assert len(paths) == 3 and all("nan" not in d and d.count("L") > 50 for d in paths)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "is not clear: give --fraction"),
        (("--method", "walk"), "give either --fraction or --starts"),
        (("--fraction", "0"), "--fraction 0: give a number above 0"),
        (("--fraction", "1.5"), "--fraction 1.5: give a number above 0"),
        (("--fraction", "1/0"), "--fraction 1/0: give a number above 0"),
        (("--fraction", "some"), "--fraction some: give a number above 0"),
        (("--fraction", "0.00001"), "leaves none to train on: give a larger fraction"),
        (("--fraction", "0.5", "--length", 3), "only for --method walk, not for core-order"),
        (("--fraction", "0.5", "--method", "triples", "--plot", "x.svg"), "--plot draws cores"),
        (("--fraction", "0.5", "--plot", "x.jpeg"), "give a name that ends in .svg"),
        (("--fraction", "0.5", "--method", "walk", "--length", 0), "give 1 or more of each"),
        (("--fraction", "0.5", "--method", "magic"), "kgtuner"),
    ],
)
def test_mistakes_are_sentences(tmp_path: Path, words: tuple[object, ...], sentence: str) -> None:
    ran = grash("reduce", "world", *words, "-o", tmp_path / "small")
    assert ran.code == 2 and sentence in ran.err, ran.err
    assert ran.err.count("\n") == 1
    assert not (tmp_path / "small").exists()
