"""The command line. One file per group of commands; `app` joins them and turns errors into messages."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from grash.errors import INTERRUPTED


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line (default: sys.argv) and return its exit code."""
    try:
        from grash.cli import app  # not before: `grash_study.cli` imports modules of this package, and `app` imports it
    except KeyboardInterrupt:  # later ones are in `app`
        sys.stderr.write("Interrupted.\n")
        return INTERRUPTED
    return app.main(arguments)


__all__ = ["main"]
