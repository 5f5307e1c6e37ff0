"""Every package and extra that pages or messages name can be installed."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from docs.pages import ROOT

NAMED = re.compile(r"grash-kge\[([^\]]+)\]")
OTHER_PACKAGE = re.compile(r"pip install '?grash(?!-kge)")  # `grash` on the package index is another project
FILES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "Makefile",
    ROOT / "pyproject.toml",
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "src").rglob("*.py"),
]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib is in Python 3.11")
def test_every_named_extra_exists() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == "grash-kge"
    extras = project["optional-dependencies"].keys()
    named = {
        (str(path.relative_to(ROOT)), extra.strip())
        for path in FILES
        for names in NAMED.findall(path.read_text(encoding="utf-8"))
        for extra in names.split(",")
    }
    assert {"dashboard", "ray", "study"} <= {extra for _, extra in named}
    assert sorted((path, extra) for path, extra in named if extra not in extras) == []


@pytest.mark.parametrize("path", [p for p in FILES if p.parent.name != "decisions"], ids=lambda p: p.name)
def test_nobody_is_sent_to_another_package(path: Path) -> None:
    assert OTHER_PACKAGE.findall(path.read_text(encoding="utf-8")) == []
