"""Train one model by itself."""

from __future__ import annotations

from typing import Any

from grash.training.batches import Batches
from grash.training.checkpoint import TrainState
from grash.training.config import TrainConfig
from grash.training.loop import Training, train_stack


def train(state: TrainState, batches: Batches, config: TrainConfig, **functions: Any) -> None:
    validate, save = functions.pop("validate", None), functions.pop("save", None)
    [error] = train_stack([Training(config, **functions).started(state, batches, validate, save)])
    if error is not None:
        raise error
