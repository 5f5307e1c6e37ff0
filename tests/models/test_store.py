"""A model folder: what is written comes back, and what was damaged gets a sentence."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from grash.data.dataset import Dataset
from grash.data.vocabulary import Vocabulary
from grash.errors import FormatError, GrashError, InputError
from grash.models import MODELS
from grash.models.store import StoredModel, check_free, load_model, save_model
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
    width = MODELS[name].relation_width(4)
    tables = torch.randn(6, 4, generator=generator), torch.randn(4, width, generator=generator)
    model = MODELS[name](*tables, reciprocal=True, norm=2)
    return StoredModel(model, dataset, {"model": name, "lr": 0.1}, {"mrr": 0.5}, [{"step": 3}])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_model(small_model(), tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("name", MODELS)
def test_what_is_saved_comes_back(name: str, tmp_path: Path) -> None:
    stored = small_model(name)
    save_model(stored, tmp_path / "model")
    back = load_model(tmp_path / "model")
    assert type(back.model) is MODELS[name] and (back.model.norm, back.model.reciprocal) == (2, True)
    assert torch.equal(back.model.entity, stored.model.entity)
    assert torch.equal(back.model.relation, stored.model.relation)
    assert (back.config, back.evaluation, back.history) == (stored.config, stored.evaluation, stored.history)
    assert back.dataset.fingerprint == stored.dataset.fingerprint
    triples = torch.from_numpy(stored.dataset.test).long()
    assert torch.equal(back.model.score(triples), stored.model.score(triples))


def test_anyone_can_open_the_folder(folder: Path) -> None:
    tables = safetensors.torch.load_file(folder / "embeddings.safetensors")
    assert {k: tuple(v.shape) for k, v in tables.items()} == {"entity": (6, 4), "relation": (4, 2)}
    record = json.loads((folder / "model.json").read_text())
    assert record["schema"] == "grash-model" and record["version"] == 1 and record["n_relations"] == 2


def entry(key: str, value: object) -> Callable[[bytes], bytes]:
    """Sets one entry of model.json; `...` removes it."""

    def change(content: bytes) -> bytes:
        record = json.loads(content)
        record = {k: v for k, v in record.items() if k != key} | ({} if value is ... else {key: value})
        return json.dumps(record).encode()

    return change


def flip(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


ENTRIES = ["model", "dim", "norm", "reciprocal", "n_entities", "n_relations"]
ENTRIES += ["config", "evaluation", "history", "sha256"]
DAMAGE: list[tuple[str, Callable[[bytes], bytes] | None, str]] = [
    ("embeddings.safetensors", lambda b: b[: len(b) // 2], "changed or cut short"),
    ("embeddings.safetensors", lambda b: b"", "changed or cut short"),
    ("embeddings.safetensors", flip, "changed or cut short"),
    ("embeddings.safetensors", None, "damaged model folder"),
    ("model.json", lambda b: b[: len(b) // 2], "model.json is damaged"),
    ("model.json", lambda b: b"\xff", "model.json is damaged"),
    ("model.json", lambda b: b"[1]", "does not describe a grash-model"),
    ("model.json", entry("schema", "other"), "does not describe a grash-model"),
    ("model.json", entry("version", 2), "of version 2, but this grash reads version 1"),
    ("model.json", entry("model", "transformer"), "damaged model folder"),
    ("model.json", entry("model", ["complex"]), "damaged model folder"),
    ("model.json", entry("model", "rescal"), "damaged model folder"),
    ("model.json", entry("n_entities", 7), "differ in size"),
    ("model.json", entry("reciprocal", False), "differ in size"),
    *(("model.json", entry(key, ...), "damaged model folder") for key in ENTRIES),
    ("model.json", None, "is no model folder: it has no model.json"),
    ("dataset/dataset.json", None, "is not an encoded dataset"),
    ("dataset/train.npy", lambda b: b[: len(b) // 2], "train.npy"),
    ("dataset/train.npy", None, "train.npy is missing"),
]


@pytest.mark.parametrize(("file", "change", "sentence"), DAMAGE)
def test_a_damaged_folder_gets_a_sentence(
    folder: Path, file: str, change: Callable[[bytes], bytes] | None, sentence: str
) -> None:
    path = folder / file
    if change is None:
        path.unlink()
    else:
        before = path.read_bytes()
        path.write_bytes(change(before))
        assert path.read_bytes() != before
    with pytest.raises((FormatError, InputError), match=re.escape(sentence)) as caught:
        load_model(folder)
    assert "\n" not in str(caught.value)


def test_every_truncation_of_the_tables_gets_a_sentence_even_unverified(folder: Path) -> None:
    path = folder / "embeddings.safetensors"
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(GrashError, match="damaged model folder"):
            load_model(folder, verify=False)


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


def test_a_model_that_a_killed_save_put_aside_is_back_before_the_next_training(folder: Path, tmp_path: Path) -> None:
    assert subprocess.run([sys.executable, "-c", KILLED, str(folder)], check=False).returncode == -signal.SIGKILL
    assert not folder.exists() and len(list(tmp_path.iterdir())) == 2
    with pytest.raises(InputError, match="already exists"):
        check_free(folder, overwrite=False)
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
    assert load_model(folder).evaluation == {"mrr": 0.5}


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="absent is no model folder"):
        load_model(tmp_path / "absent")


def test_a_full_disk_gets_a_sentence_and_leaves_the_old_model(folder: Path, tmp_path: Path) -> None:
    """A limit on file sizes stands for the full disk; in a process of its own, since it cannot be lifted."""
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


def test_triples_or_names_that_were_changed_get_a_sentence(folder: Path) -> None:
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


def test_a_dataset_that_was_exchanged_gets_a_sentence(folder: Path, tmp_path: Path) -> None:
    other = small_model()
    changed = replace(other.dataset, test=other.dataset.test[:0].copy())
    changed.save(folder / "dataset", overwrite=True)
    with pytest.raises(FormatError, match="exchanged"):
        load_model(folder)
