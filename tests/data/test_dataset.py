"""Dataset: what it accepts, and that its folder is whole, checked and equal to what was saved."""

import json
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grash.data.dataset import Dataset
from grash.data.vocabulary import Vocabulary
from grash.errors import FormatError, InputError
from grash.files import write_checksums

NONE = np.empty((0, 3), np.int32)


def triples(*rows):
    return np.array(rows, np.int32).reshape(-1, 3)


def small(**changes):
    given = {
        "train": triples((0, 0, 1), (1, 1, 2)),
        "valid": triples((0, 1, 2)),
        "test": NONE,
        "n_entities": 3,
        "n_relations": 2,
        "entities": Vocabulary.from_names(["a", "b", "ç"], kind="entity"),
        "relations": Vocabulary.from_names(["r", "s"], kind="relation"),
        "name": "small",
        "provenance": {"source": "here", "counts": [1, 2]},
    }
    return Dataset(**{**given, **changes})


def test_a_dataset_survives_saving(tmp_path):
    dataset = small()
    dataset.save(tmp_path / "d")
    loaded = Dataset.load(tmp_path / "d")
    for split in ("train", "valid", "test"):
        assert np.array_equal(loaded.split(split), dataset.split(split))
        assert loaded.split(split).dtype == np.int32
    assert (loaded.n_entities, loaded.n_relations, loaded.name) == (3, 2, "small")
    assert loaded.provenance == dataset.provenance
    assert list(loaded.entities) == ["a", "b", "ç"]
    assert list(loaded.relations) == ["r", "s"]
    assert loaded.fingerprint == dataset.fingerprint


def test_the_fingerprint_of_a_loaded_dataset_is_read_and_not_computed(tmp_path, monkeypatch):
    dataset = small()
    dataset.save(tmp_path / "d")
    loaded = Dataset.load(tmp_path / "d")
    changed = replace(loaded, train=loaded.train[:1])
    assert changed.fingerprint not in (loaded.fingerprint, None)
    monkeypatch.setattr(Dataset, "_digest", None)
    assert Dataset.load(tmp_path / "d").fingerprint == dataset.fingerprint


def test_a_dataset_without_names_survives_saving(tmp_path):
    small(entities=None, relations=None).save(tmp_path / "d")
    loaded = Dataset.load(tmp_path / "d")
    assert loaded.entities is None
    assert loaded.relations is None


def test_the_fingerprint_tells_content_from_description():
    assert small().fingerprint == small(name="other", provenance={}).fingerprint
    others = [
        small(train=triples((0, 0, 1), (1, 1, 1))),
        small(train=triples((0, 0, 1), (1, 1, 2), (0, 1, 2)), valid=NONE),
        small(n_entities=4, entities=None),
        small(entities=None),
        small(entities=Vocabulary.from_names(["a", "bç", ""])),
        small(relations=Vocabulary.from_names(["s", "r"])),
    ]
    prints = [small().fingerprint, *(d.fingerprint for d in others)]
    assert len(set(prints)) == len(prints)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"train": triples((0, 0, 1), (0, 0, 3))}, "Row 1 of train has the tail id 3, expected 0 to 2"),
        ({"valid": triples((-1, 0, 1))}, "Row 0 of valid has the head id -1"),
        ({"test": triples((0, 2, 1))}, "Row 0 of test has the relation id 2, expected 0 to 1"),
        ({"train": np.zeros((2, 3))}, "train is float64"),
        ({"train": np.zeros((2, 3), np.int64)}, "train is int64"),
        ({"train": np.zeros((3, 2), np.int32).T[:, :1].repeat(3, 1)[:, ::-1]}, "C-contiguous"),
        ({"train": np.zeros((2, 2), np.int32)}, r"train has the shape \(2, 2\)"),
        ({"train": [[0, 0, 0]]}, "train has the shape list"),
        ({"n_entities": -1}, "n_entities=-1"),
        ({"n_entities": 2**31}, "n_entities=2147483648"),
        ({"n_relations": 3}, "names of 2 relations"),
    ],
)
def test_an_invalid_dataset_is_an_input_error(changes, sentence):
    with pytest.raises(InputError, match=sentence):
        small(**changes)


def test_an_unknown_split_is_an_input_error():
    with pytest.raises(InputError, match="There is no split 'dev'"):
        small().split("dev")


def edit_metadata(folder, **changes):
    path = folder / "dataset.json"
    content = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({k: v for k, v in content.items() if v is not ...}))
    write_checksums(folder)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"version": 2}, "grash-dataset of version 2, but this grash reads version 1"),
        ({"schema": "another"}, "does not describe a grash-dataset"),
        ({"n_triples": {"train": 5, "valid": 1, "test": 0}}, "found int32 of 2 × 3, expected int32 of 5 × 3"),
        ({"n_triples": ...}, "damaged"),
        ({"n_triples": [1]}, "damaged"),
        ({"provenance": 3}, "damaged"),
        ({"n_entities": 2}, "damaged"),
        ({"n_relations": "x"}, "damaged"),
    ],
)
def test_damaged_or_unknown_metadata_is_a_format_error(tmp_path, changes, sentence):
    small().save(tmp_path / "d")
    edit_metadata(tmp_path / "d", **changes)
    with pytest.raises(FormatError, match=sentence):
        Dataset.load(tmp_path / "d")


