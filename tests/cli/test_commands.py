"""Every command through the command line, and the reference pages against it."""

from __future__ import annotations

import json
import platform
import re
import runpy
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from grash import __version__ as grash_version
from grash import train as train_in_python
from grash.api.model import Prediction, Predictions
from grash.cli.app import Commands, all_commands
from grash.cli.query import _show_answers
from grash.cli.train import setting_rows
from grash.report.live import progress_line
from grash.training.config import TrainConfig
from grash.training.loop import Progress
from small_graph import grash, model_of, rings, some_calibration, write_tsv

DOCS = Path(__file__).parents[2] / "docs" / "reference"
QUICK = (
    "--dim",
    16,
    "--epochs",
    20,
    "-b",
    16,
    "--training",
    "1vsall",
    "--reciprocal",
    "--threads",
    1,
    "--device",
    "cpu",
)


@pytest.fixture(scope="module", autouse=True)
def threads_as_before():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with rings.tsv and a model of it, m."""
    place = tmp_path_factory.mktemp("cli")
    write_tsv(rings(), place / "rings.tsv")
    ran = grash("train", place / "rings.tsv", "-o", place / "m", "--n-test", 4, *QUICK)
    assert ran.code == 0, ran.err
    return place


def commands() -> dict[str, object]:
    """Every verb of the application, with its command."""

    def walk(prefix: str, command: object) -> dict[str, object]:
        inner = getattr(command, "commands", {})
        found = {} if prefix == "grash" else {prefix: command}
        for name, sub in inner.items():
            found |= walk(f"{prefix} {name}", sub)
        return found

    return walk("grash", all_commands())


def test_training_shows_plan_metrics_and_commands_that_work(folder):
    ran = grash("train", folder / "rings.tsv", "-o", folder / "shown", *QUICK)
    assert "memory on cpu: " in ran.err and "best valid MRR " in ran.err
    assert "\x1b" not in ran.err + ran.out and "\r" not in ran.err
    assert re.search(r"head and tail +[01]\.\d+", ran.out)
    proposed = [line.strip() for line in ran.out.splitlines() if line.startswith("  grash ")]
    assert len(proposed) == 4
    import shlex

    for line in proposed:
        assert grash(*shlex.split(line)[1:]).code == 0, line


def test_a_training_that_stops_early_prints_where_and_why(folder, tmp_path):
    words = (
        "train",
        folder / "rings.tsv",
        "--dim",
        4,
        "--epochs",
        40,
        "--lr",
        1e-9,
        "--valid-every",
        1,
        "--patience",
        2,
    )
    ran = grash(*words, "--device", "cpu", "-o", tmp_path / "m", "--json")
    assert ran.code == 0, ran.err
    sentence = "training stopped at epoch 3 of 40: no better validation since epoch 1 (valid MRR "
    assert sentence in ran.err and "patience 2" in ran.err
    assert sentence in json.loads(ran.out)["stopped_early"]
    ran = grash(*words[:-2], "--patience", 40, "--device", "cpu", "-o", tmp_path / "n", "--json")
    assert "stopped at" not in ran.err and json.loads(ran.out)["stopped_early"] is None


def test_a_model_that_is_not_trained_yet_says_what_to_do(tmp_path):
    def interrupt(progress):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_in_python("world", dim=8, epochs=9, device="cpu", out=tmp_path / "m", watch=interrupt)
    ran = grash("predict", tmp_path / "m", "--head", "person 1", "--relation", "next")
    assert ran.code == 2 and "its training was interrupted: run the same grash train command again" in ran.err
    ran = grash("predict", tmp_path / "none", "--head", "person 1", "--relation", "next")
    assert ran.code == 2 and "There is no folder" in ran.err


@pytest.mark.parametrize("path", [".", "", "/"])
def test_a_folder_without_a_name_of_its_own_is_refused_like_others(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words in (("predict", path, "--head", "a", "--relation", "b"), ("evaluate", path)):
        ran = grash(*words)
        assert ran.code == 2 and f"{path or '.'} is not a model folder: it has no model.json." in ran.err, words
    ran = grash("update", path, "new.tsv")
    assert ran.code == 2 and "There is no file or folder new.tsv" in ran.err
    ran = grash("train", "world", "-e", 1, "-o", path)
    assert ran.code == 2 and f"{path or '.'} already exists" in ran.err


def test_stdout_has_only_json(folder):
    ran = grash("train", folder / "rings.tsv", "-o", folder / "asjson", "--json", "--quiet", *QUICK)
    content = json.loads(ran.out)
    assert content["model_folder"] == str(folder / "asjson")
    assert content["config"]["dim"] == 16
    assert content["best_validation"]["mrr"] == max(v["mrr"] for v in content["history"])
    assert content["evaluation"]["both"]["n"] > 0
    assert ran.err == ""


def test_a_taken_default_folder_gets_a_number(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for expected in ("rings-complex", "rings-complex-2"):
        ran = grash("train", folder / "rings.tsv", *QUICK, "--epochs", 1, "--json")
        assert json.loads(ran.out)["model_folder"] == str(Path("runs") / expected)


def test_options_override_the_file_and_set_overrides_both(folder, tmp_path):
    (tmp_path / "c.yaml").write_text("model: distmult\nlr: 0.5\nepochs: 1\nmargin: 2\n")
    ran = grash(
        "train", folder / "rings.tsv", "-o", tmp_path / "m", "-c", tmp_path / "c.yaml", "--lr", 0.25, "--json",
        "--set", "margin=3", "--set", "patience=null", "--set", "init_std=1e-3", "--negatives", 7, "--threads", 1,
    )  # fmt: skip
    config = json.loads(ran.out)["config"]
    expected = {"model": "distmult", "lr": 0.25, "margin": 3.0, "patience": None, "init_std": 1e-3}
    expected |= {"negatives_head": 7, "negatives_tail": 7}
    assert {name: config[name] for name in expected} == expected


def test_prepare_and_describe_the_encoded_form(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "rings.grash" in grash("prepare", folder / "rings.tsv", "--n-test", 4).out
    ran = grash("prepare", folder / "rings.tsv", "-o", "again", "--n-test", 4, "--json")
    assert json.loads(ran.out)["n_triples"]["test"] == 4
    profile = json.loads(grash("describe", "rings.grash", "--json").out)
    assert profile["n_entities"] == 12
    shown = grash("describe", "rings.grash").out
    assert "beside" in shown and "two on" in shown and "train" in shown


def test_prepare_and_describe_print_how_a_file_was_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = ("Bob Fry", "Dan Doe", "Ann Lee", "Kim Orr")
    rows = [f"{a}\t{r}\t{b}\n" for r in ("works with", "knows ") for a in names for b in names]
    Path("people.tsv").write_text("".join(rows + rows[:5]))
    ran = grash("prepare", "people.tsv", "--columns", "1,2,3")
    assert ran.code == 2 and not Path("people.grash").exists()
    assert "has 3 columns, numbers 0 to 2 (separated by tabs), but columns=1,2,3 needs column 3" in ran.err
    understood = "separated by tabs, no header, columns 0, 1, 2 (head, relation, tail)."
    assert f"people.tsv: {understood}" in grash("prepare", "people.tsv").err
    for source in ("people.tsv", "people.grash"):
        shown = grash("describe", source).out
        assert understood in shown
        assert "5 repeated triples of train were dropped." in shown
        assert "2 valid and 2 test triples were split off train, with seed 0." in shown
        assert "'knows '" in shown
        assert json.loads(grash("describe", source, "--json").out)["reading"]["duplicates_dropped"] == 5


def test_an_encoded_dataset_is_trained_on(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert grash("prepare", folder / "rings.tsv", "-o", "rings.grash").code == 0
    assert grash("train", "rings.grash", "-o", "m", *QUICK, "--epochs", 1).code == 0


def test_names_with_brackets_are_shown_as_they_are(tmp_path):
    (tmp_path / "g.tsv").write_text("[bold]x[/bold]\t[red]\t:smile:\n" * 3 + "a\t[red]\tb\n")
    assert "[red]" in grash("describe", tmp_path / "g.tsv", "--n-valid", 0, "--n-test", 0).out


def test_evaluate_shows_what_was_measured(folder):
    ran = grash("evaluate", folder / "m", "--per-relation", "--device", "cpu")
    assert (
        "test of rings: all 4 triples ranked against all entities, filtered by train, valid, test of rings" in ran.out
    )
    assert json.loads(grash("evaluate", folder / "m", "--split", "valid", "--json").out)["split"] == "valid"
    against = json.loads(grash("evaluate", folder / "m", "--candidates", 3, "--sample", 2, "--json").out)
    assert "mrr@3neg" in against["both"] and "mrr" not in against["both"]
    assert "mrr@3neg" in grash("evaluate", folder / "m", "--candidates", 3).out


def test_evaluate_takes_another_graph_by_names(folder, tmp_path):
    (tmp_path / "train.tsv").write_text("person 0\tnext\tperson 1\n")
    (tmp_path / "test.tsv").write_text("person 3\tnext\tperson 4\nperson 3\tnext\tstranger\n")
    ran = grash("evaluate", folder / "m", "--dataset", tmp_path, "--json")
    assert ran.code == 2 and "'stranger'" in ran.err
    ran = grash("evaluate", folder / "m", "--dataset", tmp_path, "--unseen", "drop", "--json")
    assert (json.loads(ran.out)["n_triples"], json.loads(ran.out)["n_unseen"]) == (1, 1)


def test_lines_that_are_no_triples_are_left_out_as_the_message_says(folder, tmp_path):
    path = tmp_path / "new.tsv"
    path.write_text("person 0\tnext\tstranger\nno triple\nperson 3\tnext\tperson 4\n", encoding="utf-8")
    update = ("update", folder / "m", path, "--epochs", 0, "-o", tmp_path / "now")
    evaluate = ("evaluate", folder / "m", "--dataset", path, "--unseen", "drop")
    for command in (update, evaluate):
        ran = grash(*command)
        assert ran.code == 2 and "leave such lines out with --bad-lines skip" in ran.err
        assert grash(*command, "--bad-lines", "skip").code == 0


def test_an_update_without_a_terminal_prints_a_line_per_quarter(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("grash.training.loop._REPORT_SECONDS", 0.0)
    (tmp_path / "new.tsv").write_text("person 0\tnext\tstranger\n", encoding="utf-8")
    ran = grash("update", folder / "m", tmp_path / "new.tsv", "--epochs", 40, "-o", tmp_path / "now")
    assert ran.code == 0 and 1 <= sum(line.startswith("epoch ") for line in ran.err.splitlines()) <= 5


def test_an_ensemble_shows_its_members_and_says_if_it_is_no_better(folder, tmp_path):
    ran = grash("ensemble", folder / "m", folder / "m", "-o", tmp_path / "both")
    assert ran.code == 0 and "no better on valid than its best member" in ran.err
    assert [line.split()[1] for line in ran.out.splitlines()[1:4]] == ["16", "16", "32"]
    ran = grash("ensemble", folder / "m", folder / "m", "-o", tmp_path / "both", "--overwrite", "--json")
    found = json.loads(ran.out)
    assert found["dim"] == 32 and [member["valid_mrr"] for member in found["members"]] == [found["valid_mrr"]] * 2
    ran = grash("ensemble", folder / "m", "-o", tmp_path / "one")
    assert ran.code == 2 and "needs two models or more" in ran.err and not (tmp_path / "one").exists()


def test_evaluate_ranks_a_whole_file_and_prints_from_where(folder, tmp_path):
    path = tmp_path / "new.tsv"
    path.write_text("".join(f"person {i}\tnext\tperson {(i + 1) % 12}\n" for i in range(12)))
    (tmp_path / "only").mkdir()
    (tmp_path / "only" / "test.txt").write_text(path.read_text())
    for source in (path, tmp_path / "only"):
        ran = grash("evaluate", folder / "m", "--dataset", source)
        assert f"test of {source}: all 12 triples ranked against all entities" in ran.out
        assert f"filtered by train, valid, test of rings and of {source}" in ran.out
        found = json.loads(grash("evaluate", folder / "m", "--dataset", source, "--json").out)
        assert (found["n_triples"], found["source"]) == (12, str(source))
        assert found["filter_sources"] == ["rings", str(source)]


def test_predict_each_part(folder):
    ran = grash("predict", folder / "m", "--head", "person 1", "--relation", "next", "-k", 3)
    assert ran.code == 0 and len(ran.out.splitlines()) == 4
    tails = json.loads(grash("predict", folder / "m", "--head", "person 1", "--relation", "next", "--json").out)
    assert tails["tail"] is None and len(tails["answers"]) == 10
    new = grash("predict", folder / "m", "--relation", "next", "--tail", "person 1", "--new-only", "-k", 99, "--json")
    assert not any(a["known"] for a in json.loads(new.out)["answers"])
    relations = grash("predict", folder / "m", "--head", "person 1", "--tail", "person 2", "--json")
    assert {a["name"] for a in json.loads(relations.out)["answers"]} == {"next", "two on", "beside"}


def test_relations_whose_probabilities_do_not_follow_the_ranks_are_explained(capsys):
    model = model_of(rings())
    model.calibration = some_calibration()
    query = model.query("person 1", None, "person 2")
    for probabilities, explained in (((0.5, 0.00001), False), ((0.00001, 0.5), True)):
        answers = Predictions(Prediction("next", i, 1.0 - i, False, p) for i, p in enumerate(probabilities))
        _show_answers(model, query, answers)
        printed = capsys.readouterr()
        assert "< 0.01 %" in printed.out and "50 %" in printed.out
        assert ("Relations are ranked by score." in printed.err) == explained


def test_predict_a_file_of_questions(folder, tmp_path):
    path = tmp_path / "q.tsv"
    path.write_text("person 1\tnext\n\n?\tnext\tperson 3\r\nperson 1\t?\tperson 2")
    ran = grash("predict", folder / "m", "--questions", path, "-k", 2)
    lines = [line.split("\t") for line in ran.out.splitlines()]
    assert lines[0] == ["head", "relation", "tail", "asked", "rank", "score", "known"]
    assert [line[3:5] for line in lines[1:]] == [[side, n] for side in ("tail", "head", "relation") for n in "12"]
    assert [line[:2] for line in lines[1:3]] == [["person 1", "next"]] * 2
    assert [line[1:3] for line in lines[3:5]] == [["next", "person 3"]] * 2
    objects = [
        json.loads(line) for line in grash("predict", folder / "m", "--questions", path, "--json").out.splitlines()
    ]
    assert [o["head"] for o in objects] == ["person 1", None, "person 1"]


def test_lines_with_unknown_names_are_refused_or_skipped(folder, tmp_path):
    (tmp_path / "q.tsv").write_text("person 1\tnext\t?\nnobody\tnext\t?\nperson 2\tnext\t?\n")
    (tmp_path / "t.tsv").write_text("person 1\tnext\tperson 2\nperson 1\tnext\tnobody\n")
    asking, scoring = (
        ("predict", folder / "m", "--questions", tmp_path / "q.tsv"),
        ("score", folder / "m", tmp_path / "t.tsv"),
    )
    for verb in (asking, scoring):
        ran = grash(*verb)
        assert ran.code != 0 and ran.out == "" and "line 2: There is no entity named 'nobody'" in ran.err
        assert "--skip-unknown" in ran.err
    ran = grash(*asking, "--skip-unknown", "--json")
    assert ran.code == 0 and [json.loads(line)["head"] for line in ran.out.splitlines()] == ["person 1", "person 2"]
    assert "line 2 is skipped: There is no entity named 'nobody'" in ran.err
    ran = grash(*scoring, "--skip-unknown")
    assert ran.code == 0 and len(ran.out.splitlines()) == 2
    ran = grash("score", folder / "m", "--head", "a", "--relation", "b", "--tail", "c", "--skip-unknown")
    assert ran.code != 0 and "is only for a file" in ran.err


def test_only_the_first_skipped_lines_get_a_message(folder, tmp_path):
    (tmp_path / "t.tsv").write_text("person 1\tnext\tperson 2\n" + "nobody\tnext\tperson 2\n" * 30)
    ran = grash("score", folder / "m", tmp_path / "t.tsv", "--skip-unknown")
    assert ran.err.count("is skipped") == 20 and "30 of 31 lines" in ran.err


def test_score_one_and_a_file(folder, tmp_path):
    one = grash("score", folder / "m", "--head", "person 1", "--relation", "next", "--tail", "person 2")
    path = tmp_path / "t.tsv"
    path.write_text("person 1\tnext\tperson 2\nperson 4\tbeside\tperson 3\n")
    many = grash("score", folder / "m", path)
    assert one.out.splitlines() == many.out.splitlines()[:2] and one.out.startswith("head\trelation\ttail\tscore\n")
    assert len(json.loads(grash("score", folder / "m", path, "--json").out)) == 2
    asked = grash("score", folder / "m", path, "--probability")
    assert asked.code == 2 and "The model is not calibrated" in asked.err and "grash calibrate" in asked.err


def test_a_graph_without_valid_triples_has_no_probabilities(tmp_path):
    (tmp_path / "star.tsv").write_text("".join(f"center\thas\tleaf {i}\n" for i in range(40)))
    ran = grash("train", tmp_path / "star.tsv", "-o", tmp_path / "m", "-e", 1, "-d", 4, "--device", "cpu")
    assert "No triple could be split off: each is the only one of an entity or relation." in ran.err
    for verb in ("calibrate", "discover"):
        ran = grash(verb, tmp_path / "m")
        assert ran.code == 2 and "m has no probabilities: valid of star has no triples to learn them from." in ran.err


def test_a_map_is_not_written_under_the_name_of_another_format(folder, tmp_path):
    ran = grash("map", folder / "m", "-o", tmp_path / "map.pdf")
    assert ran.code == 2 and "map.pdf: the format is not clear. Give a name that ends in .html, .htm." in ran.err
    ran = grash("report", folder, folder, "-o", tmp_path / "runs.pdf")
    assert ran.code == 2 and "runs.pdf: the format is not clear" in ran.err
    assert not list(tmp_path.iterdir())


def test_a_map_of_no_model_names_the_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "map.html").write_text("old")
    ran = grash("map", "nosuch")
    assert ran.code == 2 and "There is no folder nosuch" in ran.err and "map.html" not in ran.err


def test_ctrl_c_stops_a_dashboard_without_an_error(tmp_path, monkeypatch):
    class Server:
        server_port = 1

        def serve_forever(self):
            raise KeyboardInterrupt

    monkeypatch.setattr("grash.report.optuna.dashboard_server", lambda run, port: nullcontext(Server()))
    ran = grash("dashboard", tmp_path)
    assert (ran.code, ran.err.splitlines()[-1]) == (0, "Stopped.")


def test_neighbors_export_models_settings_datasets(folder, tmp_path):
    assert len(grash("neighbors", folder / "m", "person 1", "-k", 3).out.splitlines()) == 4
    found = json.loads(grash("neighbors", folder / "m", "person 1", "--metric", "euclidean", "--json").out)
    assert "person 1" not in [n["name"] for n in found["neighbors"]]
    refused = grash("export", folder / "m", "-o", tmp_path / "e", "--format", "csv")
    assert refused.code != 0 and "give npy, word2vec, parquet, neo4j, splits, ntriples, pykeen, libkge" in refused.err
    assert "--format splits" in grash("export", folder / "m", "-o", tmp_path / "p", "--format", "pykeen").err
    ran = grash("export", folder / "m", "-o", tmp_path / "e", "--format", "word2vec")
    assert ran.out.strip() == str(tmp_path / "e" / "entities.txt")
    assert "RotatE" in grash("models").out and "rotate" in json.loads(grash("models", "--json").out)
    assert "label_smoothing" in grash("settings").out
    assert len(json.loads(grash("settings", "--json").out)) == len(TrainConfig.model_fields)
    assert "wn18rr" in grash("datasets").out
    assert "wn18rr" in [e["name"] for e in json.loads(grash("datasets", "--json").out)]


def test_the_version_and_no_command_at_all():
    lines = grash("--version").out.splitlines()
    assert lines[0] == f"grash {grash_version}" and lines[1].startswith(f"Python {platform.python_version()}")
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    assert lines[2:] == [f"torch {torch.__version__}", f"device {device}"]
    ran = grash()
    assert ran.code == 2 and "─ Search ─" in ran.out


@pytest.mark.slow
def test_a_closed_pipe_is_no_error(folder):
    code = "import sys; from grash.cli import main; sys.exit(main())"
    words = [sys.executable, "-c", code, "describe", str(folder / "rings.tsv")]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() in (1, 141)  # typer leaves with 1 itself where a write failed before the end


def test_debug_shows_the_traceback(monkeypatch):
    from grash.errors import InputError

    with pytest.raises(InputError):
        grash("--debug", "describe", "nowhere")
    monkeypatch.setenv("GRASH_DEBUG", "1")
    with pytest.raises(InputError):
        grash("describe", "nowhere")


def test_the_progress_line_has_loss_speed_memory_and_time_left():
    progress = Progress(30, 100, 1.5, 2.345678, 123_456.0, 10.0, 3725.0, 0.4321)
    line = progress_line(progress, 5.0, "1.0 GiB")
    assert line == "epoch 1.5/5  loss 2.346  123 k triples/s  62 min left  best valid MRR 0.4321  1.0 GiB"


def test_every_command_and_option_is_in_the_reference():
    page = (DOCS / "cli.md").read_text(encoding="utf-8")
    missing = [verb for verb in commands() if f"`{verb}" not in page]
    for verb, command in commands().items():
        section = page.split(f"\n## `{verb}")[1].split("\n## ")[0] if f"\n## `{verb}" in page else ""
        for parameter in command.params:  # type: ignore[attr-defined]
            names = [o for o in parameter.opts if o.startswith("--") and o not in ("--help",)]
            shared = "--separator" in section or "reading options" in section
            text = section + (page if shared else "")
            missing += [f"{verb} {name}" for name in names if f"`{name}" not in text]
    assert missing == []


def test_every_command_and_option_has_a_help_text():
    for verb, command in commands().items():
        assert command.help, verb  # type: ignore[attr-defined]
        for parameter in command.params:  # type: ignore[attr-defined]
            assert parameter.name == "help" or getattr(parameter, "help", None), f"{verb} {parameter.name}"


def test_the_reference_of_settings_is_up_to_date():
    reference_page = runpy.run_path(str(DOCS.parents[1] / "tools" / "make_config_reference.py"))["reference_page"]
    assert (DOCS / "config.md").read_text(encoding="utf-8") == reference_page()
    assert [name for name, *_ in setting_rows()] == list(TrainConfig.model_fields)


def test_no_evaluation_is_suggested_without_test_triples(folder, tmp_path):
    words = ("--n-valid", 0, "--n-test", 0, *QUICK, "--epochs", 1)
    ran = grash("train", folder / "rings.tsv", "-o", tmp_path / "m", *words)
    assert ran.code == 0 and "grash predict" in ran.out and "grash evaluate" not in ran.out


def test_prepare_prints_how_many_triples_were_split_off(folder, tmp_path):
    ran = grash("prepare", folder / "rings.tsv", "-o", tmp_path / "d", "--n-valid", 3, "--n-test", 4)
    assert "3 valid and 4 test triples were split off train with seed 0." in ran.err


def test_files_with_commas_are_answered_like_files_with_tabs(folder, tmp_path):
    tabs, commas = tmp_path / "t.tsv", tmp_path / "t.csv"
    tabs.write_text("person 1\tnext\tperson 2\n\nperson 4\tbeside\tperson 3\n")
    commas.write_text('\ufeffperson 1,next,person 2\r\n\r\n"person 4",beside,person 3\r\n', encoding="utf-8")
    scores = grash("score", folder / "m", tabs)
    assert scores.code == 0 and scores.out == grash("score", folder / "m", commas).out
    tabs.write_text("person 1\tnext\n?\tnext\tperson 3\n")
    commas.write_text("person 1,next\n?,next,person 3\n")
    answers = grash("predict", folder / "m", "--questions", tabs, "-k", 2)
    assert answers.code == 0 and answers.out == grash("predict", folder / "m", "--questions", commas, "-k", 2).out


def test_commas_belong_to_names_where_a_line_has_a_tab(folder, tmp_path):
    path = tmp_path / "t.tsv"
    path.write_text("person 1\tnext\tperson 2\nperson 1,next,person 2\n")
    ran = grash("score", folder / "m", path)
    assert ran.code == 2 and "line 2: found 1 fields" in ran.err


@pytest.mark.parametrize(
    "words",
    [
        ("evaluate",),
        ("predict", "--head", "person 1", "--relation", "next"),
        ("score", "--head", "person 1", "--relation", "next", "--tail", "person 2"),
        ("neighbors", "person 1"),
    ],
)
def test_every_command_that_computes_sets_threads(folder, words):
    torch.set_num_threads(1)
    ran = grash(words[0], folder / "m", *words[1:], "--threads", 2, "--device", "cpu")
    assert ran.code == 0 and torch.get_num_threads() == 2


@pytest.mark.parametrize("verb", ["describe", "prepare"])
def test_an_interrupted_command_prints_it(verb: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def press(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    for name in ("load_dataset", "prepare"):
        monkeypatch.setattr(f"grash.api.dataset.{name}", press)
    ran = grash(verb, "world", *(["-o", tmp_path / "g"] if verb == "prepare" else []))
    assert ran.code == 130 and ran.out == ""
    assert ran.err == (
        "Interrupted. Run the same command again to continue.\n" if verb == "prepare" else "Interrupted.\n"
    )


def test_an_interrupt_while_the_command_line_is_read_or_imported_prints_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    class Interrupting:
        find_spec = interrupt

    monkeypatch.setattr(Commands, "parse_args", interrupt)
    ran = grash("models")
    assert (ran.code, ran.err) == (130, "Interrupted.\n")
    monkeypatch.delitem(sys.modules, "grash.cli.app")
    monkeypatch.delattr("grash.cli.app")
    monkeypatch.setattr(sys, "meta_path", [Interrupting()])
    ran = grash("models")
    assert (ran.code, ran.err) == (130, "Interrupted.\n")


@pytest.mark.parametrize(
    "error",
    [MemoryError(), torch.OutOfMemoryError("CUDA out of memory."), RuntimeError("CUDA driver error: out of memory")],
    ids=["host", "torch", "driver"],
)
def test_running_out_of_memory_is_no_defect(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_out(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("grash.api.dataset.load_dataset", run_out)
    ran = grash("describe", "world")
    assert ran.code == 3 and ran.err.startswith("error: Out of memory. Try a smaller batch_size")
