"""grash train: settings from a file and options, progress while it runs, metrics and what to try next at the end."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grash.cli.console import as_json, command, listen, say
from grash.cli.options import Device, Json, Source, Threads, takes_source_options
from grash.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from grash.api.model import Model
    from grash.data.dataset import Dataset
    from grash.engines.distributed import Finished
    from grash.training.config import TrainConfig
    from grash.training.distributed.communication import ProcessGroup
    from grash.training.loop import Progress


_OWN_OPTIONS = (
    "model", "dim", "reciprocal", "training", "loss", "epochs", "lr", "batch_size", "optimizer", "penalty",
    "valid_every", "patience", "seed",
)  # fmt: skip


def add_to(app: typer.Typer) -> None:
    app.command()(takes_source_options(train))


def train(
    source: Source,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="Model folder to write; runs/DATASET-MODEL by default.", show_default=False),
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="YAML file of settings, name: value.", show_default=False)
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="complex, cp, distmult, rescal, rotate or transe [complex].")
    ] = None,
    dim: Annotated[int | None, typer.Option("--dim", "-d", help="Floats per entity [128].")] = None,
    reciprocal: Annotated[
        bool | None, typer.Option("--reciprocal/--no-reciprocal", help="Inverse relations with rows of their own [no].")
    ] = None,
    training: Annotated[
        str | None, typer.Option("--training", help="negative_sampling, 1vsall or kvsall [negative_sampling].")
    ] = None,
    negatives: Annotated[
        int | None, typer.Option("--negatives", "-n", help="Negatives per positive, for each of head and tail [500].")
    ] = None,
    loss: Annotated[
        str | None, typer.Option("--loss", help="softmax, bce, margin or self_adversarial [softmax].")
    ] = None,
    epochs: Annotated[float | None, typer.Option("--epochs", "-e", help="Passes over train, 2.37 too [100].")] = None,
    lr: Annotated[float | None, typer.Option("--lr", help="Learning rate [0.1].")] = None,
    batch_size: Annotated[int | None, typer.Option("--batch-size", "-b", help="Positives per step [1024].")] = None,
    optimizer: Annotated[
        str | None, typer.Option("--optimizer", help="adagrad, row_adagrad, adam, lazy_adam or sgd [adagrad].")
    ] = None,
    penalty: Annotated[str | None, typer.Option("--penalty", help="none, l1, l2, l3, n3 or dura [none].")] = None,
    penalty_weight: Annotated[
        float | None, typer.Option("--penalty-weight", help="Weight of the penalty on entities and relations [0].")
    ] = None,
    dropout: Annotated[float | None, typer.Option("--dropout", help="Dropout of entity and relation rows [0].")] = None,
    valid_every: Annotated[float | None, typer.Option("--valid-every", help="Epochs between validations [5].")] = None,
    patience: Annotated[
        int | None, typer.Option("--patience", help="Validations without a better MRR before stopping [10].")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Every random choice follows from it [0].")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Any setting, as name=value; see grash settings. Repeatable.")
    ] = None,
    device: Device = "auto",
    threads: Threads = None,
    placement: Annotated[
        str, typer.Option("--placement", help="Where entity rows lie: auto, device, host or disk; see docs.")
    ] = "auto",
    valid_sample: Annotated[
        int | None, typer.Option("--valid-sample", help="Validate on that many triples of valid, for large graphs.")
    ] = None,
    test_sample: Annotated[
        int | None, typer.Option("--test-sample", help="Test on that many triples of test, for large graphs.")
    ] = None,
    no_test: Annotated[bool, typer.Option("--no-test", help="Leave out the evaluation on test.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a model that is in the folder.")] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Begin anew, whatever checkpoint is there.")] = False,
    json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No plan and no progress.")] = False,
    *,
    reading: dict[str, Any],
) -> None:
    """Train a model on a graph, test it and save it.

    The model of the best validation is kept. Ctrl-C saves a checkpoint beside the model folder; the same command
    goes on from it, to the same result.
    Defaults stand in [brackets]; --config gives others, and options change those.
    """
    from grash.api import dataset as datasets_api
    from grash.api import training as training_api
    from grash.engines.trainer import set_threads

    listen()
    set_threads(threads)
    chosen = training_api.configure(config, **_settings(locals(), settings))
    dataset = datasets_api.load_dataset(source, **reading)
    if launched():
        train_as_rank(
            dataset, chosen, out=out, device=device, restart=restart, json=json, quiet=quiet, overwrite=overwrite,
            evaluate=not no_test, valid_sample=valid_sample, test_sample=test_sample, placement=placement,
        )  # fmt: skip
        return
    folder = out if out is not None else training_api.free_folder(dataset, chosen, valid_sample=valid_sample)
    training_api.check_place(folder, overwrite=overwrite, test_sample=test_sample)
    plan = _plan(dataset, chosen, device, placement, folder, valid_sample)
    if restart:  # nothing is removed before all that can be refused
        shutil.rmtree(training_api.checkpoint_of(folder), ignore_errors=True)
    started = time.monotonic()
    if not quiet:
        goes_on = training_api.goes_on_from(training_api.checkpoint_of(folder), dataset, chosen, valid_sample)
        _say_plan(dataset, chosen, plan, folder, goes_on)
    try:
        with progress_display(chosen, device, quiet=quiet) as watch:
            trained = training_api.train(
                dataset, chosen, out=folder, device=device, threads=threads, watch=watch, overwrite=overwrite,
                evaluate=not no_test, valid_sample=valid_sample, test_sample=test_sample, placement=placement,
            )  # fmt: skip
    except KeyboardInterrupt:
        raise typer.Exit(interrupted(training_api.checkpoint_of(folder))) from None
    if not quiet:
        _say_best(trained, time.monotonic() - started)
    if json:
        as_json(_summary(trained, folder, time.monotonic() - started))
    else:
        _show_result(trained, folder)


def _settings(options: dict[str, Any], assignments: list[str] | None) -> dict[str, Any]:
    """The fields of TrainConfig that the options give, those of --set last."""
    given = {name: options[name] for name in _OWN_OPTIONS}
    given["negatives_head"] = given["negatives_tail"] = options["negatives"]
    given["penalty_entity"] = options["penalty_weight"]
    given["penalty_relation"] = None if options["penalty"] == "dura" else options["penalty_weight"]
    given["dropout_entity"] = given["dropout_relation"] = options["dropout"]
    values = {name: value for name, value in given.items() if value is not None}
    return values | dict(assignment(text) for text in assignments or [])


def assignment(text: str) -> tuple[str, Any]:
    """(name, value) of name=value."""
    import yaml

    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"--set {text} is no setting: give name=value, as in --set margin=9.")
    try:
        return name.strip().replace("-", "_"), yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {text} has a value that cannot be read: give name=value.") from error


def _plan(dataset: Dataset, config: TrainConfig, device: str, placement: str, folder: Path, sample: int | None) -> str:
    """What the run takes on its device; refuses what does not fit."""
    from grash.engines.device import choose_device
    from grash.engines.trainer import TrainingData

    where = choose_device(device)
    placed = TrainingData(dataset, where, valid_sample=sample).choose_placement(
        config, placement=placement, folder=folder.absolute().parent
    )
    return f"memory on {where}: {placed.sentence()}"


def _say_plan(dataset: Dataset, config: TrainConfig, plan: str, folder: Path, goes_on: bool) -> None:
    say(repr(dataset))
    say(f"{config.model}, {config.dim} floats per entity, {config.training}, {config.epochs:g} epochs → {folder}")
    say(plan)
    if goes_on:
        say("A checkpoint of this run is there: it goes on from it.")


def _say_best(model: Model, seconds: float) -> None:
    best = max(model.history, key=lambda v: v["mrr"], default=None)
    found = "" if best is None else f"; best valid MRR {best['mrr']:.4f} at epoch {best['epoch']:g}"
    say(f"done in {seconds:.1f} s{found}")


def interrupted(checkpoint: Path) -> int:
    """Says what a Ctrl-C leaves; the exit code. A disk without room keeps the checkpoint of an earlier step."""
    from grash.training.checkpoint import checkpoint_step

    step = checkpoint_step(checkpoint)
    if step is not None:
        say(
            f"interrupted: the checkpoint at {checkpoint} is of step {step:,}; give the same command again to go on "
            f"from it."
        )
    else:
        say("interrupted before a checkpoint was saved: nothing was written.")
    return 130


def _summary(model: Model, folder: Path, seconds: float) -> dict[str, Any]:
    best = max(model.history, key=lambda v: v["mrr"], default=None)
    return {
        "model_folder": str(folder),
        "dataset": {"name": model.dataset.name, "fingerprint": model.dataset.fingerprint},
        "config": model.config.model_dump(),
        "best_validation": best,
        "history": model.history,
        "evaluation": model.evaluation or None,
        "seconds": seconds,
    }


def _show_result(model: Model, folder: Path) -> None:
    from grash.cli.query import show_evaluation

    if model.evaluation:
        show_evaluation(model.evaluation)
    split = next(s for s in (model.dataset.test, model.dataset.valid, model.dataset.train) if len(s))
    head, relation, tail = (int(i) for i in split[0])
    names = (model.entity_name(head), model.relation_name(relation), model.entity_name(tail))
    print(f"\nSaved as {folder}. Try:")
    print(f"  {command('grash', 'predict', folder, '--head', names[0], '--relation', names[1])}")
    print(f"  {command('grash', 'predict', folder, '--relation', names[1], '--tail', names[2], '--new-only')}")
    print(f"  {command('grash', 'neighbors', folder, names[0])}")
    if len(model.dataset.test):
        print(f"  {command('grash', 'evaluate', folder, '--per-relation')}")


# = grash train under torchrun: every process is a rank of one training. Rank 0 says what goes well, and
# = each what goes wrong.


def launched() -> bool:
    """Whether torchrun, or something that speaks like it, started this process as one of several."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def several() -> bool:
    """Whether there are other ranks."""
    return launched() and os.environ["WORLD_SIZE"] != "1"