def test_changed_triples_are_noticed(tmp_path):
    small().save(tmp_path / "d")
    Dataset.load(tmp_path / "d")
    np.save(tmp_path / "d" / "train.npy", triples((0, 0, 1), (1, 1, 0)))
    with pytest.raises(FormatError, match=r"train.npy is damaged: its content does not match its checksum"):
        Dataset.load(tmp_path / "d")


def test_ids_out_of_range_on_disk_are_noticed_always(tmp_path):
    small().save(tmp_path / "d")
    np.save(tmp_path / "d" / "train.npy", triples((0, 0, 1), (1, 1, 99)))
    write_checksums(tmp_path / "d")
    with pytest.raises(FormatError, match="Row 1 of train has the tail id 99"):
        Dataset.load(tmp_path / "d")


@pytest.mark.parametrize("file", ["train.npy", "test.npy", "entities.names.npy", "dataset.json"])
def test_truncated_files_are_noticed(tmp_path, file):
    small().save(tmp_path / "d")
    path = tmp_path / "d" / file
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(FormatError, match="damaged"):
        Dataset.load(tmp_path / "d")


def test_a_folder_without_metadata_is_no_dataset(tmp_path):
    with pytest.raises(InputError, match="not an encoded dataset"):
        Dataset.load(tmp_path)


def test_a_failure_while_saving_leaves_nothing(tmp_path, monkeypatch):
    def fail(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Vocabulary, "save", fail)
    with pytest.raises(KeyboardInterrupt):
        small().save(tmp_path / "d")
    assert list(tmp_path.iterdir()) == []


def test_a_failure_while_overwriting_leaves_what_was_there(tmp_path, monkeypatch):
    small().save(tmp_path / "d")
    before = small().fingerprint
    monkeypatch.setattr(Vocabulary, "save", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        small(train=triples((0, 0, 0))).save(tmp_path / "d", overwrite=True)
    monkeypatch.undo()
    assert Dataset.load(tmp_path / "d").fingerprint == before


KILLED = """
import os, signal, sys
from pathlib import Path
from grash.data.dataset import Dataset
rename = Path.rename
def stop(self, target):
    if self.suffix == ".part" and not target.is_file() and target.parent == Path(sys.argv[2]).parent:
        os.kill(os.getpid(), signal.SIGKILL)
    return rename(self, target)
Path.rename = stop
Dataset.load(Path(sys.argv[1])).save(Path(sys.argv[2]), overwrite=True)
"""


def test_what_a_killed_save_left_goes_or_comes_back_with_the_next(tmp_path):
    small().save(tmp_path / "d")
    small().save(tmp_path / "other")
    for target in ("d", "new"):
        command = [sys.executable, "-c", KILLED, str(tmp_path / "other"), str(tmp_path / target)]
        assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert not (tmp_path / "d").exists()
    with pytest.raises(InputError, match="already exists"):
        small().save(tmp_path / "d")
    small().save(tmp_path / "new")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["d", "new", "other"]


def test_nothing_is_overwritten_without_leave(tmp_path):
    small().save(tmp_path / "d")
    with pytest.raises(InputError, match="already exists"):
        small().save(tmp_path / "d")
    small(train=triples((0, 0, 0))).save(tmp_path / "d", overwrite=True)
    assert len(Dataset.load(tmp_path / "d").train) == 1


def test_a_folder_with_other_things_is_not_overwritten(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="is not an encoded dataset, so it is not overwritten"):
        small().save(tmp_path, overwrite=True)
    assert (tmp_path / "thesis.txt").exists()


def test_a_mapped_dataset_can_be_saved_over_itself(tmp_path):
    small().save(tmp_path / "d")
    mapped = Dataset.load(tmp_path / "d")
    mapped.save(tmp_path / "d", overwrite=True)
    assert Dataset.load(tmp_path / "d").fingerprint == mapped.fingerprint


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 1), st.integers(0, 4)), max_size=8),
    st.lists(st.text(st.characters(exclude_categories=("Cs",)), max_size=8), min_size=5, max_size=5),
)
def test_any_content_survives_saving(tmp_path_factory, rows, names):
    folder = tmp_path_factory.mktemp("saved")
    dataset = small(
        train=triples(*rows), valid=NONE, n_entities=5, entities=Vocabulary.from_names(names), provenance={"n": names}
    )
    dataset.save(folder / "d")
    loaded = Dataset.load(folder / "d")
    assert loaded.train.tolist() == dataset.train.tolist()
    assert list(loaded.entities) == names
    assert loaded.provenance == {"n": names}


def test_valid_can_become_part_of_train():
    dataset = small(valid=triples((0, 1, 2), (2, 0, 0)))
    merged = dataset.with_valid_in_train()
    assert merged.train.tolist() == [*dataset.train.tolist(), *dataset.valid.tolist()] and len(merged.valid) == 0
    assert merged.provenance["valid_in_train"] == 2 and merged.fingerprint != dataset.fingerprint
    assert (merged.n_entities, merged.name, merged.entities) == (dataset.n_entities, dataset.name, dataset.entities)
    assert len(dataset.valid) == 2
