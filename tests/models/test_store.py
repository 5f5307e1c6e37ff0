"""Model folders: they are read as written, and damage is reported. Safetensors files written and read in blocks."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grash import files
from grash.data.dataset import Dataset
from grash.data.vocabulary import Vocabulary
from grash.errors import ConfigError, FormatError, GrashError, InputError
from grash.files import write_checksums, write_json
from grash.kernels.storage import file_rows
from grash.models import MODELS, register_model, store
from grash.models.store import (
    StoredModel,
    check_model_folder,
    load_model,
    read_tensors,
    replace_calibration,
    save_model,
    write_tensors,
)
from oracles import random_triples


def small_model(name: str = "rotate") -> StoredModel:
    dataset = Dataset(
        *(np.unique(random_triples(s, 12, 6, 2), axis=0) for s in range(3)),
        n_entities=6,
        n_relations=2,
        entities=Vocabulary.from_names([f"entity {i}" for i in range(6)], kind="entity"),
        relations=Vocabulary.from_names(["likes", "knows"], kind="relation"),
        name="people",
    )
    generator = torch.Generator().manual_seed(1)
    cls, dim = MODELS[name], 8 if name == "conve" else 4
    shapes = (6, cls.entity_width(dim)), (4, cls.relation_width(dim))
    tables = [torch.randn(*shape, generator=generator) for shape in shapes]
    weights = {
        weight: torch.rand(about.shape, generator=generator) + 0.5 for weight, about in cls.weight_shapes(dim).items()
    }
    model = cls(*tables, reciprocal=True, norm=2, weights=weights)
    return StoredModel(model, dataset, {"model": name, "lr": 0.1}, {"mrr": 0.5}, [{"step": 3}])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_model(small_model(), tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("n_written", range(4))
def test_a_calibration_is_replaced_in_the_current_folder_and_an_interruption_leaves_a_whole_model(
    folder: Path, n_written: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = ({"schema": "grash-calibration", "version": 1, "temperature": t} for t in (1.0, 2.0))
    monkeypatch.chdir(folder)
    replace_calibration(Path(), old)
    assert load_model(Path()).calibration == old and folder.samefile(Path())
    written: list[Path] = []

    def interrupted(path: Path, content: object) -> None:
        if len(written) == n_written:
            raise KeyboardInterrupt
        written.append(path)
        write_json(path, content)  # type: ignore[arg-type]

    for module in (files, store):
        monkeypatch.setattr(module, "write_json", interrupted)
    with suppress(KeyboardInterrupt):
        replace_calibration(Path(), new)
    assert load_model(folder).calibration == (new if n_written > 1 else old)


@pytest.mark.parametrize("name", MODELS)
def test_a_saved_model_is_loaded_unchanged(name: str, tmp_path: Path) -> None:
    stored = small_model(name)
    save_model(stored, tmp_path / "model")
    back = load_model(tmp_path / "model")
    assert type(back.model) is MODELS[name] and (back.model.norm, back.model.reciprocal) == (2, True)
    assert torch.equal(back.model.entity, stored.model.entity)
    assert torch.equal(back.model.relation, stored.model.relation)
    assert back.model.weights.keys() == stored.model.weights.keys()
    assert all(torch.equal(back.model.weights[w], tensor) for w, tensor in stored.model.weights.items())
    assert (back.config, back.evaluation, back.history) == (stored.config, stored.evaluation, stored.history)
    assert back.dataset.fingerprint == stored.dataset.fingerprint
    triples = torch.from_numpy(stored.dataset.test).long()
    assert torch.equal(back.model.score(triples), stored.model.score(triples))


@pytest.mark.parametrize("change", ["missing", "more", "shape"])
def test_other_weights_are_damage(tmp_path: Path, change: str) -> None:
    save_model(small_model("tucker"), tmp_path / "model")
    path = tmp_path / "model" / "embeddings.safetensors"
    tensors = {name: tensor.clone() for name, tensor in safetensors.torch.load_file(path).items()}  # not mapped
    if change == "missing":
        del tensors["weight.core"]
    elif change == "more":
        tensors["weight.other"] = torch.zeros(3)
    else:
        tensors["weight.core"] = tensors["weight.core"][:2].clone()
    write_tensors(tensors, path)
    write_checksums(tmp_path / "model")
    with pytest.raises(FormatError, match="damaged model folder .tucker with entities .* needs weights"):
        load_model(tmp_path / "model")


def test_a_model_folder_needs_only_safetensors_and_json(folder: Path) -> None:
    tables = safetensors.torch.load_file(folder / "embeddings.safetensors")
    assert {k: tuple(v.shape) for k, v in tables.items()} == {"entity": (6, 4), "relation": (4, 2)}
    record = json.loads((folder / "model.json").read_text())
    assert record["schema"] == "grash-model" and record["version"] == 1 and record["n_relations"] == 2


def entry(key: str, value: object) -> Callable[[bytes], bytes]:
    """Return a function that sets one entry of model.json; `...` removes it."""

    def change(content: bytes) -> bytes:
        record = json.loads(content)
        record = {k: v for k, v in record.items() if k != key} | ({} if value is ... else {key: value})
        return json.dumps(record).encode()

    return change


def flip(content: bytes, bit: int) -> bytes:
    return content[: bit // 8] + bytes([content[bit // 8] ^ (1 << bit % 8)]) + content[bit // 8 + 1 :]


ENTRIES = ["model", "dim", "norm", "reciprocal", "n_entities", "n_relations"]
ENTRIES += ["config", "evaluation", "history"]
DAMAGE: list[tuple[str, Callable[[bytes], bytes] | None, str]] = [
    ("embeddings.safetensors", lambda b: b[: len(b) // 2], "damaged model folder"),
    ("embeddings.safetensors", lambda b: b"", "damaged model folder"),
    ("embeddings.safetensors", None, "damaged model folder"),
    ("model.json", lambda b: b[: len(b) // 2], "model.json is damaged"),
    ("model.json", lambda b: b"\xff", "model.json is damaged"),
    ("model.json", lambda b: b"[1]", "does not describe a grash-model"),
    ("model.json", entry("schema", "other"), "does not describe a grash-model"),
    ("model.json", entry("version", 2), "of version 2, but this grash reads version 1"),
    ("model.json", entry("model", "transformer"), "has the model 'transformer', which is none of"),
    ("model.json", entry("model", ["complex"]), "damaged model folder"),
    ("model.json", entry("model", "rescal"), "damaged model folder"),
    ("model.json", entry("n_entities", 7), "differ in size"),
    ("model.json", entry("reciprocal", False), "differ in size"),
    *(("model.json", entry(key, ...), "damaged model folder") for key in ENTRIES),
    ("model.json", None, "is not a model folder: it has no model.json"),
    ("dataset/dataset.json", None, "is not an encoded dataset"),
    ("dataset/train.npy", lambda b: b[: len(b) // 2], "train.npy"),
    ("dataset/train.npy", None, "train.npy is missing"),
]


@pytest.mark.parametrize(("file", "change", "sentence"), DAMAGE)
def test_a_damaged_folder_is_an_error_of_one_line(
    folder: Path, file: str, change: Callable[[bytes], bytes] | None, sentence: str
) -> None:
    path = folder / file
    if change is None:
        path.unlink()
    else:
        before = path.read_bytes()
        path.write_bytes(change(before))
        assert path.read_bytes() != before
    write_checksums(path.parent)  # what checksums do not find, such as a folder that somebody else made
    with pytest.raises((FormatError, InputError), match=re.escape(sentence)) as caught:
        load_model(folder)
    assert "\n" not in str(caught.value)


def test_every_truncation_of_the_tables_is_an_error_even_with_matching_checksums(folder: Path) -> None:
    path = folder / "embeddings.safetensors"
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        write_checksums(folder)
        with pytest.raises(GrashError, match="damaged model folder"):
            load_model(folder)


UNCHECKED = ("checksums.json", "README.md")  # a person may edit the card


def test_every_flipped_bit_of_a_model_folder_is_noticed(folder: Path) -> None:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in UNCHECKED]
    assert len(files) == 2 + 4 + 2 * 3
    for path in files:
        whole = path.read_bytes()
        for bit in range(0, 8 * len(whole), 61):
            path.write_bytes(flip(whole, bit))
            with pytest.raises(GrashError):
                load_model(folder)
        path.write_bytes(whole)
    load_model(folder)


def test_a_folder_is_overwritten_only_on_request_and_only_if_it_is_a_model(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="already exists"):
        save_model(small_model("complex"), folder)
    assert load_model(folder).model.name == "rotate"
    save_model(small_model("complex"), folder, overwrite=True)
    assert load_model(folder).model.name == "complex"
    other = tmp_path / "thesis"
    other.mkdir()
    (other / "chapter.txt").write_text("work")
    with pytest.raises(InputError, match="is not a model folder, so it is not overwritten"):
        save_model(small_model(), other, overwrite=True)
    assert (other / "chapter.txt").read_text() == "work"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model", "thesis"]


KILLED = """
import os, signal, sys
from pathlib import Path
from grash.models.store import load_model, save_model
rename = Path.rename
def stop(self, target):
    if target == Path(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)
    return rename(self, target)
