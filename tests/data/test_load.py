"""From a source to a dataset: duplicates, splits, counts, the encoded folder, and that nothing is left half-made."""

import json
import logging

import numpy as np
import pytest

from grash.data import load as module
from grash.data.dataset import Dataset
from grash.data.load import load_dataset, prepare
from grash.errors import ConfigError, FormatError, InputError


@pytest.fixture
def graph_file(tmp_path):
    random = np.random.default_rng(0)
    rows = {(int(h), int(r), int(t)) for h, r, t in zip(*(random.integers(0, n, 3000) for n in (80, 4, 80)))}
    path = tmp_path / "graph.tsv"
    path.write_text("".join(f"e{h}\tr{r}\te{t}\n" for h, r, t in sorted(rows)))
    return path


def test_a_single_file_is_split_and_that_is_logged(graph_file, caplog):
    with caplog.at_level(logging.INFO, logger="grash"):
        dataset = load_dataset(graph_file)
    n = len(graph_file.read_text().splitlines())
    assert [len(dataset.valid), len(dataset.test)] == [round(0.05 * n)] * 2
    assert len(dataset.train) + len(dataset.valid) + len(dataset.test) == n
    assert dataset.provenance["split_off"]["seed"] == 0
    assert f"no valid and test: {len(dataset.valid)} valid and {len(dataset.test)} test triples were" in caplog.text
    assert load_dataset(graph_file).fingerprint == dataset.fingerprint
    assert load_dataset(graph_file, seed=1).fingerprint != dataset.fingerprint


def test_sizes_of_a_split_are_options(graph_file):
    dataset = load_dataset(graph_file, n_valid=7, test_fraction=0.2)
    n = len(dataset.train) + len(dataset.valid) + len(dataset.test)
    assert (len(dataset.valid), len(dataset.test)) == (7, round(0.2 * n))


def test_a_folder_with_train_only_or_without_valid_is_completed(tmp_path, graph_file):
    (tmp_path / "d").mkdir()
    graph_file.rename(tmp_path / "d" / "train.tsv")
    (tmp_path / "d" / "test.tsv").write_text("e1\tr1\te2\n")
    dataset = load_dataset(tmp_path / "d", n_valid=20)
    assert (len(dataset.valid), len(dataset.test)) == (20, 1)
    assert dataset.provenance["split_off"]["got"] == {"valid": 20}


@pytest.mark.parametrize("duplicates", ["drop", "keep"])
def test_repeated_triples_are_dropped_or_kept_and_counted(tmp_path, duplicates):
    rows = ["a\tr\tb", "b\tr\tc", "a\tr\tb", "c\tr\ta", "a\tr\tb"]
    (tmp_path / "g.tsv").write_text("\n".join(rows))
    dataset = load_dataset(tmp_path / "g.tsv", duplicates=duplicates, n_valid=0, n_test=0)
    assert dataset.provenance["repeated_in_train"] == {"count": 2, "kept": duplicates == "keep"}
    assert len(dataset.train) == (3 if duplicates == "drop" else 5)
    assert dataset.train[:2].tolist() == [[0, 0, 1], [1, 0, 2]]


def test_a_kept_repetition_does_not_leak_into_valid(tmp_path):
    rows = ["a\tr\tb", "a\tr\tb", "a\ts\tb", "b\tr\ta", "b\ts\ta"] * 2 + ["a\tq\tb", "b\tq\ta", "a\tq\ta"]
    (tmp_path / "g.tsv").write_text("\n".join(rows))
    dataset = load_dataset(tmp_path / "g.tsv", duplicates="keep", n_valid=5, n_test=5)
    train = set(map(tuple, dataset.train.tolist()))
    held_out = np.concatenate((dataset.valid, dataset.test)).tolist()
    assert held_out
    assert not train & set(map(tuple, held_out))


def test_overlap_with_train_and_unseen_entities_are_counted(tmp_path, caplog):
    (tmp_path / "train.txt").write_text("a\tr\tb\nb\tr\tc\n")
    (tmp_path / "valid.txt").write_text("a\tr\tb\nx\tr\ty\nx\tr\ta\n")
    (tmp_path / "test.txt").write_text("a\tq\tc\n")
    dataset = load_dataset(tmp_path)
    assert dataset.provenance["also_in_train"] == {"valid": 1, "test": 0}
    assert dataset.provenance["unseen_in_train"] == {
        "valid": {"entities": 2, "relations": 0},
        "test": {"entities": 0, "relations": 1},
    }
    assert len(dataset.valid) == 3
    assert "1 triples of valid are also in train" in caplog.text
    assert "valid has 2 entities and 0 relations that are not in train" in caplog.text


