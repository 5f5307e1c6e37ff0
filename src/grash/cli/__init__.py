"""The command line. One file per group of commands; `app` joins them and turns errors into messages."""

from grash.cli.app import main

__all__ = ["main"]
