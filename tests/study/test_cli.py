"""grash study confirm, resources and variants as commands."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest

from grash.errors import ConfigError
from grash_study.cli import read_candidate
from grash_study.methods import METHODS
from small_graph import grash
from study.small_study import SPACE, small_graph

BARE = """
import sys
for name in ("polars", "optuna", "plotly", "jinja2", "matplotlib", "pyoxigraph", "scipy", "sklearn", "pandas"):
    sys.modules[name] = None
from grash.cli import main
from grash.engines import choose
choose.n_cores = lambda: 1  # no workers
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """(graph, options): a small graph, and the options of a search of a moment, which needs no workers."""
    monkeypatch.setattr("grash.engines.choose.n_cores", lambda: 1)
    small_graph().save(tmp_path / "graph")
    space = tmp_path / "two.yaml"
    space.write_text("".join(f"{k}: {v}\n" for k, v in SPACE.items()).replace("'", ""))
    given = ["--models", "complex", "--epochs", 8, "--dim", 4, "--seeds", 1, "--device", "cpu"]
    given += ["--search", f"space={space}", "--search", "n_trials=4", "--store", tmp_path / "s", "-o", tmp_path / "o"]
    return tmp_path / "graph", given


def test_candidates_are_read_from_a_line():
    one = read_candidate("rich ones: n_trials=128, preset=paper, proposals=sobol reciprocal=true")
    assert (one.name, one.preset) == ("rich ones", "paper")
    assert one.settings == {"n_trials": 128, "proposals": "sobol", "fixed": {"reciprocal": True}}
    assert one.text == "n_trials=128, proposals=sobol, reciprocal=true"
    listed = read_candidate("x: models=[a, b], eta=3").settings
    assert listed["models"] == ["a", "b"] and listed["eta"] == 3


def test_help_lists_every_method_with_real_searches():
    shown = grash("study", "confirm", "--help").out
    assert [m.run for m in METHODS if m.run not in ("grash", "tpe-rounds") and str(m.run) not in shown] == []


@pytest.mark.parametrize("text", ["sobol", ": eta=3", "x:", "x: eta", "x: eta 3"])
def test_what_is_no_candidate_is_said_with_an_example(text):
    with pytest.raises(ConfigError, match="sobol: proposals=sobol"):
        read_candidate(text)


@pytest.mark.slow
def test_confirm_plans_stops_runs_and_writes_a_page_with_its_command(here, tmp_path):
    graph, given = here
    words = ["study", "confirm", graph, *given, "--presets", "default", "--candidate", "two rounds: eta=2"]
    planned = grash(*words, "--plan")
    assert planned.code == 0 and "0 of 2 searches are there" in planned.out and "in all" in planned.out, planned.err
    assert not (tmp_path / "s").exists() and not (tmp_path / "o").exists()
    stopped = grash(*words, "--max-seconds", 0)
    page = tmp_path / "o" / "confirm-small-complex-d4-e8-default-candidates-space.two-n_trials.4.md"
    assert stopped.code == 7 and "0 of 1 | not run yet" in page.read_text()
    ran = grash(*words)
    assert ran.code == 0 and "complex, two rounds, seed 0: test MRR" in ran.out, ran.err
    text = page.read_text()
    shown = text.partition("```bash\n")[2].partition("\n```")[0]
    assert "not run yet" not in text and "--candidate 'two rounds: eta=2'" in shown
    page.unlink()
    assert grash(*shlex.split(shown)[1:], "--max-seconds", 0).code == 0 and page.read_text() == text
    wrong = grash(*words, "--candidate", "x: etta=3")
    assert wrong.code == 2 and "Did you mean eta" in wrong.err


def test_other_settings_of_all_searches_have_pages_of_their_own(here, tmp_path):
    graph, given = here
    for more in ([], ["--search", "eta=2"], ["--search", "eta=2", "--set", "lr=0.1"], ["--label", "mine"]):
        ran = grash("study", "confirm", graph, *given, "--presets", "default", *more, "--max-seconds", 0)
        assert ran.code == 7, ran.err
    common = "default-space.two-n_trials.4"
    endings = (common, f"{common}-eta.2", f"{common}-eta.2-lr.0.1", "mine")
    assert {p.name for p in (tmp_path / "o").glob("*.md")} == {f"confirm-small-complex-d4-e8-{e}.md" for e in endings}


@pytest.mark.slow
def test_searches_are_run_and_stored_without_the_extra_and_their_page_is_written_elsewhere(here, tmp_path):
    graph, given = here
    words = ["study", "confirm", graph, *given, "--presets", "paper"]
    ran = subprocess.run([sys.executable, "-c", BARE, *map(str, words), "--no-page"], capture_output=True, text=True)
    assert ran.returncode == 0 and "complex, paper, seed 0: test MRR" in ran.stdout, ran.stderr
    assert not (tmp_path / "o").exists()
    assert grash(*words, "--max-seconds", 0).code == 0 and len(list((tmp_path / "o").glob("confirm-*.md"))) == 1


