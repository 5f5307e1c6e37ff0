"""The command line. One file per group of commands; `app` joins them and turns errors into messages."""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line (default: sys.argv) and return its exit code."""
    from grash.cli.app import main as run  # not at the top: `app` imports `grash_study.cli`, which imports this package

    return run(arguments)
