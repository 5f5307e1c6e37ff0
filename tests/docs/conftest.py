"""Fixtures for tests of the pages: a model, a search, and a folder with the files that the pages mention."""

from __future__ import annotations

import bz2
import gzip
import importlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import grash
from docs.pages import ROOT, TINY_SEARCH
from grash.models import MODELS
from small_graph import grash as run_grash


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder of the bundled graph, trained very briefly."""
    folder = tmp_path_factory.mktemp("docs") / "world"
    grash.train("world", dim=8, epochs=2, negatives_head=20, negatives_tail=20, out=folder, device="cpu")
    return folder


@pytest.fixture(scope="session")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder of a very small search on the bundled graph."""
    folder = tmp_path_factory.mktemp("docs") / "search"
    assert run_grash("search", "world", "-o", str(folder), *TINY_SEARCH).code == 0
    return folder


@pytest.fixture
def workdir(tmp_path: Path, trained: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with the files that the pages mention. MODELS is restored afterwards."""
    monkeypatch.chdir(tmp_path)
    write_sources(tmp_path)
    (tmp_path / "questions.tsv").write_text("Bristol\tlocated_in\t?\n?\thas_capital\tLima\n")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "runs").mkdir()
    before = dict(MODELS)
    yield tmp_path
    MODELS.clear()
    MODELS.update(before)


def write_sources(folder: Path) -> None:
    """Write a small graph in every format of docs/how-to/own-dataset.md, under the names used there."""
    people = [f"person {i}" for i in range(20)]
    triples = [(people[i], r, people[(i + s) % 20]) for r, s in (("knows", 1), ("likes", 3)) for i in range(20)]
    ids = np.array([[i, r, (i + s) % 20] for r, s in ((0, 1), (1, 3)) for i in range(20)], np.int32)
    tsv = "".join(f"{h}\t{r}\t{t}\n" for h, r, t in triples)
    numbers = "".join("\t".join(map(str, row)) + "\n" for row in ids.tolist())
    listed = {"entities": people, "relations": ["knows", "likes"]}
    (folder / "people.tsv").write_text(tsv)
    (folder / "people.tsv.gz").write_bytes(gzip.compress(tsv.encode()))
    (folder / "people.csv").write_text(
        "subject,predicate,object\n" + "".join(f'"{h}",{r},"{t}"\n' for h, r, t in triples)
    )
    (folder / "other.csv").write_text("".join(f"{h};{t};{r}\n" for h, r, t in triples))
    (folder / "wide.tsv").write_text("".join(f"{r}\t{h}\tx\ty\t{t}\n" for h, r, t in triples))
    iri = [" ".join(f"<http://example.org/{x.replace(' ', '_')}>" for x in triple) + " .\n" for triple in triples]
    (folder / "people.nt").write_text("".join(iri))
    (folder / "people.ttl").write_text("".join(iri) + '<http://example.org/person_1> <http://example.org/age> "7" .\n')
    polars = importlib.import_module("polars")
    columns = dict(zip(("head", "relation", "tail"), map(list, zip(*triples))))
    polars.DataFrame(columns).write_parquet(folder / "people.parquet")
    np.save(folder / "ids.npy", ids)
    write_folders(folder, tsv, numbers, ids, listed)


def write_folders(folder: Path, tsv: str, numbers: str, ids: np.ndarray, listed: dict[str, list[str]]) -> None:
    for name in ("splits", "arrays", "libkge_folder", "rotate_folder", "openke_folder"):
        (folder / name).mkdir()
    (folder / "splits" / "train.txt").write_text(tsv)
    (folder / "splits" / "test.txt.bz2").write_bytes(bz2.compress(tsv.splitlines()[0].encode()))
    np.save(folder / "arrays" / "train.npy", ids)
    for stem, names in listed.items():
        one, numbered = stem.removesuffix("ies").removesuffix("s"), "".join(f"{i}\t{n}\n" for i, n in enumerate(names))
        one = {"entit": "entity"}.get(one, one)
        (folder / "arrays" / f"{stem}.txt").write_text("\n".join(names))
        (folder / "libkge_folder" / f"{one}_ids.del").write_text(numbered)
        (folder / "rotate_folder" / f"{stem}.dict").write_text(numbered)
        swapped = "".join(f"{n}\t{i}\n" for i, n in enumerate(names))
        (folder / "openke_folder" / f"{one}2id.txt").write_text(f"{len(names)}\n{swapped}")
    (folder / "libkge_folder" / "train.del").write_text(numbers)
    (folder / "rotate_folder" / "train.txt").write_text(tsv)
    swapped = "".join(f"{h} {t} {r}\n" for h, r, t in ids.tolist())
    (folder / "openke_folder" / "train2id.txt").write_text(f"{len(ids)}\n{swapped}")
