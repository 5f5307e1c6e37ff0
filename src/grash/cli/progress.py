"""The progress of a training: one line that is rewritten in a terminal, a line per validation elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grash.training.config import TrainConfig
    from grash.training.pulse import Progress


@contextmanager
def progress_display(
    config: TrainConfig, device: str, *, quiet: bool = False
) -> Iterator[Callable[[Progress], None] | None]:
    """Yields what to give to `train` as `watch`; a terminal's line is ended when training is."""
    if quiet:
        yield None
        return
    from grash.engines.device import choose_device, used_bytes
    from grash.engines.memory import human

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
        line = progress_line(progress, config.epochs, human(used_bytes(where)))
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
