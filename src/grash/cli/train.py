"""grash train: settings from a file and options, progress while it runs, metrics and what to try next at the end."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grash.cli.distributed import launched, train_as_rank
from grash.cli.options import Device, Json, Source, Threads, takes_source_options
from grash.cli.progress import progress_display
from grash.cli.show import as_json, command, listen, say
from grash.errors import ConfigError

if TYPE_CHECKING:
    from grash.data.dataset import Dataset
    from grash.predict import Model
    from grash.training.config import TrainConfig

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
    from grash import api
    from grash.engines.run import use_threads

    listen()
    use_threads(threads)
    chosen = api.configure(config, **_settings(locals(), settings))
    dataset = api.load_dataset(source, **reading)
    if launched():
        train_as_rank(
            dataset, chosen, out=out, device=device, restart=restart, json=json, quiet=quiet, overwrite=overwrite,
            evaluate=not no_test, valid_sample=valid_sample, test_sample=test_sample, placement=placement,
        )  # fmt: skip
        return
    folder = out if out is not None else api.free_folder(dataset, chosen, valid_sample=valid_sample)
    api.check_place(folder, overwrite=overwrite, test_sample=test_sample)
    plan = _plan(dataset, chosen, device, placement, folder, valid_sample)
    if restart:  # nothing is removed before all that can be refused
        shutil.rmtree(api.checkpoint_of(folder), ignore_errors=True)
    started = time.monotonic()
    if not quiet:
        goes_on = api.goes_on_from(api.checkpoint_of(folder), dataset, chosen, valid_sample)
        _say_plan(dataset, chosen, plan, folder, goes_on)
    try:
        with progress_display(chosen, device, quiet=quiet) as watch:
            trained = api.train(
                dataset, chosen, out=folder, device=device, threads=threads, watch=watch, overwrite=overwrite,
                evaluate=not no_test, valid_sample=valid_sample, test_sample=test_sample, placement=placement,
            )  # fmt: skip
    except KeyboardInterrupt:
        raise typer.Exit(interrupted(api.checkpoint_of(folder))) from None
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
    from grash.engines.ground import Ground

    where = choose_device(device)
    placed = Ground(dataset, where, valid_sample=sample).place(config, asked=placement, folder=folder.absolute().parent)
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
    from grash.training.state import step_of

    step = step_of(checkpoint)
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
    from grash.cli.evaluate import show_evaluation

    if model.evaluation:
        show_evaluation(model.evaluation)
    split = next(s for s in (model.dataset.test, model.dataset.valid, model.dataset.train) if len(s))
    head, relation, tail = (int(i) for i in split[0])
    names = (model.entity_name(head), model.relation_name(relation), model.entity_name(tail))
    print(f"\nSaved as {folder}. Try:")
    print(f"  {command('grash', 'predict', folder, '--head', names[0], '--relation', names[1])}")
    print(f"  {command('grash', 'predict', folder, '--relation', names[1], '--tail', names[2], '--new-only')}")
    print(f"  {command('grash', 'neighbours', folder, names[0])}")
    if len(model.dataset.test):
        print(f"  {command('grash', 'evaluate', folder, '--per-relation')}")
