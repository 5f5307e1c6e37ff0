"""grash train under torchrun: every process is a rank of one training. Rank 0 says what goes well, and
each what goes wrong."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from grash.cli.progress import progress_display
from grash.cli.show import as_json, command, say

if TYPE_CHECKING:
    import torch

    from grash.data.dataset import Dataset
    from grash.engines.distributed import Finished
    from grash.training.config import TrainConfig
    from grash.training.sharded_company import Company


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
    from grash.training.sharded_company import RankLost

    rank, first = os.environ["RANK"], os.environ["RANK"] == "0"
    if not first:
        logging.getLogger("grash").setLevel(logging.ERROR)
    try:
        if placement not in ("auto", "device"):
            raise ConfigError(
                f"--placement {placement} is for a training in one process, and ranks keep their rows on their own "
                f"devices: leave it out, and start more ranks where the rows do not fit."
            )
        with joined(device) as (company, where):
            _train(dataset, config, company, where, out, restart, json, quiet or not first, options)
    except RankLost:
        raise  # says which rank it is
    except GrashError as error:  # each for itself: the first rank to end ends those that would have said the same
        if several():
            error.args = (f"rank {rank}: {error}",)
        raise


def _train(
    dataset: Dataset,
    config: TrainConfig,
    company: Company,
    where: torch.device,
    out: Path | None,
    restart: bool,
    json: bool,
    quiet: bool,
    options: dict[str, Any],
) -> None:
    from grash import api
    from grash.engines.distributed import train_together

    first, sample = company.rank == 0, options["valid_sample"]
    chosen = "" if not first else str(out or api.free_folder(dataset, config, valid_sample=sample))
    folder = Path(company.text(chosen))
    checkpoint = api.checkpoint_of(folder)
    started = time.monotonic()
    if not quiet:
        _say_plan(dataset, config, company.size, where, folder)
        if not restart and api.goes_on_from(checkpoint, dataset, config, sample):
            say("A checkpoint of this run is there: it goes on from it.")
    try:
        with progress_display(config, str(where), quiet=quiet) as watch:
            given = {"out": folder, "checkpoint": checkpoint, "restart": restart, "watch": watch, **options}
            found = train_together(dataset, config, company, where, **given)
    except KeyboardInterrupt:
        from grash.cli.train import interrupted

        raise typer.Exit(interrupted(checkpoint) if first else 130) from None
    if first:
        _show(dataset, config, found, folder, time.monotonic() - started, json=json, quiet=quiet)


def _say_plan(dataset: Dataset, config: TrainConfig, size: int, where: torch.device, folder: Path) -> None:
    say(repr(dataset))
    rows = -(-dataset.n_entities // size)
    ranks = f"{size} ranks, {rows:,} entities each" if size > 1 else "one rank"
    say(f"{config.model}, {config.dim} floats per entity, {config.training}, {config.epochs:g} epochs → {folder}")
    say(f"{ranks}; rank 0 on {where}")


def _show(
    dataset: Dataset, config: TrainConfig, found: Finished, folder: Path, seconds: float, *, json: bool, quiet: bool
) -> None:
    from grash.cli.evaluate import show_evaluation

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
