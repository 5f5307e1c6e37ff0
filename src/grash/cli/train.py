"""grash train, update, ensemble, models and settings: train models, fold several into one, list what can be chosen.

Under torchrun every process is a rank of one training: rank 0 prints the results, each rank its own errors.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer

from grash.cli import options
from grash.cli.console import as_json, command, say, say_when_compiling, show, show_log, status_line, table, wrapped
from grash.cli.options import (
    READING,
    Device,
    Json,
    ModelFolder,
    Overwrite,
    Quiet,
    Source,
    Threads,
    optional,
    parse_assignment,
)
from grash.errors import INTERRUPTED, ConfigError, InputError
from grash.files import beside
from grash.formatting import format_bytes, format_duration
from grash.report.meaning import FILTERS, early_stop, questions

if TYPE_CHECKING:
    import torch
    from pydantic.fields import FieldInfo

    from grash.data.dataset import Dataset
    from grash.engines.update import UpdateReport
    from grash.training.config import TrainConfig
    from grash.training.distributed.communication import ProcessGroup
    from grash.training.loop import Progress

_SETTINGS = {
    "model": optional(str, "Score function; `grash models` lists them (default: complex).", "--model", "-m"),
    "dim": optional(int, "Floats per entity (default: 128).", "--dim", "-d"),
    "reciprocal": optional(bool, "Separate embeddings for inverse relations (default: no)."),
    "training": optional(str, "negative_sampling, 1vsall or kvsall (default: negative_sampling)."),
    "negatives": optional(int, "Negatives per positive, for head and tail each (default: 500)."),
    "loss": optional(str, "softmax, bce, margin or self_adversarial (default: softmax)."),
    "epochs": optional(float, "Passes over train, e.g. 2.37 (default: 100).", "--epochs", "-e"),
    "lr": optional(float, "Learning rate (default: 0.1)."),
    "batch_size": optional(int, "Positives per step (default: 1024).", "--batch-size", "-b"),
    "optimizer": optional(str, "adagrad, row_adagrad, adam, lazy_adam or sgd (default: adagrad)."),
    "penalty": optional(str, "none, l1, l2, l3, n3 or dura (default: none)."),
    "penalty_weight": optional(float, "Weight of the penalty on entities and relations (default: 0)."),
    "dropout": optional(float, "Dropout of entity and relation embeddings (default: 0)."),
    "valid_every": optional(float, "Epochs between validations (default: 5)."),
    "patience": optional(int, "Stop after that many validations without a better MRR (default: 10)."),
    "seed": optional(int, "Seed of all random choices (default: 0)."),
    "set": optional(list[str], "Any setting; see grash settings. Repeatable.", metavar="NAME=VALUE"),
}

_SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


@dataclass(frozen=True)
class _Request:
    """What a command asks for, with the options of `grash.train` that are only passed on."""

    dataset: Dataset
    config: TrainConfig
    out: Path | None
    device: str
    threads: int | None
    placement: str
    restart: bool
    json: bool
    quiet: bool
    options: dict[str, Any]

    def model_folder(self) -> Path:
        from grash.api.training import unused_folder

        sample = self.options["valid_sample"]
        return self.out if self.out is not None else unused_folder(self.dataset, self.config, valid_sample=sample)


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel="Models")(options.with_options(train, settings=_SETTINGS, reading=READING))
    added = {name: READING[name] for name in ("separator", "header", "columns", "bad_lines", "literals", "format")}
    app.command(rich_help_panel="Models")(options.with_options(update, reading=added))
    app.command(rich_help_panel="Models")(ensemble)
    app.command(rich_help_panel="More")(models)
    app.command(rich_help_panel="More")(settings)


def train(
    source: Source,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Model folder (default: runs/DATASET-MODEL).")] = None,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="YAML file of settings, name: value.")] = None,
    device: Device = "auto",
    threads: Threads = None,
    placement: Annotated[str, typer.Option(help="Where entities are stored: auto, device, host or disk.")] = "auto",
    valid_sample: Annotated[int | None, typer.Option(help="Validate on a random sample of that many triples.")] = None,
    test_sample: Annotated[int | None, typer.Option(help="Test on a random sample of that many triples.")] = None,
    train_on_valid: Annotated[
        bool, typer.Option("--train-on-valid", help="Train on valid, too, without validation: for the final model.")
    ] = False,
    no_test: Annotated[bool, typer.Option("--no-test", help="Skip the evaluation on test.")] = False,
    overwrite: Overwrite = False,
    restart: Annotated[bool, typer.Option("--restart", help="Start again; ignore an existing checkpoint.")] = False,
    json: Json = False,
    quiet: Quiet = False,
    *,
    settings: dict[str, Any],
    reading: dict[str, Any],
) -> None:
    """Train a model on a graph, test it and save it.

    The model with the best validation MRR is kept. Ctrl-C saves a checkpoint next to the model folder; the same
    command resumes from it, with the same result. Options override the settings of --config.
    """
    from grash.api.dataset import load_dataset
    from grash.api.training import configure
    from grash.engines.trainer import set_threads

    show_log()
    if not quiet:
        say_when_compiling()
    set_threads(threads)
    chosen = configure(config, **_train_settings(settings))
    dataset = load_dataset(source, **reading)
    if train_on_valid:
        dataset = dataset.with_valid_in_train()
    more = {"overwrite": overwrite, "evaluate": not no_test, "valid_sample": valid_sample, "test_sample": test_sample}
    request = _Request(dataset, chosen, out, device, threads, placement, restart, json, quiet, more)
    if launched():
        _train_rank(request)
    else:
        _train_here(request)


def launched() -> bool:
    """Return whether torchrun or a similar launcher started this process."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def has_other_ranks() -> bool:
    """Return whether a launcher started other processes, too."""
    return launched() and os.environ["WORLD_SIZE"] != "1"