Path.rename = stop
save_model(load_model(Path(sys.argv[1])), Path(sys.argv[1]), overwrite=True)
"""


def test_a_model_that_a_killed_save_moved_is_restored_before_the_next_training(folder: Path, tmp_path: Path) -> None:
    assert subprocess.run([sys.executable, "-c", KILLED, str(folder)], check=False).returncode == -signal.SIGKILL
    assert not folder.exists() and len(list(tmp_path.iterdir())) == 2
    with pytest.raises(InputError, match="already exists"):
        check_model_folder(folder, overwrite=False)
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
    assert load_model(folder).evaluation == {"mrr": 0.5}


@pytest.mark.slow
def test_a_full_disk_is_an_error_and_keeps_the_old_model(folder: Path, tmp_path: Path) -> None:
    """A limit on file sizes simulates the full disk, in a separate process, since it cannot be removed."""
    program = textwrap.dedent(
        """
        import resource, sys
        from pathlib import Path
        import torch
        from grash.errors import OutputError
        from grash.models.store import StoredModel, load_model, save_model
        from grash.models import MODELS
        stored = load_model(Path(sys.argv[1]))
        big = MODELS["transe"](torch.zeros(6, 100_000), torch.zeros(2, 100_000))
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
        try:
            save_model(StoredModel(big, stored.dataset, {}), Path(sys.argv[1]), overwrite=True)
        except OutputError as error:
            print(error)
        """
    )
    done = subprocess.run([sys.executable, "-c", program, folder], capture_output=True, text=True, check=False)
    assert "could not be written" in done.stdout, done.stderr
    assert load_model(folder).model.name == "rotate"
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_changed_triples_or_names_are_an_error(folder: Path) -> None:
    for file, change in (("test.npy", 2), ("entities.names.npy", 1)):
        path = folder / "dataset" / file
        before = path.read_bytes()
        content = np.load(path)
        content.reshape(-1)[-1] ^= change
        np.save(path, content)
        with pytest.raises(FormatError, match="changed|damaged"):
            load_model(folder)
        path.write_bytes(before)
    load_model(folder)


def test_a_replaced_dataset_is_an_error(folder: Path, tmp_path: Path) -> None:
    other = small_model()
    changed = replace(other.dataset, test=other.dataset.test[:0].copy())
    changed.save(folder / "dataset", overwrite=True)
    with pytest.raises(FormatError, match="replaced"):
        load_model(folder)


NAMES = st.sampled_from(["entity", "relation", "entity.squares", "best.entity", "ü"])
SHAPES = st.one_of(st.tuples(), st.tuples(st.integers(0, 9)), st.tuples(st.integers(0, 9), st.integers(0, 5)))
TYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float64, torch.int32, torch.int64])


@settings(deadline=None, max_examples=60)
@given(st.dictionaries(NAMES, st.tuples(SHAPES, TYPES)), st.integers(1, 50))
def test_the_library_reads_tensors_written_in_blocks(
    tmp_path_factory: pytest.TempPathFactory, wanted: dict[str, tuple[tuple[int, ...], torch.dtype]], block: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "tensors.safetensors"
    tensors = {
        name: torch.arange(torch.Size(shape).numel()).reshape(shape).to(kind) + 1
        for name, (shape, kind) in wanted.items()
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "_BLOCK_BYTES", block)
        write_tensors(tensors, path)
        found = safetensors.torch.load_file(path)
        assert found.keys() == tensors.keys()
        back = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
        read_tensors(path, back)
    for name, tensor in tensors.items():
        assert torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype
        assert torch.equal(back[name], tensor)


def test_strided_and_offloaded_tensors_are_written_and_read(tmp_path: Path) -> None:
    table = torch.randn(6, 10, generator=torch.Generator().manual_seed(1))
    offloaded = file_rows(6, 10, tmp_path)
    offloaded.copy_(table)
    write_tensors({"strided": table[:, ::2], "offloaded": offloaded, "transposed": table.T}, tmp_path / "t")
    found = safetensors.torch.load_file(tmp_path / "t")
    assert torch.equal(found["strided"], table[:, ::2]) and torch.equal(found["offloaded"], table)
    assert torch.equal(found["transposed"], table.T)
    again = file_rows(6, 10, tmp_path)
    read_tensors(tmp_path / "t", {"offloaded": again})
    assert torch.equal(again, table)


def test_another_shape_or_name_is_an_error(tmp_path: Path) -> None:
    write_tensors({"entity": torch.zeros(3, 2)}, tmp_path / "t")
    with pytest.raises(ValueError, match=r"entity has the shape \[3, 2\], not \[2, 3\]"):
        read_tensors(tmp_path / "t", {"entity": torch.zeros(2, 3)})
    with pytest.raises(safetensors.SafetensorError):
        read_tensors(tmp_path / "t", {"relation": torch.zeros(3, 2)})


def test_a_folder_that_is_not_there_is_called_so(tmp_path):
    with pytest.raises(InputError, match="There is no folder .*gone"):
        load_model(tmp_path / "gone")


def test_the_name_of_a_built_in_model_is_taken():
    with pytest.raises(ConfigError, match="'pairre' is a built-in model"):
        register_model(type("Mine", (MODELS["distmult"],), {"name": "pairre"}))
    assert register_model(MODELS["distmult"]) is MODELS["distmult"]
