"""Read the pages of the documentation: fenced blocks, commands, links."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONCEPTS = sorted((ROOT / "docs" / "concepts").glob("*.md"))
HOW_TO = sorted((ROOT / "docs" / "how-to").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
REFERENCE = ROOT / "docs" / "reference"
SHOWN = [
    ROOT / "README.md",
    ROOT / "docs" / "tutorial.md",
    ROOT / "docs" / "concepts" / "reduction.md",
    *HOW_TO,
    REFERENCE / "files.md",
    REFERENCE / "python.md",
    REFERENCE / "run-folder.md",
]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
QUICK = ("--set", "training=negative_sampling", "--set", "negatives_head=20", "--set", "negatives_tail=20", "--quiet")
TINY_SEARCH = ("-n", "5", "--epochs", "3", "--dim", "8", "--engine", "sequential", *QUICK)  # two rounds on `world`


def blocks_of(page: Path) -> list[tuple[str, str]]:
    """Return (language, content) of the fenced blocks of a page, in order."""
    return BLOCK.findall(page.read_text(encoding="utf-8"))


def commands_of(content: str) -> list[list[str]]:
    """Return the arguments of each `grash` command of a shell block."""
    lines = [shlex.split(line, comments=True) for line in content.splitlines()]
    return [words[1:] for words in lines if words and words[0] == "grash"]


def scripts_of(content: str) -> list[list[str]]:
    """Return the arguments of each `python benchmarks/…` command of a shell block."""
    lines = [shlex.split(line, comments=True) for line in content.splitlines()]
    return [words[1:] for words in lines if len(words) > 1 and words[1].startswith("benchmarks/")]


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))
