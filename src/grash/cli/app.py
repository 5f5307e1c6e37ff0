"""`grash`: all commands together. An error becomes one message on stderr and an exit code.

Exit codes: 0 done; 2 wrong input or settings; 3 not enough memory; 4 a file could not be written; 5 diverged;
6 a search without a winner; 7 stopped by --max-seconds; 8 a rank was lost; 130 interrupted.
A traceback means a defect of grash (or GRASH_DEBUG=1, or --debug).
"""

from __future__ import annotations

import functools
import os
import platform
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from itertools import takewhile
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from grash import __version__
from grash.cli import data, query, search, serve, train
from grash.cli.console import say
from grash.cli.options import suggest_command, suggest_options
from grash.cli.train import has_other_ranks
from grash.errors import INTERRUPTED, ConfigError, GrashError, InputError, MemoryPlanError, RankLost, is_memory_error
from grash.formatting import format_bytes

_MIN_ADDRESS_SPACE = 5 << 28  # bytes; below 1.15 GiB libraries abort the process when they are loaded or first used
_OPTION_OF = {  # options that are not named as in Python
    "k": "top_k", "negatives_head": "negatives", "penalty_entity": "penalty_weight", "dropout_entity": "dropout",
}  # fmt: skip


class Commands(TyperGroup):
    """Prints that a command was interrupted; typer alone would exit without a message."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        try:
            return super().make_context(*arguments, **options)
        except KeyboardInterrupt:  # before a command is known
            raise typer.Abort from None

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            hint = " Run the same command again to continue." if ctx.invoked_subcommand == "prepare" else ""
            say(f"Interrupted.{hint}")
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    name="grash", cls=Commands, no_args_is_help=True, rich_markup_mode="markdown", pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)  # fmt: skip
for group in (data, search, train, query, serve):
    group.add_to(app)
import_module("grash_study.cli").add_to(app)  # a package beside the product, with its own dependencies


@app.callback()
def grash(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Show the versions of grash, Python and torch, and the device.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of errors.")] = False,
) -> None:
    """Tune, train, evaluate and query knowledge graph embeddings.

    Try: grash search world
    """
    limit = address_space()
    if limit is not None and limit < _MIN_ADDRESS_SPACE:
        raise MemoryPlanError(
            f"The address space of this process is limited to {format_bytes(limit)} (ulimit -v), and torch and numba "
            f"need {format_bytes(_MIN_ADDRESS_SPACE)} to start. Raise the limit."
        )
    if has_other_ranks() and context.invoked_subcommand not in (None, "train"):
        raise ConfigError(
            f"grash {context.invoked_subcommand} runs in one process, but a launcher such as torchrun started several: "
            f"run it without one. docs/how-to/many-devices.md explains how a search uses several devices."
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line (default: sys.argv) and return its exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    global_options = list(takewhile(lambda a: a.startswith("-"), arguments))
    if "--version" in global_options:
        print(_versions())
        return 0
    debug = "--debug" in global_options or os.environ.get("GRASH_DEBUG", "0") not in ("", "0")
    try:
        code = all_commands()(args=arguments, prog_name="grash", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except BrokenPipeError:  # the reader of the output (e.g. `head`) is gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (KeyboardInterrupt, typer.Abort):  # before or after the command itself
        say("Interrupted.")
        return INTERRUPTED
    except typer.Exit as leave:
        return leave.exit_code
    except Exception as error:
        if debug:
            raise
        return _explain(error, arguments)


@functools.cache
def all_commands() -> Any:
    """Return the commands as click has them. Making them from the functions takes a tenth of a second."""
    return typer.main.get_command(app)


def _versions() -> str:
    """Return the versions that a report of a defect needs, and the device that `auto` chooses."""
    lines = [f"grash {__version__}", f"Python {platform.python_version()} on {platform.platform()}"]
    try:
        import torch

        cuda = torch.cuda.is_available()
        lines += [f"torch {torch.__version__}", f"device {torch.cuda.get_device_name() if cuda else 'cpu'}"]
    except Exception as error:  # also a broken installation, whose versions are of interest
        lines.append(f"torch cannot be imported: {error}")
    return "\n".join(lines)


def _explain(error: Exception, arguments: Sequence[str]) -> int:
    """Print the message of an expected error and return its exit code; raise all others, since they are defects."""
    if isinstance(error, GrashError):
        # every rank prints its error, since the first one to end ends the others
        rank = f"rank {os.environ['RANK']}: " if has_other_ranks() and not isinstance(error, RankLost) else ""
        say(f"error: {rank}{_in_options(str(error), arguments)}")
        return error.exit_code
    if callable(getattr(error, "format_message", None)):  # a wrong command line, from typer or click
        return _explain_usage(error)
    limit = address_space()
    no_errno = isinstance(error, OSError) and error.errno is None  # a library that could not be loaded
    if limit is not None and (no_errno or isinstance(error, ImportError | MemoryError | RuntimeError)):
        say(
            f"error: {str(error).rstrip('.') or type(error).__name__}. The address space is limited to "
            f"{format_bytes(limit)} (ulimit -v), which may be too little. GRASH_DEBUG=1 shows where it failed."
        )
        return MemoryPlanError.exit_code
    if is_memory_error(error):
        say("error: Out of memory. Try a smaller batch_size, fewer negatives or a smaller dim.")
        return MemoryPlanError.exit_code
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        say(f"error: {where}{error.strerror or error}.")
        return InputError.exit_code
    raise error


def _in_options(message: str, arguments: Sequence[str]) -> str:
    """Return a message of the Python API in the words of the command line: "--epochs 0", not "max_epochs=0"."""
    message = re.sub(r"(--[\w-]+) \(\w+=\w*\)", r"\1", message)
    message = re.sub(r"\w+=\w+ \((--[^()]+)\)", r"\1", message)  # unseen=drop (--unseen drop)
    found = re.match(r"(\w+)=('[^']*'|\S+?)(?=:? )", message)
    typed = None if found is None else _as_typed(found[1], arguments)
    if found is None or typed is None:
        return message
    return typed + re.sub(r"'([^' ]+)'", r"\1", found.string[found.end() :])


def _as_typed(setting: str, arguments: Sequence[str]) -> str | None:
    """Return the option of a setting with its value, as they were typed; None if it was not given."""
    command = all_commands().commands.get(next(iter(arguments), ""))
    names = {setting, _OPTION_OF.get(setting, setting)}
    options: dict[str, str] = {}
    for parameter in [] if command is None else command.params:
        if names & {parameter.name, parameter.name.partition("_")[2]}:  # the groups of `with_options` begin its name
            options |= dict.fromkeys(parameter.opts, parameter.opts[0])
    for word, following in reversed([*zip(arguments, [*arguments[1:], ""])]):  # the last of an option counts
        option, equals, value = word.partition("=") if word.startswith("--") else (word[:2], word[2:], word[2:])
        value = value if equals else following
        if option in options:
            return f"{options[option]} {value}"
        if option == "--set" and value.partition("=")[0].strip().replace("-", "_") == setting:
            return f"--set {value}"
    return None


def address_space() -> int | None:
    """Return the limit on the virtual memory of this process (`ulimit -v`), None without one."""
    import resource

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def _explain_usage(error: Exception) -> int:
    message = " ".join(error.format_message().split())  # type: ignore[attr-defined]
    context = getattr(error, "ctx", None)
    if context is not None and type(error).__name__ == "NoArgsIsHelpError":
        print(context.get_help())
        return 2
    path = context.command_path if context is not None else "grash"
    if context is not None and (tried := getattr(error, "option_name", None)) and message.startswith("No such option"):
        known = [name for parameter in context.command.params for name in parameter.opts if name.startswith("--")]
        found = suggest_options(str(tried), known)
        message = f"No such option: {tried}." + (f" Did you mean {' or '.join(found)}?" if found else "")
    tried = re.match(r"No such command '(.*)'\.$", message)
    if tried is not None and path == "grash" and (meant := suggest_command(tried[1])) is not None:
        message += f" Did you mean {meant!r}?"
    say(f"error: {message if message.endswith(('.', '?')) else message + '.'} See {path} --help.")
    return 2