def test_the_text_format_is_logged_and_recorded(tmp_path, caplog):
    (tmp_path / "train.txt").write_text("a\tr\tb\nb\tr\tc\n")
    (tmp_path / "valid.txt").write_text("a\tr\tc\n")
    (tmp_path / "test.txt").write_text("tail,head,relation\na,c,r\n")
    with caplog.at_level(logging.INFO, logger="grash"):
        dataset = load_dataset(tmp_path)
    assert "train.txt, valid.txt: separated by tabs, no header, columns 0, 1, 2 (head, relation, tail)." in caplog.text
    assert "test.txt: separated by commas, a header, columns 1, 2, 0 (head, relation, tail)." in caplog.text
    assert dataset.provenance["read_as"]["valid"] == {"separator": "tabs", "header": False, "columns": [0, 1, 2]}


def test_a_first_line_like_a_header_is_asked_about(tmp_path, caplog):
    path = tmp_path / "g.tsv"
    path.write_text("Person\tRelation\tCompany\nAnn\tworks for\tAcme\nBob\tworks for\tAcme\n")
    with pytest.raises(InputError, match=r"first line \(Person, Relation, Company\) may be a header or a triple"):
        load_dataset(path)
    assert list(load_dataset(path, header=True).relations) == ["works for"]
    assert len(load_dataset(path, header=False).relations) == 2
    assert not caplog.records


def test_valid_triples_in_test_get_a_warning(tmp_path, caplog):
    (tmp_path / "train.txt").write_text("a\tr\tb\nb\tr\tc\n")
    (tmp_path / "valid.txt").write_text("a\tr\tc\nc\tr\ta\n")
    (tmp_path / "test.txt").write_text("c\tr\ta\nc\tr\tb\n")
    assert load_dataset(tmp_path).provenance["valid_in_test"] == 1
    assert "1 of 2 valid triples are also in test." in caplog.text
    (tmp_path / "test.txt").unlink()
    assert "valid_in_test" not in load_dataset(tmp_path).provenance


def test_prepare_writes_what_it_returns(tmp_path, graph_file):
    dataset = prepare(graph_file, tmp_path / "out", seed=3)
    assert dataset.fingerprint == load_dataset(graph_file, seed=3).fingerprint
    assert Dataset.load(tmp_path / "out").fingerprint == dataset.fingerprint
    assert load_dataset(tmp_path / "out").fingerprint == dataset.fingerprint
    assert dataset.name == "graph"
    meta = json.loads((tmp_path / "out" / "dataset.json").read_text())
    assert meta["provenance"]["source"] == str(graph_file)
    assert meta["n_triples"]["train"] == len(dataset.train)


def test_prepare_does_not_overwrite_without_leave(tmp_path, graph_file):
    prepare(graph_file, tmp_path / "out")
    with pytest.raises(InputError, match="already exists"):
        prepare(graph_file, tmp_path / "out")
    assert prepare(graph_file, tmp_path / "out", overwrite=True, n_valid=1).valid.shape == (1, 3)


def test_a_bad_source_leaves_nothing_behind(tmp_path):
    (tmp_path / "bad.tsv").write_text("a\tr\tb\na\tr\n")
    with pytest.raises(InputError, match="line 2"):
        prepare(tmp_path / "bad.tsv", tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["bad.tsv"]


def test_options_have_no_effect_on_an_encoded_dataset_and_that_is_said(tmp_path, graph_file):
    prepare(graph_file, tmp_path / "out")
    with pytest.raises(ConfigError, match="is already encoded"):
        load_dataset(tmp_path / "out", seed=5)


def test_an_unknown_version_is_not_read(tmp_path, graph_file):
    prepare(graph_file, tmp_path / "out")
    meta = tmp_path / "out" / "dataset.json"
    meta.write_text(meta.read_text().replace('"version": 1', '"version": 7'))
    with pytest.raises(FormatError, match="version 7"):
        load_dataset(tmp_path / "out")


def test_the_bundled_graph_is_a_name(tmp_path, graph_file, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(module.BUNDLED, "world", graph_file)
    assert load_dataset("world").fingerprint == load_dataset(graph_file).fingerprint


def test_a_dataset_that_does_not_exist_points_to_the_catalog(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="no file or folder freebase, and no dataset.*grash datasets"):
        load_dataset("freebase")


def test_an_unknown_option_is_an_error(graph_file):
    with pytest.raises(ConfigError, match="no option 'colums'.*Did you mean 'columns'"):
        load_dataset(graph_file, colums="hrt")


@pytest.mark.parametrize("counts", [{"n_test": 4}, {"n_valid": 99}, {"n_valid": 2, "n_test": 2}])
def test_counts_that_leave_nothing_for_train_are_refused(tmp_path, counts):
    (tmp_path / "g.tsv").write_text("a\tr\tb\nb\tr\ta\na\tr\ta\nb\tr\tb\n")
    with pytest.raises(ConfigError, match="Cannot split off .* triples: the source has 4 in all"):
        load_dataset(tmp_path / "g.tsv", **counts)
    assert len(load_dataset(tmp_path / "g.tsv", n_valid=1, n_test=2).train) >= 1