def train_as_rank(
    dataset: Dataset,
    config: TrainConfig,
    *,
    out: Path | None,
    device: str,
    restart: bool,
    json: bool,
    quiet: bool,
    placement: str,
    **options: Any,
) -> None:
    """`grash train` of one rank; options: overwrite, evaluate, valid_sample, test_sample."""
    from grash.engines.distributed import joined
    from grash.errors import ConfigError, GrashError
    from grash.training.distributed.communication import RankLost

    rank, first = os.environ["RANK"], os.environ["RANK"] == "0"
    if not first:
        logging.getLogger("grash").setLevel(logging.ERROR)
    try:
        if placement not in ("auto", "device"):
            raise ConfigError(
                f"--placement {placement} is for a training in one process, and ranks keep their rows on their own "
                f"devices: leave it out, and start more ranks where the rows do not fit."
            )
        with joined(device) as (group, where):
            _train(dataset, config, group, where, out, restart, json, quiet or not first, options)
    except RankLost:
        raise  # says which rank it is
    except GrashError as error:  # each for itself: the first rank to end ends those that would have said the same
        if several():
            error.args = (f"rank {rank}: {error}",)
        raise


def _train(
    dataset: Dataset,
    config: TrainConfig,
    group: ProcessGroup,
    where: torch.device,
    out: Path | None,
    restart: bool,
    json: bool,
    quiet: bool,
    options: dict[str, Any],
) -> None:
    from grash.api import training as training_api
    from grash.engines.distributed import train_together

    first, sample = group.rank == 0, options["valid_sample"]
    chosen = "" if not first else str(out or training_api.free_folder(dataset, config, valid_sample=sample))
    folder = Path(group.broadcast_text(chosen))
    checkpoint = training_api.checkpoint_of(folder)
    started = time.monotonic()
    if not quiet:
        _say_plan_distributed(dataset, config, group.size, where, folder)
        if not restart and training_api.goes_on_from(checkpoint, dataset, config, sample):
            say("A checkpoint of this run is there: it goes on from it.")
    try:
        with progress_display(config, str(where), quiet=quiet) as watch:
            given = {"out": folder, "checkpoint": checkpoint, "restart": restart, "watch": watch, **options}
            found = train_together(dataset, config, group, where, **given)
    except KeyboardInterrupt:
        raise typer.Exit(interrupted(checkpoint) if first else 130) from None
    if first:
        _show(dataset, config, found, folder, time.monotonic() - started, json=json, quiet=quiet)


