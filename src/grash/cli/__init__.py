"""The command line: parse, wire, print. One file per group of verbs; `entry` joins them and meets the errors."""

from grash.cli.app import main

__all__ = ["main"]
