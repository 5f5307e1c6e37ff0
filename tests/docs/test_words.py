"""Docs, code and --help use the words of the glossary, not the words it replaced."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from docs.pages import ROOT, page_id
from grash.cli.app import all_commands

# What not to write → what to write instead. Underscores and digits end a word too.
WORDS = {
    r"go(es)? on|went on|going on": "continues, resumes, advances",
    r"told|is said|says|said": "receives, reports, prints",
    r"foretells?|foretold": "predicts",
    r"anew": "again",
    r"apart|joined besides|besides": "isolated pairs; separate; also",
    r"stands? in|lies? (in|on|at|beside|between|within|above|below|apart)|lay in": "is in, is stored in",
    r"of (its|their|one's) own": "its own, separate",
    r"bears?|g(i|a)ven? up|gives? up|gave up": "tolerates, aborts",
    r"mend(s|ed|ing)?": "fixes, repairs",
    r"whoever": "to compare",
    r"(?<!guard )(?<!guard_)(?<!guard-)(?<!Guard )rails?": "guard rail",
    r"cfg \d+": "configuration 9",
    r"chains?|ladders?": "core order, k-core",
    r"(?<!for the )prices?|priced": "budget unit, cost",
    r"slots?": "side",
    r"(?<!power )laws?": "distribution",
    r"one in η": "the best 1/η",
    r"plain path": "unfused implementation",
    r"neighbours?|neighbouring|colour|behaviour|licence|recogni[s]e[ds]?|normalise[ds]?|favour": "American spelling",
    r"last_holdout|like_valid|as_before": "last_round_holdout, match_valid",
    r"farewell|lineage|unites?|pulse": "a name that says what is inside",
}
RIDDLES = {
    "ground", "farewell", "silence", "lead", "far", "foretell", "shares", "understood", "account", "gather", "unite",
    "words", "lines", "pulse", "lineage", "claim", "paths", "rail", "rails", "mend", "anew", "utils", "helpers",
}  # fmt: skip
DESIGN_REFERENCE = re.compile(r"\(D\d+([–,; -]+D?\d+)*\)")
FORBIDDEN = {
    re.compile(rf"(?<![A-Za-z])(?:{pattern})(?![A-Za-z])", re.IGNORECASE): instead for pattern, instead in WORDS.items()
}

# Files in which a word is right, and why. A word is given as it is found, in lower case.
ALLOWED: dict[str, dict[str, str]] = {
    "benchmarks/check_walk.py": dict.fromkeys(("chain", "ladder"), "an old name, which published scores have"),
    "benchmarks/synthetic_graph.py": {"slots": "of a hash table"},
    "examples/demo.py": {"neighbour": "a relation of the bundled graph"},
    "tools/make_world.py": {"neighbour": "a relation of the bundled graph"},
    "docs/reference/datasets.md": {"neighbour": "a relation of the bundled graph"},
    "docs/reference/files.md": {"slot": "of a hash table"},
    "src/grash_study/store.py": dict.fromkeys(
        ("apart", "chain", "ladder", "last_holdout", "like_valid", "neighbours", "price", "rails"),
        "an old name, which published stores have",
    ),
    "src/grash_study/table.py": {"apart": "a column of published tables"},
    "src/grash/data/arrays.py": dict.fromkeys(("slot", "slots"), "of a hash table"),
    "src/grash/data/vocabulary.py": dict.fromkeys(("slot", "slots"), "of a hash table"),
    "src/grash/api/search.py": {"neighbour": "a relation of the bundled graph"},
    "src/grash/api/training.py": {"neighbour": "a relation of the bundled graph"},
}

DOCS = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    *(p for p in sorted((ROOT / "docs").rglob("*.md")) if p.parent.name not in ("decisions", "results")),
    ROOT / "docs" / "results" / "overview.md",
]  # decisions keep the words of their time, and pages of results are written by studies
SOURCES = sorted(p for folder in ("src", "benchmarks", "tools", "examples") for p in (ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("page", DOCS, ids=page_id)
def test_a_page_uses_the_words_of_the_glossary(page: Path) -> None:
    assert list(found_in(without_old_names(page.read_text(encoding="utf-8")), page_id(page))) == []


@pytest.mark.parametrize("module", SOURCES, ids=page_id)
def test_a_module_uses_the_words_of_the_glossary(module: Path) -> None:
    assert module.stem not in RIDDLES
    assert list(found_in(module.read_text(encoding="utf-8"), page_id(module))) == []


def test_help_uses_the_words_of_the_glossary() -> None:
    texts = list(helps(all_commands(), "grash"))
    assert len(texts) > 19
    assert [f"{name}: {line}" for name, text in texts for line in found_in(text, "--help")] == []


def test_an_old_word_is_noticed() -> None:
    text = "a guard rail\nthe rail goes on (D10)\nold_way = chain_of(x)\nfor the price of three"
    assert [line.partition(":")[0] for line in found_in(text, "")] == ["2", "2", "2", "3"]


def found_in(text: str, name: str) -> Iterator[str]:
    """Yield the old words of a text, as `LINE: WORD (write: INSTEAD)`."""
    allowed = ALLOWED.get(name, {})
    for number, line in enumerate(text.splitlines(), 1):
        for pattern, instead in FORBIDDEN.items():
            for match in pattern.finditer(line):
                if match[0].lower() not in allowed:
                    yield f"{number}: {match[0]} (write: {instead})"
        if match := DESIGN_REFERENCE.search(line):
            yield f"{number}: {match[0]} (write: the reason, or the number of a decision)"


def without_old_names(text: str) -> str:
    """Return a page without titles of decisions, link targets, and the section that translates old words."""
    text = re.sub(r"^## (Decisions|Words of the decision pages)$.*", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"\]\([^)]*\)", "]()", text)


def helps(command: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield (command, help text) of a command and its subcommands."""
    parts = [command.help, command.short_help, *(getattr(option, "help", "") for option in command.params)]
    yield path, "\n".join(part for part in parts if part)
    for name, below in getattr(command, "commands", {}).items():
        yield from helps(below, f"{path} {name}")