def _train_settings(given: dict[str, Any]) -> dict[str, Any]:
    """Return fields of TrainConfig; --set overrides the other options."""
    settings = dict(given)
    assignments = settings.pop("set", [])
    if (negatives := settings.pop("negatives", None)) is not None:
        settings |= {"negatives_head": negatives, "negatives_tail": negatives}
    if (weight := settings.pop("penalty_weight", None)) is not None:
        settings |= {"penalty_entity": weight}
        settings |= {"penalty_relation": weight} if settings.get("penalty") != "dura" else {}
    if (dropout := settings.pop("dropout", None)) is not None:
        settings |= {"dropout_entity": dropout, "dropout_relation": dropout}
    return settings | dict(parse_assignment(text) for text in assignments)


def _train_here(request: _Request) -> None:
    """Train in this process."""
    from grash.api.training import check_output, train
    from grash.engines.memory import choose_device
    from grash.engines.trainer import TrainingData
    from grash.training.checkpoint import checkpoint_folder

    dataset, config, given, folder = request.dataset, request.config, request.options, request.model_folder()
    checkpoint = checkpoint_folder(folder)
    check_output(folder, overwrite=given["overwrite"], test_sample=given["test_sample"])
    device = choose_device(request.device)
    data = TrainingData(dataset, device, valid_sample=given["valid_sample"])
    placed = data.choose_placement(config, placement=request.placement, folder=folder.absolute().parent)
    if request.restart:  # only now, when nothing above has refused the run
        shutil.rmtree(checkpoint, ignore_errors=True)
    started = time.monotonic()
    if not request.quiet:
        _print_plan(request, f"memory on {device}: {placed.sentence()}", folder)
    with _watching(request, request.device, checkpoint) as watch:
        where: dict[str, Any] = {"device": request.device, "threads": request.threads, "out": folder}
        model = train(dataset, config, placement=request.placement, watch=watch, progress=False, **where, **given)
    _print_result(request, model.history, model.evaluation, folder, time.monotonic() - started)


def _train_rank(request: _Request) -> None:
    """Train as one rank of several."""
    from grash.engines.distributed import join_group

    if os.environ["RANK"] != "0":
        logging.getLogger("grash").setLevel(logging.ERROR)
        request = replace(request, quiet=True)
    if request.placement not in ("auto", "device"):
        raise ConfigError(
            f"--placement {request.placement} is only for a training in one process: leave it out, and start more "
            f"ranks if the embeddings do not fit."
        )
    with join_group(request.device) as (group, device):
        _train_joined(request, group, device)


