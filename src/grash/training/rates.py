"""The learning rate of every step: a schedule's factor, times the warm-up."""

from __future__ import annotations

import math
from dataclasses import dataclass

from grash.training.config import TrainConfig

_GAIN = 1e-4  # a plateau ends with a relative gain above this


@dataclass
class Plateau:
    """Multiplies the rate by `factor` after more than `patience` validations without gain."""

    factor: float
    patience: int
    scale: float = 1.0
    best: float = -math.inf
    waited: int = 0

    def see(self, metric: float) -> None:
        if metric > self.best * (1 + _GAIN) or self.best == -math.inf:
            self.best, self.waited = metric, 0
            return
        self.waited += 1
        if self.waited > self.patience:
            self.scale, self.waited = self.scale * self.factor, 0


def rate_at(config: TrainConfig, epoch: float, plateau: Plateau) -> float:
    """The learning rate after `epoch` epochs (a fraction inside an epoch)."""
    rate = config.lr
    if config.warmup_epochs:
        rate *= min(1.0, epoch / config.warmup_epochs) or 1e-3 / max(1.0, config.warmup_epochs)
    done = min(1.0, epoch / config.epochs)
    if config.schedule == "cosine":
        rate *= 0.5 * (1 + math.cos(math.pi * done))
    elif config.schedule == "linear":
        rate *= 1 - done
    elif config.schedule == "plateau":
        rate *= plateau.scale
    return rate
