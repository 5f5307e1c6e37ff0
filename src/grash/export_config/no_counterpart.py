"""Settings that neither PyKEEN nor LibKGE has a word for."""

from __future__ import annotations

from grash.training.config import TrainConfig


def no_counterpart(config: TrainConfig) -> list[str]:
    """A sentence for each of them that changes what is trained."""
    left_out = []
    if config.relation_prediction:
        left_out.append(f"relation_prediction: {config.relation_prediction} has no counterpart")
    if config.precision == "tf32":  # bf16 is the default, float32 is torch's
        left_out.append(f"precision: {config.precision} has no counterpart; products are in torch's default")
    if config.storage != "float32":
        left_out.append(f"storage: {config.storage} has no counterpart; entities are kept in float32")
    return left_out