def _train_joined(request: _Request, group: ProcessGroup, device: torch.device) -> None:
    from grash.engines.distributed import run_distributed_training
    from grash.training.checkpoint import checkpoint_folder

    dataset, config, first = request.dataset, request.config, group.rank == 0
    folder = Path(group.broadcast_text(str(request.model_folder()) if first else ""))
    checkpoint = checkpoint_folder(folder)
    started = time.monotonic()
    if not request.quiet:
        rows = -(-dataset.n_entities // group.size)
        ranks = f"{group.size} ranks, {rows:,} entities each" if group.size > 1 else "one rank"
        _print_plan(request, f"{ranks}; rank 0 on {device}", folder)
    with _watching(request, str(device), checkpoint if first else None) as watch:
        given: dict[str, Any] = {"out": folder, "checkpoint": checkpoint, "restart": request.restart}
        found = run_distributed_training(dataset, config, group, device, watch=watch, **given, **request.options)
    if first:
        _print_result(request, found.history, found.evaluation, folder, time.monotonic() - started)


def _print_plan(request: _Request, plan: str, folder: Path) -> None:
    from grash.api.training import can_resume
    from grash.training.checkpoint import checkpoint_folder

    dataset, config, sample = request.dataset, request.config, request.options["valid_sample"]
    say(repr(dataset))
    say(f"{config.model}, {config.dim} floats per entity, {config.training}, {config.epochs:g} epochs → {folder}")
    say(plan)
    if not request.restart and can_resume(checkpoint_folder(folder), dataset, config, sample):
        say("Resuming from the checkpoint of this run.")


def _print_result(
    request: _Request, history: list[dict[str, Any]], evaluation: dict[str, Any], folder: Path, seconds: float
) -> None:
    """Print the best validation, the test metrics and commands to try; or everything as JSON."""
    best = max(history, key=lambda v: v["mrr"], default=None)
    dataset, early = request.dataset, early_stop(history, request.config)
    if early:
        say(f"{early}, patience {request.config.patience}. Train longer with a larger --patience.")
    if not request.quiet:
        score = "" if best is None else f"; best valid MRR {best['mrr']:.4f} at epoch {best['epoch']:g}"
        say(f"done in {format_duration(seconds)}{score}")
    if request.json:
        about = {"name": dataset.name, "fingerprint": dataset.fingerprint}
        run = {"model_folder": str(folder), "dataset": about, "config": request.config.model_dump()}
        found: dict[str, Any] = {"best_validation": best, "history": history, "evaluation": evaluation or None}
        found["stopped_early"] = early or None
        as_json({**run, **found, "seconds": seconds})
        return
    from grash.cli.query import show_evaluation, show_relations

    if evaluation:
        show_evaluation(evaluation, source=dataset.name, filtered_by=[dataset.name])
        show_relations(evaluation, folder)
        if best is not None and evaluation.get("both", {}).get("mrr", 0.0) > best["mrr"]:
            show(wrapped(FILTERS))
    show(f"\nSaved as {folder}. Try:")
    for words in _next_commands(dataset, folder):
        show(f"  {command('grash', *words)}")


def _next_commands(dataset: Dataset, folder: Path) -> Iterator[tuple[object, ...]]:
    """Yield commands that query the model, with names from test."""
    asked = questions(dataset)
    for question in asked:
        new = ("--new-only",) if "tail" in question else ()
        yield "predict", folder, *(word for part, name in question.items() for word in (f"--{part}", name)), *new
    if asked:
        yield "neighbors", folder, asked[0]["head"]
    if len(dataset.test):
        yield "evaluate", folder, "--per-relation"


@contextmanager
def _watching(request: _Request, device: str, checkpoint: Path | None) -> Iterator[Callable[[Progress], None] | None]:
    """Yield a function that shows the progress: it rewrites one line in a terminal, and elsewhere prints a line per
    validation. On Ctrl-C, print which checkpoint is left; on a full disk, it is that of an earlier step.
    """
    from grash.training.checkpoint import checkpoint_step

    try:
        with status_line(keep=True) as draw:
            yield None if request.quiet else _watcher(draw, device, request.config.valid_every)
    except KeyboardInterrupt:
        step = None if checkpoint is None else checkpoint_step(checkpoint)
        if step is not None:
            say(f"Interrupted. {checkpoint} has the checkpoint of step {step:,}; run the same command again to resume.")
        elif checkpoint is not None:
            say("Interrupted before the first checkpoint: nothing was written.")
        raise typer.Exit(INTERRUPTED) from None


def update(
    model: ModelFolder,
    new_triples: Annotated[
        str | None, typer.Argument(metavar="[NEW_TRIPLES]", help="Triples to add: a file, or a folder with splits.")
    ] = None,
    removed: Annotated[str | None, typer.Option(help="File with triples to remove from the graph.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="New model folder (default: MODEL-updated).")] = None,
    epochs: Annotated[
        float | None,
        typer.Option("--epochs", "-e", help="Passes over the examples (default: 12.5 % of the earlier; frozen: 0)."),
    ] = None,
    replay: Annotated[
        float | None, typer.Option(help="Train on new triples and that many old ones for each (default: all).")
    ] = None,
    freeze: Annotated[bool, typer.Option("--freeze", help="Leave the rows of known entities and relations.")] = False,
    new_rows: Annotated[str, typer.Option(help="How new rows start: triples, neighbors or random.")] = "triples",
    overwrite: Overwrite = False,
    device: Device = "auto",
    threads: Threads = None,
    json: Json = False,
    quiet: Quiet = False,
    *,
    reading: dict[str, Any],
) -> None:
    """Continue the training of a model after its graph has changed.

    Known names keep their rows, new ones get rows. The triples of valid and test stay held out. Prints what changed in
    the graph, metrics before and after, how far old rows moved, and the cost.
    """
    from grash.api.model import load_model, load_triples
    from grash.api.training import check_output
    from grash.models.store import model_folder

    show_log()
    source = model_folder(model)
    folder = out if out is not None else beside(source, "-updated")
    if new_triples is None and removed is None:
        raise InputError("Nothing is given: give NEW_TRIPLES, or --removed FILE.")
    check_output(folder, overwrite=overwrite, test_sample=None)
    given = {"added": new_triples, "removed": removed}
    triples = {name: None if text is None else load_triples(text, **reading) for name, text in given.items()}
    loaded = load_model(model, device=device)
    before = loaded.evaluation
    with status_line(keep=False) as draw:
        watch = None if quiet else _watcher(draw, device)
        settings: dict[str, Any] = {"epochs": epochs, "replay": replay, "freeze": freeze, "new_rows": new_rows}
        grown, report = loaded.update(triples["added"], triples["removed"], **settings, threads=threads, watch=watch)
    grown.save(folder, overwrite=overwrite)
    if json:
        as_json({"model_folder": str(folder), **report.to_dict(), "evaluation": grown.evaluation or None})
        return
    _show_report(report)
    if before and grown.evaluation:
        both = (before["both"]["mrr"], grown.evaluation["both"]["mrr"])
        show(f"\nMRR on all of test: {both[0]:.4f} before, {both[1]:.4f} now (the graph changed).")
    show(f"\nSaved as {folder}. Try:\n  {command('grash', 'evaluate', folder)}")


def _watcher(draw: Callable[[str], None], device: str, every: float | None = None) -> Callable[[Progress], None]:
    """Return a function that shows the progress; where there is no terminal, a line per `every` epochs (default: a
    quarter of all)."""
    from grash.engines.memory import choose_device, used_bytes
    from grash.report.live import progress_line

    where, terminal, lines = choose_device(device), sys.stderr.isatty(), 0

    def watch(progress: Progress) -> None:
        nonlocal lines
        due = int(progress.epoch / (every or progress.epochs / 4))
        if terminal or due != lines:
            lines = due
            draw(progress_line(progress, round(progress.epochs, 2), format_bytes(used_bytes(where))))

    return watch


def _show_report(report: UpdateReport) -> None:
    for sentence in report.diff.sentences():
        show(sentence)
    show()
    rows = [(c.what, c.n, "" if c.before is None else c.before, c.after) for c in report.changes]
    table(("MRR of", ">triples", ">before", ">after"), rows)
    show()
    for what, drift in (("entities", report.entity_drift), ("relations", report.relation_drift)):
        moved = f"{drift.n_moved:,} of {drift.n_rows:,} old rows of {what} moved"
        by = f"by {drift.mean:.1%} of a row's length on average, {drift.largest:.1%} at most"
        show(f"{moved}, {by}.".replace("%", " %") if drift.n_moved else f"{moved}.")
    show(
        f"{report.positives:,} examples ({report.epochs_of_all:.1f} epochs of the graph) in "
        f"{format_duration(report.seconds)}; optimizer state {report.optimizer_state}."
    )
    if report.diff.n_new_relations:
        say("A new relation has few triples at first: check its answers before you rely on them.")


def ensemble(
    models: Annotated[
        list[Path], typer.Argument(metavar="MODEL", help="Two model folders or more.", show_default=False)
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Model folder to write.")],
    device: Device = "auto",
    valid_sample: Annotated[int | None, typer.Option(help="Validate on a random sample of that many triples.")] = None,
    test_sample: Annotated[int | None, typer.Option(help="Test on a random sample of that many triples.")] = None,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Fold several models of one graph into one, whose score is the sum of theirs.

    For models with the same score function, trained with other seeds or settings. The new model is tested, calibrated
    and queried like any other; its dimension is the sum of theirs.
    """
    from grash.api.model import load_model
    from grash.api.training import ensemble as fold
    from grash.cli.query import show_evaluation

    show_log()
    members = [load_model(folder, device=device) for folder in models]
    options: dict[str, Any] = {"valid_sample": valid_sample, "test_sample": test_sample}
    folded = fold(members, out=out, device=device, overwrite=overwrite, **options)
    names, all_models, mrrs = [*map(str, models), str(out)], [*members, folded], []
    if len(folded.dataset.valid):
        sample: dict[str, Any] = {"sample": valid_sample, "seed": folded.config.seed}
        mrrs = [model.evaluate(split="valid", **sample).both.mrr for model in all_models]
    rows = list(zip_longest(names, (model.kge.dim for model in all_models), mrrs))
    if json:
        found = [dict(zip(("model_folder", "dim", "valid_mrr"), row)) for row in rows]
        as_json({**found.pop(), "members": found, "evaluation": folded.evaluation or None})
        return
    table(("model", ">dim", ">valid MRR"), [["" if cell is None else cell for cell in row] for row in rows])
    if mrrs and mrrs[-1] <= max(mrrs[:-1]):
        say("The ensemble is no better on valid than its best member: use that one.")
    if folded.evaluation:
        show_evaluation(folded.evaluation, source=folded.dataset.name, filtered_by=[folded.dataset.name])
    show(f"\nSaved as {out}. Try:")
    for words in _next_commands(folded.dataset, out):
        show(f"  {command('grash', *words)}")


def models(json: Json = False) -> None:
    """List the models and their score functions."""
    from grash.models import MODELS

    formulas = {name: (sys.modules[cls.__module__].__doc__ or "").split("\n\n")[0] for name, cls in MODELS.items()}
    rows = {name: " ".join(text.split()) for name, text in formulas.items()}
    if json:
        as_json(rows)
        return
    table(("model", "score of (head, relation, tail)"), list(rows.items()))
    show("\nHigher scores are more plausible. Train one with: grash train SOURCE --model NAME")


def settings(json: Json = False) -> None:
    """List the settings of a training."""
    rows = setting_rows()
    if json:
        as_json([dict(zip(("name", "values", "default", "meaning"), row)) for row in rows])
        return
    if sys.stdout.isatty():
        for name, values, default, meaning in rows:
            show(f"{name} = {default}")
            show(wrapped(f"{meaning} Values: {values}.", indent="    "))
    else:
        table(("setting", "values", "default", "meaning"), rows)
    show("\nGive a setting as --set name=value, or as a line `name: value` in a file for --config.")


def setting_rows() -> list[tuple[str, str, str, str]]:
    """Return name, values, default and meaning of each field of TrainConfig."""
    from grash.training.config import TrainConfig

    return [
        (name, _values(name, field), _value_text(field.default), field.description or "")
        for name, field in TrainConfig.model_fields.items()
    ]


def _values(name: str, field: FieldInfo) -> str:
    if name == "model":
        from grash.models import MODELS

        return ", ".join(MODELS)
    kind: Any = field.annotation
    none = type(None) in get_args(kind)
    if none:
        kind = next(part for part in get_args(kind) if part is not type(None))
    if get_origin(kind) is Literal:
        text = ", ".join(_value_text(value) for value in get_args(kind))
    elif kind is bool:
        text = "true, false"
    else:
        text = {int: "whole number", float: "number"}.get(kind, kind.__name__)
        bounds = [f"{_SIGNS[s]} {getattr(m, s):,.15g}" for m in field.metadata for s in _SIGNS if hasattr(m, s)]
        text = " ".join([text, " and ".join(bounds)]).strip()
    return f"{text}, or none" if none else text


def _value_text(value: Any) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
