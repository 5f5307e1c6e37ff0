"""A model folder from elsewhere: whatever its files hold, a sentence, no large allocation, no file outside of it."""

from __future__ import annotations

import json
import shutil
import struct
import sys
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from grash.api.model import Model
from grash.errors import Diverged, FormatError, GrashError
from grash.files import write_checksums
from small_graph import model_of, rings

Change = Callable[[Path], Any]


def record(**changes: Any) -> Change:
    """Change entries of model.json."""
    return lambda folder: edit(folder / "model.json", lambda content: {**content, **changes})


def config(**changes: Any) -> Change:
    return lambda folder: edit(folder / "model.json", lambda c: {**c, "config": {**c["config"], **changes}})


def dataset(**changes: Any) -> Change:
    return lambda folder: edit(folder / "dataset" / "dataset.json", lambda content: {**content, **changes})


def edit(path: Path, change: Callable[[Any], Any]) -> None:
    path.write_text(json.dumps(change(json.loads(path.read_text()))))


def appended(text: str) -> Change:
    """Append an entry to model.json as it is."""
    return lambda folder: (folder / "model.json").write_text(
        (folder / "model.json").read_text().rstrip()[:-1] + f', "more": {text}}}'
    )


def tables(change: Callable[[torch.Tensor], torch.Tensor], *names: str) -> Change:
    def apply(folder: Path) -> None:
        path = folder / "embeddings.safetensors"
        stored = safetensors.torch.load_file(path)
        safetensors.torch.save_file({k: change(v) if k in names else v for k, v in stored.items()}, path)

    return apply


def header(shape: list[int], n_bytes: int) -> Change:
    """Write a safetensors file whose entity table claims this shape."""
    entity = {"dtype": "F32", "shape": shape, "data_offsets": [0, n_bytes]}
    text = json.dumps({"entity": entity, "relation": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}).encode()
    return lambda folder: (folder / "embeddings.safetensors").write_bytes(
        struct.pack("<Q", len(text)) + text + b"0" * 64
    )


def array_header(folder: Path) -> None:
    text = b"{'descr': '<i4', 'fortran_order': False, 'shape': (99999999999999, 3), }".ljust(117) + b"\n"
    (folder / "dataset" / "train.npy").write_bytes(
        b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + b"0" * 64
    )


def checksums(files: Any) -> Change:
    content = {"schema": "grash-checksums", "version": 1, "files": files}
    return lambda folder: (folder / "checksums.json").write_text(json.dumps(content))


REFUSED: dict[str, Change] = {
    "config is a list": record(config=[1]),
    "config is a path": record(config="../../etc/passwd"),
    "no config": record(config=None),
    "another model": record(model="../../etc/passwd"),
    "models": record(model=["complex"]),
    "a large dim": record(dim=10**18),
    "many entities": record(n_entities=2**62),
    "dim as text": record(dim="8"),
    "dataset is a path": record(dataset="/etc/passwd"),
    "evaluation is a text": record(evaluation="x"),
    "evaluation is a list": record(evaluation=[1, 2]),
    "evaluation is a number": record(evaluation=3),
    "history is a number": record(history=3),
    "history is a text": record(history="abc"),
    "history of numbers": record(history=[1, 2]),
    "another version": record(version=10**30),
    "nested deeply": lambda folder: (folder / "model.json").write_text("[" * 100_000),
    "an entry nested deeply": appended("[" * 100_000 + "]" * 100_000),
    "a number of 10,000 digits": appended("9" * 10_000),
    "a learning rate that is none": config(lr=float("nan")),
    "an unknown setting": config(**{"../../x": 1}),
    "another dim in the config": config(dim=10**12),
    "integers": tables(torch.Tensor.long, "entity"),
    "truth values": tables(torch.Tensor.bool, "relation"),
    "half precision": tables(torch.Tensor.half, "entity"),
    "a vector": tables(lambda t: t[:, 0].contiguous(), "entity"),
    "three dimensions": tables(lambda t: t[:, :, None].contiguous(), "entity"),
    "no entities": tables(lambda t: t[:0], "entity"),
    "no columns": tables(lambda t: t[:, :0].contiguous(), "entity", "relation"),
    "a shape larger than the file": header([10**12, 8], 32 * 10**12),
    "an empty table of many rows": header([2**62, 0], 0),
    "a shape that overflows": header([2**40, 2**40], 0),
    "a header of any length": lambda folder: (folder / "embeddings.safetensors").write_bytes(b"\xff" * 64),
    "an empty file": lambda folder: (folder / "embeddings.safetensors").write_bytes(b""),
    "a large dataset": dataset(n_entities=2**62),
    "many triples": dataset(n_triples={"train": 10**15, "valid": 1, "test": 1}),
    "triples by a path": dataset(n_triples="../../x"),
    "an array larger than the file": array_header,
    "a checksum of a file outside": checksums({"../../../etc/passwd": "x"}),
    "a checksum of a file of the system": checksums({"/etc/passwd": "x"}),
    "a checksum of no file": checksums({"a\0b": 1}),
    "checksums in a list": checksums(["model.json"]),
}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good") / "m"
    model_of(rings()).save(folder)
    return folder


def changed(good: Path, folder: Path, change: Change) -> Path:
    """A copy with other content, and with the checksums of that content."""
    shutil.copytree(good, folder)
    before = (folder / "checksums.json").read_bytes()
    change(folder)
    if (folder / "checksums.json").read_bytes() == before:
        write_checksums(folder)
        write_checksums(folder / "dataset")
    return folder


@pytest.mark.parametrize("name", REFUSED)
def test_content_that_cannot_be_is_refused(good: Path, tmp_path: Path, name: str, opened: list[str]) -> None:
    folder = changed(good, tmp_path / "m", REFUSED[name])
    opened.clear()
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match=r"\.$") as caught:
            Model.load(folder, device="cpu")
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()
    assert len(str(caught.value)) < 1000
    assert not [path for path in opened if "passwd" in path]


@pytest.fixture(scope="module")
def opened() -> list[str]:
    """Every file that is opened from now on."""
    paths: list[str] = []
    sys.addaudithook(lambda event, given: paths.append(str(given[0])) if event == "open" else None)
    return paths


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("table", ["entity", "relation"])
def test_numbers_without_an_order_are_a_sentence(good: Path, tmp_path: Path, table: str, value: float) -> None:
    model = Model.load(changed(good, tmp_path / "m", tables(lambda t: torch.full_like(t, value), table)), device="cpu")
    head, relation, tail = model.entity_name(1), model.relation_name(1), model.entity_name(2)
    questions: list[Callable[[], Any]] = [
        lambda: model.predict(head=head, relation=relation),
        lambda: model.predict(head=head, tail=tail),
        lambda: model.score([(head, relation, tail)]),
        lambda: model.evaluate(split="valid"),
    ]
    for ask in questions:
        with pytest.raises(Diverged, match="train"):
            ask()


def test_an_exported_name_stays_in_its_folder(good: Path, tmp_path: Path) -> None:
    folder = changed(good, tmp_path / "m", dataset(name="../../escaped"))
    model = Model.load(folder, device="cpu")
    for kind in ("npy", "pykeen", "libkge"):
        with suppress(GrashError):
            model.export(tmp_path / "inside" / "deep" / kind, kind)  # type: ignore[arg-type]
    assert {p.name for p in tmp_path.iterdir()} <= {"m", "inside"}
    assert {p.name for p in (tmp_path / "inside").iterdir()} == {"deep"}
