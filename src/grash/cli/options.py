"""Options that several commands share, and `with_options`, which adds a table of options to a command."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from grash.errors import ConfigError

# Panels of the help; the key is a group of `with_options`.
PANELS = {
    "asked": "Search", "settings": "Training", "engine": "Where it runs", "reading": "How the graph is read",
}  # fmt: skip
Options = dict[str, tuple[Any, Any, Any]]  # {name: (type, default, typer.Option)}

SOURCE = (
    "A graph: a file, a folder with train/valid/test files, an encoded dataset, or a name: 'world' is bundled, grash "
    "datasets lists others."
)
MODEL = "A model folder, or the run folder of a finished search."
Source = Annotated[str, typer.Argument(metavar="SOURCE", help=SOURCE, show_default=False)]
ModelFolder = Annotated[Path, typer.Argument(metavar="MODEL", help=MODEL, show_default=False)]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, from grash search.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print no plan and no progress.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")]
Threads = Annotated[int | None, typer.Option("--threads", help="CPU threads (default: all cores).")]
TopK = Annotated[int, typer.Option("--top-k", "-k", help="Number of answers.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing output.")]


def optional(kind: Any, help: str, *names: str, metavar: str | None = None) -> tuple[Any, Any, Any]:
    """Return an option without a default, whose help tells what happens without it; it is named after its key."""
    option = typer.Option(help=help, metavar=metavar, show_default=False)
    option.param_decls = names  # as arguments, the first would become `default`
    return kind | None, None, option


READING: Options = {
    "separator": optional(str, "tab, comma, semicolon, space, whitespace, or one character (default: guessed)."),
    "header": optional(bool, "Whether the first line names the columns (default: guessed)."),
    "columns": optional(
        str, "Order of the columns, e.g. htr; or the columns of head, relation, tail by position (0,2,1) or name."
    ),
    "bad_lines": optional(str, "Lines of text that are not triples: error (default), skip, or list them in a file."),
    "literals": optional(str, "RDF triples with a literal as object: skip (default) or keep."),
    "duplicates": optional(str, "Repeated triples in train: drop (default) or keep."),
    "valid_fraction": optional(
        float, "Fraction of train to use as valid if there is no valid split (default: 0.05, at most 10,000 triples)."
    ),
    "test_fraction": optional(
        float, "Fraction of train to use as test if there is no test split (default: 0.05, at most 10,000 triples)."
    ),
    "n_valid": optional(int, "Number of triples split off for valid."),
    "n_test": optional(int, "Number of triples split off for test."),
    "seed": optional(int, "Seed of that split (default: 0).", "--split-seed"),
    "format": optional(
        str, "text, ntriples, nquads, turtle, rdfxml, parquet, npy or npz (default: by content and name)."
    ),
}


def with_options(command: Callable[..., Any], **groups: Options) -> Callable[..., Any]:
    """Return the command with more options: with_options(f, reading=READING) calls f(…, reading={given options}).

    Options that were not given and have no default are left out of the dictionary.
    """

    @functools.wraps(command)
    def with_groups(**arguments: Any) -> Any:
        for group, options in groups.items():
            values = {name: arguments.pop(f"{group}_{name}") for name in options}
            arguments[group] = {name: value for name, value in values.items() if value is not None}
        return command(**arguments)

    own, keyword = inspect.signature(command, eval_str=True), inspect.Parameter.KEYWORD_ONLY
    kept = (p for p in own.parameters.values() if p.name not in groups and p.kind is not p.VAR_KEYWORD)
    parameters = [p.replace(kind=keyword) for p in kept]
    for group, options in groups.items():
        for name, (kind, default, option) in options.items():
            plain = f"--{name}".replace("_", "-")
            switch = f"{plain}/--no{plain[1:]}" if kind == bool | None else plain
            if not option.param_decls and option.default is ...:
                option.param_decls = (switch,)
            option.rich_help_panel = option.rich_help_panel or PANELS.get(group)
            annotation: Any = Annotated[kind, option]
            parameters.append(inspect.Parameter(f"{group}_{name}", keyword, default=default, annotation=annotation))
    with_groups.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    with_groups.__annotations__ = {p.name: p.annotation for p in parameters}
    del with_groups.__wrapped__
    return with_groups


# What people call an option → our options with that meaning; a command has some of them.
_MEANINGS = {
    "minutes hours seconds duration time-limit timeout max-time budget-seconds wall-time": "--time --max-seconds",
    "batch batchsize bs": "--batch-size",
    "learning-rate learningrate rate alpha": "--lr",
    "trials num-trials configs configurations num-samples samples": "--n-trials",
    "dimension dimensions embedding-dim embedding-size hidden rank": "--dim",
    "iterations num-epochs max-epochs epoch": "--epochs",
    "gpu gpus cuda cpu accelerator": "--device",
    "jobs n-jobs parallel num-workers processes concurrency": "--workers",
    "output output-dir outdir dir save save-to run-dir to": "--out",
    "subject source-entity start": "--head",
    "object target target-entity end": "--tail",
    "predicate property edge rel": "--relation",
    "top topk limit max-results num": "--top-k",
    "sep delimiter delim": "--separator",
    "regularization regularizer weight-decay l2 l3 n3": "--penalty --penalty-weight",
    "early-stopping stop-after": "--patience",
    "random-state random-seed": "--seed",
    "num-negatives negative-samples": "--negatives",
    "force replace clobber": "--overwrite",
    "silent": "--quiet",
    "debug details long": "--verbose",
    "file input queries": "--questions",
    "validation-fraction val-fraction valid-split": "--valid-fraction",
    "settings yaml configuration": "--config",
}


_COMMANDS = {  # what people call a command → ours
    "tune optimize optimise hpo hyperopt sweep": "search",
    "fit learn": "train",
    "test eval validate benchmark": "evaluate",
    "query ask answer complete infer": "predict",
    "info stats summary inspect show": "describe",
    "encode convert load import read": "prepare",
    "continue restart": "resume",
    "compare html": "report",
    "list progress": "status",
    "download get fetch": "datasets",
    "similar nearest": "neighbors",
    "sample subgraph cut": "reduce",
    "params hyperparameters options": "settings",
}


def suggest_command(tried: str) -> str | None:
    """Return the command that an unknown one may mean."""
    return next((ours for words, ours in _COMMANDS.items() if tried.lower() in words.split()), None)


def suggest_options(tried: str, known: list[str]) -> list[str]:
    """Return options of a command that an unknown one may mean: by meaning first, else by similar letters.

    A setting of a training that is no option of the command is suggested as --set NAME=VALUE.
    """
    word = tried.lstrip("-").replace("_", "-").lower()
    meant = [name for words, names in _MEANINGS.items() if word in words.split() for name in names.split()]
    found = [name for name in (f"--{word}", *meant) if name in known]
    if not found and "--set" in known:
        from grash.training.config import TrainConfig

        fields = [name.lstrip("-").replace("-", "_") for name in (word, *meant)]
        found = [f"--set {name}=VALUE" for name in fields if name in TrainConfig.model_fields]
    return found if found or meant else difflib.get_close_matches(f"--{word}", known, n=2, cutoff=0.7)


def option_name(options: Options, name: str) -> str:
    """Return how an option of a table is written, e.g. --split-seed."""
    option = options[name][2]
    given = option.default if isinstance(option.default, str) else option.param_decls[0]
    return str(given).partition("/")[0]


def parse_assignment(text: str) -> tuple[str, Any]:
    """Return (name, value) of a --set option, name=value; the value is read as YAML."""
    import yaml

    from grash.yaml_files import parse_yaml

    name, equals, value = text.partition("=")
    text = text if len(text) <= 80 else f"{text[:77]}..."
    if not equals or not name:
        raise ConfigError(f"--set {text} is not a setting: give name=value, e.g. --set margin=9.")
    try:
        return name.strip().replace("-", "_"), parse_yaml(value)
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"--set {text}: the value cannot be read. Give name=value, e.g. --set margin=9.") from error
