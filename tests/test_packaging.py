"""The wheel and the source distribution are complete, and the wheel runs in an empty environment."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import grash

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.slow


def run(*words: object, cwd: Path, **environment: str) -> str:
    ran = subprocess.run(
        [str(word) for word in words], cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert ran.returncode == 0, f"{words}\n{ran.stdout}\n{ran.stderr}"
    return ran.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist, built from a copy of what git tracks."""
    pytest.importorskip("build", reason="build is not installed")
    source, dist = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("this is no git checkout")
    wanted = [n for n in listed.stdout.splitlines() if n.startswith("src/") or "/" not in n]
    for name in wanted:
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", dist, cwd=source)
    return dist


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory, built: Path) -> Path:
    """An environment with nothing but the wheel; its dependencies are those of this one, to save gigabytes."""
    folder = tmp_path_factory.mktemp("empty")
    venv.create(folder)
    (wheel,) = built.glob("*.whl")
    pip = (sys.executable, "-m", "pip", "--python", folder / "bin" / "python")
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=folder)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "outer.pth").write_text("".join(f"{p}\n" for p in sys.path if p.endswith("site-packages")))
    return folder


def test_both_distributions_have_what_they_need_and_pass_twine(built: Path) -> None:
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    assert (
        wheel.name.startswith(f"grash_kge-{grash.__version__}-")
        and sdist.name == f"grash_kge-{grash.__version__}.tar.gz"
    )
    names = set(zipfile.ZipFile(wheel).namelist())
    for needed in ("grash/py.typed", "grash/data/bundled/world.tsv", "grash/data/bundled/catalog.json"):
        assert needed in names
    tracked = {p.relative_to(ROOT / "src").as_posix() for p in (ROOT / "src").rglob("*") if p.is_file()}
    data = {
        n
        for n in tracked
        if n.startswith("grash") and not n.endswith(".py") and "__pycache__" not in n and ".egg-info" not in n
    }
    assert sorted(data - names) == [], "files that the program opens are missing in the wheel"
    with tarfile.open(sdist) as archive:
        assert any(name.endswith("/LICENSE-DATA.txt") for name in archive.getnames())
    pytest.importorskip("twine", reason="twine is not installed")
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist, cwd=built)


def test_the_metadata_names_every_extra_of_the_docs(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        text = archive.read(name).decode()
    extras = set(re.findall(r"^Provides-Extra: (.+)$", text, re.M))
    assert {"dashboard", "parquet", "study", "ray", "mlflow", "wandb", "tensorboard", "all"} <= extras
    required = re.findall(r"^Requires-Dist: ([A-Za-z0-9_-]+)[^;]*$", text, re.M)
    assert not {"optuna", "polars", "pandas", "scikit-learn", "ray"} & {name.lower() for name in required}


def test_commands_run_from_the_wheel(empty: Path, tmp_path: Path) -> None:
    """A search is left out: it compiles for half a minute where nothing is cached."""
    program, clean = empty / "bin" / "grash", {"PYTHONPATH": "", "OMP_NUM_THREADS": "1"}
    where = run(empty / "bin" / "python", "-c", "import grash; print(grash.__file__)", cwd=tmp_path, **clean)
    assert Path(where.strip()).is_relative_to(empty)
    assert run(program, "--version", cwd=tmp_path, **clean).startswith(f"grash {grash.__version__}")
    assert "wn18rr" in run(program, "datasets", cwd=tmp_path, **clean)