def _say_plan_distributed(dataset: Dataset, config: TrainConfig, size: int, where: torch.device, folder: Path) -> None:
    say(repr(dataset))
    rows = -(-dataset.n_entities // size)
    ranks = f"{size} ranks, {rows:,} entities each" if size > 1 else "one rank"
    say(f"{config.model}, {config.dim} floats per entity, {config.training}, {config.epochs:g} epochs → {folder}")
    say(f"{ranks}; rank 0 on {where}")


def _show(
    dataset: Dataset, config: TrainConfig, found: Finished, folder: Path, seconds: float, *, json: bool, quiet: bool
) -> None:
    from grash.cli.query import show_evaluation

    best = max(found.history, key=lambda v: v["mrr"], default=None)
    if not quiet:
        reached = "" if best is None else f"; best valid MRR {best['mrr']:.4f} at epoch {best['epoch']:g}"
        say(f"done in {seconds:.1f} s{reached}")
    if json:
        about = {"name": dataset.name, "fingerprint": dataset.fingerprint}
        as_json(
            {
                "model_folder": str(folder),
                "dataset": about,
                "config": config.model_dump(),
                "best_validation": best,
                "history": found.history,
                "evaluation": found.evaluation or None,
                "seconds": seconds,
            }
        )
        return
    if found.evaluation:
        show_evaluation(found.evaluation)
    with contextlib.suppress(BrokenPipeError):
        print(f"\nSaved as {folder}. Try:\n  {command('grash', 'evaluate', folder, '--per-relation')}")


# = The progress of a training: one line that is rewritten in a terminal, a line per validation elsewhere.


@contextmanager
def progress_display(
    config: TrainConfig, device: str, *, quiet: bool = False
) -> Iterator[Callable[[Progress], None] | None]:
    """Yields what to give to `train` as `watch`; a terminal's line is ended when training is."""
    if quiet:
        yield None
        return
    from grash.engines.device import choose_device, used_bytes
    from grash.formatting import format_bytes

    where = choose_device(device)
    terminal = sys.stderr.isatty()
    validations = 0
    shown = False

    def watch(progress: Progress) -> None:
        nonlocal validations, shown
        passed = int(progress.epoch / config.valid_every)
        if not terminal and passed == validations:
            return
        validations, shown = passed, True
        line = progress_line(progress, config.epochs, format_bytes(used_bytes(where)))
        print(f"\r{line}\x1b[K" if terminal else line, end="" if terminal else "\n", file=sys.stderr, flush=True)

    try:
        yield watch
    finally:
        if terminal and shown:
            print(file=sys.stderr, flush=True)


def progress_line(progress: Progress, epochs: float, memory: str) -> str:
    parts = [
        f"epoch {progress.epoch:.1f}/{epochs:g}",
        f"loss {progress.loss:.4g}",
        f"{_short(progress.examples_per_second)} triples/s",
        memory,
        f"ETA {_clock(progress.seconds_left)}",
    ]
    if progress.best_mrr is not None:
        parts.append(f"best valid MRR {progress.best_mrr:.4f}")
    return "  ".join(parts)


def _short(value: float) -> str:
    for unit in ("", " k", " M"):
        if value < 1000 or unit == " M":
            return f"{value:.3g}{unit}" if value < 1000 else f"{value:,.0f}{unit}"
        value /= 1000
    raise AssertionError


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
