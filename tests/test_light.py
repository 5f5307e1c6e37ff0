"""`import grash` and `grash --help` load nothing heavy."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "numba", "numpy", "polars", "pydantic", "optuna", "plotly", "pyoxigraph", "zstandard", "safetensors")


def heavy_after(code: str) -> list[str]:
    """The heavy modules that are loaded once the code has run in a fresh interpreter."""
    report = f"\nimport sys\nprint('LOADED', *[m for m in {HEAVY!r} if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code + report], capture_output=True, text=True, check=True)
    return ran.stdout.splitlines()[-1].split()[1:]


def test_import_grash_is_light():
    assert heavy_after("import grash; grash.__version__; grash.GrashError; dir(grash)") == []


def test_import_grash_leaves_typer_alone():
    code = "import grash, sys; assert 'typer' not in sys.modules and 'rich' not in sys.modules"
    assert heavy_after(code) == []


def test_the_entry_point_loads_almost_nothing_before_it_handles_ctrl_c():
    code = "import sys; before = {*sys.modules}; from grash.cli import main; print(*{*sys.modules} - before)"
    ran = subprocess.run([sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}; {code}"],
                         capture_output=True, text=True, check=True)  # fmt: skip
    loaded = set(ran.stdout.split())
    assert {"grash", "grash.cli", "grash.errors"} <= loaded and not {"typing", "difflib", "re"} & loaded


def test_a_heavy_import_is_noticed():
    assert "numpy" in heavy_after("import grash; grash.Dataset")


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["train", "--help"],
        ["datasets"],
        ["predict", "--help"],
        ["datasets", "get", "--help"],
        ["study", "--help"],
        ["study", "transfer", "--help"],
    ],
)
def test_help_is_light(words):
    loaded = heavy_after(f"from grash.cli import main\nassert main({words!r}) == 0")
    assert [m for m in loaded if m != "pydantic"] == []  # typer itself loads pydantic from 0.29 on, in some 25 ms


def test_every_public_name_is_there():
    import grash

    for name in grash.__all__:
        assert getattr(grash, name) is not None
    with pytest.raises(AttributeError, match="grash has no 'trian'"):
        grash.trian  # noqa: B018


@pytest.mark.slow
def test_a_search_loads_neither_optuna_nor_jinja():
    code = "import grash, sys; grash.Search; assert 'jinja2' not in sys.modules"
    assert "optuna" not in heavy_after(code)


@pytest.mark.slow
def test_one_question_loads_little_and_leaves_the_gpu_alone(tmp_path):
    """torch, numba and NumPy are needed; no library of tables, views or RDF, and no compiled loop to find a name."""
    import grash

    options = {"dim": 8, "epochs": 0.01, "negatives_head": 5, "negatives_tail": 5, "model": "distmult", "device": "cpu"}
    grash.train("world", **options).save(tmp_path / "model")
    code = f"""
import numba.core.dispatcher as dispatcher
import torch

def refuse(*given): raise AssertionError("compiled")

dispatcher.Dispatcher._compile_for_args = refuse
torch.cuda.is_available = refuse
from grash.cli import main
assert main(["predict", {str(tmp_path / "model")!r}, "--head", "Bristol", "--relation", "located_in"]) == 0
"""
    assert set(heavy_after(code)) <= {"torch", "numba", "numpy", "pydantic", "safetensors"}
