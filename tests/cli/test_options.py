"""Options: what an unknown one may mean, panels of the help, completion in a shell."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from grash.cli.app import all_commands
from grash.cli.options import _COMMANDS, _MEANINGS, suggest_options
from small_graph import grash

SEARCH = ["--time", "--max-seconds", "--epochs", "--n-trials", "--device", "--out", "--set", "--dim"]


@pytest.mark.parametrize(
    ("tried", "expected"),
    [
        ("--minutes", ["--time", "--max-seconds"]),
        ("--trials", ["--n-trials"]),
        ("--gpu", ["--device"]),
        ("--output", ["--out"]),
        ("--embedding_dim", ["--dim"]),
        ("--batch", ["--set batch_size=VALUE"]),
        ("--learning-rate", ["--set lr=VALUE"]),
        ("--label-smoothing", ["--set label_smoothing=VALUE"]),
        ("--epocs", ["--epochs"]),
        ("--subject", []),  # a search asks for no head
        ("--xyzzy", []),
    ],
)
def test_an_unknown_option_is_understood_by_its_meaning(tried: str, expected: list[str]) -> None:
    assert suggest_options(tried, SEARCH) == expected


def test_the_error_names_the_option_that_was_meant() -> None:
    ran = grash("train", "world", "--learning-rate", "1")
    assert ran.code == 2 and ran.err == (
        "error: No such option: --learning-rate. Did you mean --lr? See grash train --help.\n"
    )


def test_an_unknown_command_is_understood_by_its_meaning() -> None:
    assert grash("tune", "world").err == "error: No such command 'tune'. Did you mean 'search'? See grash --help.\n"
    assert grash("ask").err == "error: No such command 'ask'. Did you mean 'predict'? See grash --help.\n"
    assert grash("xyzzy").err == "error: No such command 'xyzzy'. See grash --help.\n"


def test_every_command_and_option_that_is_suggested_exists() -> None:
    assert {name for name in _COMMANDS.values() if name not in all_commands().commands} == set()
    known = {
        option
        for command in all_commands().commands.values()
        for parameter in command.params
        for option in parameter.opts
    }
    assert {name for names in _MEANINGS.values() for name in names.split()} - known == set()


def test_help_is_grouped_in_panels_and_plain_in_a_pipe() -> None:
    ran = grash("--help")
    assert re.findall(r"╭─ ([\w ]+) ─", ran.out) == ["Options", "Graphs", "Search", "Models", "More"]
    panels = re.findall(r"╭─ ([\w, ]+) ─", grash("search", "--help").out)
    assert panels == ["Arguments", "Options", "Search", "Search, in detail", "Where it runs", "How the graph is read"]
    assert "\x1b" not in ran.out


@pytest.mark.slow
def test_a_shell_completes_commands_and_options() -> None:
    code = "import sys\nfrom grash.cli import main\nsys.exit(main())"
    for typed, expected in (("grash pr", "predict"), ("grash search world --n-t", "--n-trials")):
        words = {"COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" ")), "_GRASH_COMPLETE": "complete_bash"}
        ran = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **words}, check=True
        )
        assert expected in ran.stdout.split()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("plan world --epochs 0", "--epochs 0 is not valid: give a larger number, above 0."),
        ("plan world -e 0", "--epochs 0 is not valid"),
        ("plan world -e0", "--epochs 0 is not valid"),
        ("plan world --n-trials=0", "--n-trials 0 is not valid"),
        ("train world --set dim=0", "--set dim=0 is not valid"),
        ("search world -n 0", "--n-trials 0 is not valid: give 1 or more."),
        ("search world -B0", "--budget 0 is not valid: give a larger number, above 0."),
        (
            "search world --metric=foo",
            "--metric foo is not valid: give mrr, hits@1, hits@3, hits@10, macro-mrr or weighted-mrr.",
        ),
        ("search world --set lr=abc", "--set lr=abc is not valid: give a number."),
        ("search world --set dim=abc", "--set dim=abc is not valid: give a whole number."),
        ("train world --epochs 2e6", "--epochs 2e6 is not valid: give 1,000,000 or less."),
        ("train world --negatives -3", "--negatives -3 is not valid: give 0 or more."),
        ("train world --device gpu", "--device gpu is unknown: give auto, cpu, cuda or cuda:0, cuda:1, …"),
        ("describe world --format csv", "--format csv is unknown. Give one of text, ntriples, nquads, "),
        ("describe world --split-seed -1", "--split-seed -1 is negative. Give 0 or more."),
        ("export world -o x --format csv", "--format csv is unknown: give npy, "),
    ],
)
def test_an_error_has_the_words_of_the_command_line(words: str, sentence: str) -> None:
    ran = grash(*words.split())
    assert ran.code == 2 and ran.err.splitlines()[-1].startswith(f"error: {sentence}"), ran.err
    assert grash("prepare", "world", "-o", ".").err.endswith("replace it with --overwrite.\n")
