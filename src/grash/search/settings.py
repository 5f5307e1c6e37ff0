"""What a search is: every setting that changes a number of it, and the presets (docs/reference/search.md).

How it is run (devices, workers, time limits) is no part of this: results do not depend on it.
"""

from __future__ import annotations

import difflib
from fractions import Fraction
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from grash.errors import ConfigError, UnknownName
from grash.models import model_class

Variant = Literal["combined", "graph", "epoch"]


class SearchSettings(BaseModel):
    """Frozen, equal by value, JSON-able. Letters of the paper: n, η, B, E."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    models: tuple[str, ...] = Field(("complex",), min_length=1, description="Models that share rounds and budget.")
    dim: int = Field(128, ge=1, description="Floats per entity.")
    max_epochs: float = Field(100.0, gt=0, description="E: epochs of a full training run.")
    budget: float = Field(3.0, gt=0, description="B: cost of the search in full training runs.")
    n_trials: int = Field(64, ge=1, description="n: configurations that enter the first round.")
    eta: int = Field(4, ge=2, description="η: one in η configurations goes on to the next round.")
    variant: Variant = Field("combined", description="What is reduced: graph, epochs (epoch), or both (combined).")
    space: str | dict[str, Any] = Field("default", description="default, paper, wide, or the parameters themselves.")
    proposals: Literal["random", "sobol", "portfolio"] = Field(
        "portfolio", description="Where the configurations of the first round come from."
    )
    seed: int = Field(0, ge=0, description="Every random choice follows from it.")
    reduction: Literal["core-order", "k-core"] = Field(
        "core-order", description="Subgraphs: any prefix of the reversed peel order, or whole k-cores (paper)."
    )
    degree: Literal["neighbors", "triples"] = Field("neighbors", description="What an entity's degree counts.")
    guarded_split: bool = Field(True, description="Validation triples leave no entity or relation untrained.")
    last_round_holdout: Literal["random", "match_valid"] = Field(
        "match_valid",
        description="Triples that the last round's subgraph holds out: any, or, where no valid triple of the dataset "
        "has two entities that train joins besides and a tenth of train has, only such (1,000 or more).",
    )
    negatives_floor: float = Field(0.0, ge=0, le=1, description="Smallest factor by which negatives are scaled.")
    guard_rails: bool = Field(True, description="Guard rails against rounds too small to tell anything.")
    carry_over: bool = Field(True, description="Surplus and refunds go to the next round.")
    trend: float = Field(
        0.5, ge=0, description="What a trial's rise in MRR, from half of its round to the end, adds to its score."
    )
    scaled_penalties: bool = Field(
        True,
        description="Penalties are multiplied by a round's share of the triples, but where it holds out like valid.",
    )
    budget_unit: Literal["triples", "scores"] = Field(
        "triples", description="Unit of the budget: triples seen, or scores."
    )
    warm_start: Literal["off", "weights"] = Field("off", description="Survivors take their rows to the next round.")
    final_train: bool = Field(True, description="Train the winner on the full graph.")
    threads: int = Field(1, ge=1, description="CPU threads of a trial; results on a CPU depend on it.")
    final_threads: int | None = Field(None, ge=1, description="CPU threads of the final training; none: as `threads`.")
    max_retries: int = Field(2, ge=0, description="Retries of a trial after a machine's fault.")
    initial: tuple[dict[str, Any], ...] = Field((), description="Configurations given by the user: values, origin.")
    fixed: dict[str, Any] = Field(default_factory=dict, description="Settings of the training that are not searched.")

    @field_validator("models")
    @classmethod
    def _known_models(cls, models: tuple[str, ...]) -> tuple[str, ...]:
        for name in models:
            model_class(name)
        if len(set(models)) < len(models):
            raise ConfigError(f"models={','.join(models)} names a model twice: give each once.")
        return models

    @model_validator(mode="after")
    def _fits_together(self) -> SearchSettings:
        if self.warm_start != "off" and self.variant == "epoch":
            raise ConfigError("variant=epoch goes on with whole states already: leave warm_start off.")
        return self

    @property
    def full_epochs(self) -> Fraction:
        return Fraction(str(self.max_epochs))

    @property
    def full_budget(self) -> Fraction:
        return Fraction(str(self.budget))

    def threads_of(self, *, final: bool) -> int:
        return self.final_threads or self.threads if final else self.threads


PRESETS: dict[str, dict[str, Any]] = {
    "default": {},
    "paper": {
        "space": "paper",
        "proposals": "random",
        "reduction": "k-core",
        "degree": "neighbors",
        "guard_rails": False,
        "carry_over": False,
        "negatives_floor": 0.01,
        "guarded_split": False,
        "trend": 0.0,
        "scaled_penalties": False,
        "last_round_holdout": "random",
    },
}
# Settings that searches did not have when they were recorded without them.
AS_BEFORE = {"trend": 0.0, "scaled_penalties": False, "final_threads": None, "last_round_holdout": "random"}
PRESETS["paper-text"] = {**PRESETS["paper"], "degree": "triples", "negatives_floor": 0.0}

ALIASES = {
    "model": "models", "n": "n_trials", "num_trials": "n_trials", "reduction_factor": "eta", "epochs": "max_epochs",
    "search_budget": "budget",
}  # fmt: skip


def make_settings(values: dict[str, Any], *, preset: str = "default") -> SearchSettings:
    """SearchSettings from a mapping on top of a preset; a wrong entry is named, with what is needed."""
    if preset not in PRESETS:
        close = difflib.get_close_matches(preset, PRESETS, n=2)
        raise UnknownName("preset", preset, close or sorted(PRESETS))
    chosen: dict[str, Any] = dict(PRESETS[preset])
    for key, value in values.items():
        name = ALIASES.get(key, key)
        if name not in SearchSettings.model_fields:
            close = difflib.get_close_matches(str(key), SearchSettings.model_fields, n=3, cutoff=0.5)
            meant = f" Did you mean {', '.join(close)}?" if close else ""
            raise ConfigError(f"{key!r} is not a setting of a search.{meant}")
        if name == "models" and isinstance(value, str):
            value = tuple(value.split(","))
        if name == "warm_start" and value is False:  # YAML reads a bare `off` so
            value = "off"
        chosen[name] = value
    try:
        return SearchSettings(**chosen)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"][:1])
        raise ConfigError(_sentence(name, first)) from error


def _sentence(name: str, error: Any) -> str:
    given = error.get("input")
    if name == "eta":
        return f"eta={given} would leave every round with all its trials: give 2 or more."
    if name == "n_trials":
        return f"n_trials={given}: give 1 or more configurations."
    if name in ("budget", "max_epochs"):
        what = "full training runs" if name == "budget" else "epochs of a full run"
        return f"{name}={given}: give a number of {what} above 0."
    return f"{name}={given!r} does not suit: {str(error['msg'])[:1].lower()}{str(error['msg'])[1:]}."
