"""`grash`: the verbs together, and what becomes of errors: one sentence on stderr and an exit code.

Exit codes: 0 done; 2 a mistake in input or settings; 3 not enough memory; 4 a file could not be written;
5 diverged; 6 a search without a winner; 7 a search stopped by --max-seconds; 8 a rank was
lost; 130 interrupted.
A traceback means a defect of grash (or GRASH_DEBUG=1, or --debug).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from itertools import takewhile
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from grash import __version__
from grash.cli import data, export, query, search, settings, study, train
from grash.cli.console import say
from grash.cli.train import several
from grash.errors import ConfigError, GrashError, InputError, MemoryPlanError


class Verbs(TyperGroup):
    """Says that a verb was interrupted: the library underneath would leave without a word."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            again = ": give the same command again" if ctx.invoked_subcommand == "prepare" else ""
            say(f"interrupted{again}.")
            raise typer.Exit(130) from None


app = typer.Typer(
    name="grash",
    cls=Verbs,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
for verbs in (data, search, train, query, export, settings, study):
    verbs.add_to(app)


@app.callback()
def grash(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and leave.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Knowledge graph embeddings: from a graph file to a trained, evaluated, queryable model.

    Begin with: grash search world
    """
    if several() and context.invoked_subcommand not in (None, "train"):
        raise ConfigError(
            f"grash {context.invoked_subcommand} works in one process, and torchrun or the like started several: start "
            f"it alone. docs/how-to/many-devices.md says how a search uses several devices."
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line (sys.argv by default) and gives back its exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    before_verb = list(takewhile(lambda a: a.startswith("-"), arguments))
    if "--version" in before_verb:
        print(f"grash {__version__}")
        return 0
    debug = "--debug" in before_verb or os.environ.get("GRASH_DEBUG", "0") not in ("", "0")
    try:
        code = app(args=arguments, prog_name="grash", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except BrokenPipeError:
        return _pipe_closed()
    except (KeyboardInterrupt, typer.Abort):  # before or after the verb
        say("interrupted.")
        return 130
    except typer.Exit as leave:
        return leave.exit_code
    except Exception as error:
        if debug:
            raise
        return _explain(error)


def _explain(error: Exception) -> int:
    """Prints the sentence of a user's mistake and gives back the exit code; raises what is a defect."""
    if isinstance(error, GrashError):
        say(f"error: {error}")
        return error.exit_code
    if callable(getattr(error, "format_message", None)):  # a wrong command line, from typer or its click
        return _explain_usage(error)
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        say("error: Memory ran out: try a smaller batch_size, fewer negatives or a smaller dim.")
        return MemoryPlanError.exit_code
    if isinstance(error, OSError):
        what = f"{error.filename}: " if error.filename else ""
        say(f"error: {what}{error.strerror or error}.")
        return InputError.exit_code
    raise error


def _explain_usage(error: Exception) -> int:
    message = " ".join(error.format_message().split())  # type: ignore[attr-defined]
    context = getattr(error, "ctx", None)
    if context is not None and type(error).__name__ == "NoArgsIsHelpError":
        print(context.get_help())
        return 2
    path = context.command_path if context is not None else "grash"
    say(f"error: {message if message.endswith(('.', '?')) else message + '.'} See {path} --help.")
    return 2


def _pipe_closed() -> int:
    """The reader of our output has left (as `head` does): leave quietly too."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 141
