"""Each kind of bad input through the command line: one sentence, an exit code, no traceback, nothing harmed."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from grash.errors import Diverged, MemoryPlanError, OutputError
from small_graph import grash, rings, write_tsv

QUICK = ("--dim", 8, "--epochs", 2, "-b", 16, "--device", "cpu", "--threads", 1, "--negatives", 4, "--quiet")


@pytest.fixture(autouse=True)
def threads_as_before():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def graph(tmp_path) -> Path:
    return write_tsv(rings(), tmp_path / "rings.tsv")


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "m"
    ran = grash("train", write_tsv(rings(), folder.parent / "rings.tsv"), "-o", folder, *QUICK)
    assert ran.code == 0, ran.err
    return folder


def refused(*words: object, code: int = 2) -> str:
    """The one sentence with which the command is refused, the last that it says; fails where it is not."""
    ran = grash(*words)
    lines = ran.err.splitlines()
    assert ran.code == code, (ran.code, ran.err)
    assert [line.startswith("error: ") for line in lines] == [False] * (len(lines) - 1) + [True], ran.err
    assert "Traceback" not in ran.err and ran.out == ""
    return lines[-1].removeprefix("error: ")


def content(folder: Path) -> dict[str, str]:
    """What a folder holds, byte for byte."""
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() if p.is_file() else "folder"
        for p in folder.rglob("*")
    }


@pytest.mark.parametrize("verb", ["describe", "train", "prepare"])
def test_a_missing_file(graph, verb, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    sentence = refused(verb, graph.with_name("ring.tsv"))
    assert "ring.tsv" in sentence and "Did you mean" in sentence and "rings.tsv" in sentence
    assert [p.name for p in tmp_path.iterdir()] == ["rings.tsv"]


def test_an_empty_file(tmp_path):
    (tmp_path / "e.tsv").write_text("")
    assert "e.tsv is empty" in refused("describe", tmp_path / "e.tsv")


def test_a_wrong_number_of_columns_with_file_and_line(graph):
    text = graph.read_text().splitlines()
    graph.write_text("\n".join([*text[:6], "person 1\tnext", *text[6:]]) + "\n")
    sentence = refused("train", graph, "-o", graph.with_name("m"))
    assert "rings.tsv" in sentence and "7" in sentence and "3" in sentence
    assert not graph.with_name("m").exists()


def test_bad_utf8(graph):
    graph.write_bytes(graph.read_bytes() + b"person 1\tnext\tperson \xff\n")
    sentence = refused("describe", graph)
    assert "UTF-8" in sentence and "49" in sentence


def test_an_rdf_syntax_error(tmp_path):
    (tmp_path / "g.nt").write_text("<http://a> <http://b> <http://c> .\n<http://a> oops\n")
    assert "g.nt" in refused("describe", tmp_path / "g.nt")


def test_ids_out_of_range(tmp_path):
    np.save(tmp_path / "train.npy", np.array([[0, 0, 1], [1, 0, 2**31]]))
    assert "2147483648" in refused("describe", tmp_path / "train.npy").replace(",", "")
    np.save(tmp_path / "train.npy", np.array([[0, 0, 1], [-1, 0, 2]]))
    assert "-1" in refused("describe", tmp_path / "train.npy").replace("−", "-")
    (tmp_path / "entities.txt").write_text("a\nb\n")
    np.save(tmp_path / "train.npy", np.array([[0, 0, 1], [1, 0, 2]]))
    assert "2" in refused("describe", tmp_path)


def test_duplicate_triples_are_dropped_and_told(graph):
    graph.write_text(graph.read_text() * 2)
    ran = grash("prepare", graph, "-o", graph.with_name("d"))
    assert ran.code == 0 and "48 duplicate triples of train were dropped" in ran.err


def test_valid_names_unknown_to_train_are_told(tmp_path):
    (tmp_path / "train.tsv").write_text("a\tr\tb\nb\tr\tc\n")
    (tmp_path / "valid.tsv").write_text("a\tr\tstranger\n")
    (tmp_path / "test.tsv").write_text("a\tr\tc\n")
    ran = grash("describe", tmp_path)
    assert ran.code == 0 and "warning: " in ran.err and "not in train" in ran.out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--dim", 0), "--dim 0"),
        (("--dim", 7), "give an even number"),
        (("--lr", -1), "--lr -1"),
        (("--epochs", "many"), "--epochs"),
        (("--loss", "sofmax"), "--loss sofmax"),
        (("--set", "epoch=3"), "Did you mean epochs"),
        (("--set", "epochs"), "give name=value"),
        (("--threads", 0), "--threads 0"),
        (("--threads", 10**12), "--threads 1000000000000"),
        (("--dim", 0), "--dim 0 is not valid: give 1 or more."),
        (("--set", "foo=1"), "'foo' is not a setting. `grash settings` lists them all."),
        (("--n-test", 99999), "Cannot split off 2 valid and 99,999 test triples: the source has 48 in all"),
        (("--n-valid", 24, "--n-test", 24), "Give a smaller n_valid and n_test (--n-valid and --n-test)"),
        (("--device", "gpu"), "give auto, cpu, cuda"),
        (("--valid-fraction", 2), "--valid-fraction 2"),
        (("--columns", "hrx"), "--columns hrx"),
        (("--config", "nowhere.yaml"), "nowhere.yaml"),
        (("--label-smoothing", 0.1), "No such option"),
    ],
)
def test_an_option_out_of_range(graph, words, expected):
    assert expected in refused("train", graph, "-o", graph.with_name("m"), *words)
    assert not graph.with_name("m").exists()


def test_an_unknown_model_gets_suggestions(graph):
    assert "Did you mean 'complex'" in refused("train", graph, "--model", "complx")


def test_an_unknown_name_gets_suggestions(saved):
    assert "Did you mean 'person 1" in refused("predict", saved, "--head", "persn 1", "--relation", "next")
    assert "Did you mean 'next'" in refused("predict", saved, "--head", "person 1", "--relation", "nexd")
    assert "person 99" in refused("neighbors", saved, "person 99")
    assert "wn18rr" in refused("datasets", "get", "wn18-rr")
    assert "Did you mean" in refused("datasets", "get", "wn18r")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("person 1\tnxt\t?", "line 2: There is no relation named 'nxt'. Did you mean 'next'"),
        ("person 1", "line 2: found 1 fields"),
        ("?\tnext\t?", "line 2: found 2 question marks"),
        ("person 1\tnext\tperson 2", "found 0 question marks"),
        ("person 1\t\t?", "one of them empty"),
        ("person \udcff\tnext\t?", "line 2: not UTF-8"),
    ],
)
def test_a_bad_line_in_a_file_of_questions(saved, tmp_path, line, expected):
    path = tmp_path / "q.tsv"
    path.write_bytes(f"person 1\tnext\t?\n{line}\n".encode("utf-8", "surrogateescape"))
    sentence = refused("predict", saved, "--questions", path)
    assert expected in sentence and "q.tsv" in sentence


def test_questions_that_are_none(saved, tmp_path):
    assert "only the head is given" in refused("predict", saved, "--head", "person 1")
    assert "Give either a file of triples" in refused("score", saved, "--head", "person 1")
    assert "cannot be read" in refused("score", saved, tmp_path / "nowhere.tsv")
    for k in (("-k", 0), ("-k0",)):
        assert "--top-k 0 is not valid" in refused("predict", saved, "--head", "person 1", "--relation", "next", *k)
    assert "Missing argument" in refused("predict")
    assert refused("trian") == "No such command 'trian'. Did you mean 'train'? See grash --help."


def test_a_model_folder_that_is_none(tmp_path, graph):
    assert "is not a model folder" in refused("evaluate", tmp_path)
    assert "is not a model folder" in refused("predict", graph, "--head", "a", "--relation", "b")


@pytest.mark.parametrize("kind", ["truncated", "tampered", "names", "json", "version", "missing"])
def test_a_truncated_or_tampered_model_folder(saved, tmp_path, kind):
    import shutil

    folder = tmp_path / "m"
    shutil.copytree(saved, folder)
    tables, record = folder / "embeddings.safetensors", folder / "model.json"
    if kind == "truncated":
        tables.write_bytes(tables.read_bytes()[:-40])
    elif kind == "tampered":
        tables.write_bytes(tables.read_bytes()[:-4] + b"\0\0\0\0")
    elif kind == "names":
        names = folder / "dataset" / "entities.names.npy"
        names.write_bytes(names.read_bytes()[:-5])
    elif kind == "json":
        record.write_text(record.read_text()[:-20])
    elif kind == "version":
        record.write_text(record.read_text().replace('"version": 1', '"version": 99'))
    else:
        tables.unlink()
    before = content(folder)
    sentence = refused("predict", folder, "--head", "person 1", "--relation", "next")
    assert str(folder) in sentence
    assert content(folder) == before


def test_an_occupied_folder_stays_as_it_is(saved, graph):
    before = content(saved)
    assert "already exists" in refused("train", graph, "-o", saved, *QUICK)
    assert "already exists" in refused("export", saved, "-o", saved)
    assert "already exists" in refused("prepare", graph, "-o", saved)
    assert "not overwritten" in refused("prepare", graph, "-o", saved, "--overwrite")
    assert content(saved) == before


@pytest.mark.slow
def test_a_checkpoint_of_another_run_is_not_touched(graph, tmp_path):
    code = _interrupt(graph, tmp_path / "m")
    assert code == 130
    before = content(tmp_path / "m.checkpoint")
    sentence = refused("train", graph, "-o", tmp_path / "m", *LONG, "--lr", 0.3)
    assert "lr: 0.1 there, 0.3 now" in sentence and "--restart" in sentence
    assert "--threads 0" in refused("train", graph, "-o", tmp_path / "m", *LONG, "--threads", 0, "--restart")
    for words, code in (
        (("--placement", "there"), 2),
        (("--model", "rescal", "--dim", 10**6), 3),
        (("--test-sample", 0), 2),
    ):
        refused("train", graph, "-o", tmp_path / "m", *LONG, *words, "--restart", code=code)
    assert content(tmp_path / "m.checkpoint") == before


def no_space(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    "words",
    [
        ("prepare", "GRAPH", "-o", "OUT"),
        ("export", "MODEL", "-o", "OUT"),
        ("train", "GRAPH", "-o", "OUT", *QUICK),
        ("train", "GRAPH", "-o", "MODEL", "--overwrite", *QUICK),
    ],
)
def test_a_full_disk(saved, graph, tmp_path, monkeypatch, words):
    before = content(saved)
    places = {"GRAPH": graph, "OUT": tmp_path / "out", "MODEL": saved}
    monkeypatch.setattr("grash.files.sync_folder", no_space)
    sentence = refused(*(places.get(str(w), w) for w in words), code=OutputError.exit_code)
    assert "No space left on device" in sentence and "unchanged" in sentence
    assert content(saved) == before
    assert [p.name for p in tmp_path.iterdir()] == ["rings.tsv"]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_results_onto_a_full_disk(saved):
    code = "import sys; from grash.cli import main; sys.exit(main())"
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            [sys.executable, "-c", code, "settings"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert ran.returncode != 0 and "No space left" in ran.stderr


def test_what_does_not_fit_into_memory(graph, monkeypatch):
    monkeypatch.setattr("grash.engines.memory.free_bytes", lambda device: 1 << 20)
    sentence = refused("train", graph, "-o", graph.with_name("m"), "--quiet", code=MemoryPlanError.exit_code)
    assert "is free" in sentence and "Try " in sentence


def test_a_diverging_training(graph):
    words = ("--lr", 1e30, "--optimizer", "sgd", "--quiet", "--threads", 1, "--device", "cpu")
    sentence = refused("train", graph, "-o", graph.with_name("m"), *words, code=Diverged.exit_code)
    assert "diverged" in sentence and "lower learning rate" in sentence
    assert not graph.with_name("m").exists()


def test_what_testing_and_saving_would_say_is_said_before_the_training(graph: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder, words in ((tmp_path / "file" / "m", ()), (tmp_path / "m", ("--test-sample", 0))):
        ran = grash("train", graph, "-o", folder, *LONG, *words)
        assert ran.code not in (0, 1) and "epoch" not in ran.err and "Traceback" not in ran.err, ran.err
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith("m")) == []


LONG = ("--dim", 16, "--epochs", 1500, "-b", 16, "--training", "1vsall", "--device", "cpu", "--threads", 1,
        "--valid-every", 70, "--patience", 100, "--set", "dropout_entity=0.1")  # fmt: skip


def _interrupt(graph: Path, out: Path) -> int:
    """Starts a training, presses Ctrl-C after its first validation, and gives back its exit code."""
    code = "import sys; from grash.cli import main; sys.exit(main())"
    words = [sys.executable, "-c", code, "train", str(graph), "-o", str(out), *map(str, LONG)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("epoch "):
            break
    process.send_signal(signal.SIGINT)
    out_text, err = process.communicate(timeout=60)
    sentences = [line for line in err.splitlines() if not line.startswith("epoch ")]
    assert out_text == "" and len(sentences) == 1, err
    assert sentences[0].startswith("Interrupted. ") and "same command" in sentences[0], err
    return process.returncode


@pytest.mark.parametrize(
    "words", [("evaluate",), ("predict", "--head", "person 1"), ("score", "t.tsv"), ("neighbors", "person 1")]
)
def test_threads_are_checked_by_every_verb_that_computes(saved, words):
    assert "--threads 0: give a whole number from 1" in refused(words[0], saved, *words[1:], "--threads", 0)


def test_an_option_for_reading_without_a_graph_to_read(saved):
    assert "--columns is about reading a graph" in refused("evaluate", saved, "--columns", "htr")
    assert "No such option: --n-test" in refused("evaluate", saved, "--n-test", 3)