@pytest.mark.slow
def test_resources_of_one_variant_need_no_test_triples_and_no_timing_of_first_rounds(here, tmp_path):
    _, given = here
    whole = small_graph()
    type(whole)(whole.train, whole.valid, whole.test[:0], 60, 3, name="untested").save(tmp_path / "untested")
    options = ["--n", 4, "--epochs", 8, "--dim", 4, "--device", "cpu", *given[-4:]]
    ran = grash("study", "resources", tmp_path / "untested", *options, "--variants", "combined", "--no-together")
    assert ran.code == 0, ran.err
    text = next((tmp_path / "o").glob("resources-untested-*.md")).read_text()
    assert "| combined | all | 4 |" in text and "epoch |" not in text and "at a time" not in text
    assert (
        "--variants combined --no-together" in text
        and "not run yet" not in text
        and "Core numbers were computed" in text
    )
    wrong = grash("study", "resources", tmp_path / "untested", *options, "--variants", "combind")
    assert wrong.code == 2 and "combind" in wrong.err


@pytest.mark.parametrize("verb", ["confirm", "variants"])
def test_no_model_is_no_study(here, verb):
    graph, given = here
    ran = grash("study", verb, graph, "--models", " ,", *given[-4:])
    assert ran.code == 2 and "names no model: give one or more" in ran.err


def test_all_models_of_variants_are_known_before_one_is_trained(here, tmp_path):
    graph, given = here
    options = ["--n", 4, "--epochs", 8, "--dim", 4, "--large-dim", 0, "--picks", "--device", "cpu", *given[-4:]]
    ran = grash("study", "variants", graph, *options, "--models", "complex,complx")
    assert ran.code == 2 and "complx" in ran.err and not ran.out and not (tmp_path / "s").exists()


@pytest.mark.parametrize("verb", ["transfer", "variants", "resources", "rounds", "table"])
def test_a_batch_of_nothing_is_refused_before_anything_is_run(here, tmp_path, verb):
    graph, given = here
    ran = grash("study", verb, graph, "--n", 4, "--epochs", 8, "--dim", 4, "--batch", 0, *given[-4:])
    assert ran.code == 2 and "Invalid value for '--batch'" in ran.err and not (tmp_path / "s").exists()


def test_a_table_that_cannot_be_made_yet_is_unfinished_and_no_mistake(here, tmp_path):
    graph, given = here
    words = ["study", "table", graph, "--n", 4, "--epochs", 2, "--dim", 4, "--device", "cpu", *given[-4:]]
    ran = grash(*words, "--max-seconds", 0)
    assert ran.code == 7 and "No table is written yet" in ran.err and "the same command continues" in ran.err
    assert not (tmp_path / "o").exists()


@pytest.mark.slow
def test_variants_have_rows_for_rotate_s_own_loss_and_the_larger_dimension(here, tmp_path):
    graph, given = here
    options = ["--n", 4, "--epochs", 8, "--dim", 4, "--models", "rotate", "--large-dim", 8, "--picks", *given[-4:]]
    ran = grash("study", "variants", graph, *options, "--device", "cpu")
    assert ran.code == 0, ran.err
    text = next((tmp_path / "o").glob("variants-*.md")).read_text()
    assert "| rotate | combined | 4 |" in text and "| rotate | combined | 8 |" in text
    assert "| rotate, self-adversarial | combined | 8 |" in text and "not run yet" not in text


@pytest.mark.parametrize("verb", ["transfer", "variants", "resources", "rounds", "table", "confirm", "methods"])
def test_without_the_extra_a_study_prints_what_to_install(verb, monkeypatch, tmp_path):
    monkeypatch.setattr("grash_study.cli.find_spec", lambda name: None if name in ("scipy", "polars") else name)
    monkeypatch.chdir(tmp_path)
    small_graph().save(tmp_path / "graph")
    ran = grash("study", verb, tmp_path / "graph")
    assert ran.code == 2 and ran.err == "error: grash study needs scipy, polars: pip install 'grash-kge[study]'.\n"
    assert grash("study", "--help").code == grash("study", verb, "--help").code == 0
    assert [p.name for p in tmp_path.iterdir()] == ["graph"]


def test_nothing_is_written_into_docs_by_default(here, tmp_path, monkeypatch):
    graph, given = here
    (tmp_path / "docs" / "results").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    words = ["--n", 3, "--epochs", 2, "--dim", 4, "--techniques", "core-order,epochs", "--max-seconds", 0]
    assert grash("study", "transfer", graph, *words).code == 7
    assert not list((tmp_path / "docs" / "results").iterdir())
    assert [p.suffix for p in (tmp_path / "results").glob("transfer-*")].count(".md") == 1
