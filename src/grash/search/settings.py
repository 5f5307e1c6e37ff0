"""Settings of a search that change its results, and the presets (docs/reference/search.md).

Devices and workers are not among them: results do not depend on these. Of a search within a time, they do: what the
measured speeds decided is in the ledger.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from grash.errors import ConfigError, FormatError, UnknownName, did_you_mean
from grash.evaluation.metrics import Metric
from grash.formatting import parse_duration
from grash.models import MODELS, model_name, unknown_model
from grash.reduction.cores import Degree
from grash.search.ledger import TO_THE_END
from grash.training.config import ALIASES as TRAIN_ALIASES
from grash.training.config import MAX_SEED, Settings, TrainConfig, by_setting

Variant = Literal["combined", "graph", "epoch"]
Proposals = Literal["random", "sobol", "portfolio"]
BudgetUnit = Literal["triples", "scores"]
WarmStart = Literal["off", "weights"]


class SearchSettings(Settings):
    """Settings of a search. The letters n, η, B and E are the paper's."""

    models: tuple[str, ...] = Field(("complex",), min_length=1, description="Models, which share rounds and budget.")
    dim: int = Field(128, ge=1, le=1_000_000, description="Embedding dimension: floats per entity.")
    max_epochs: float = Field(100.0, ge=1e-6, le=1e6, description="E: epochs of a full training.")
    budget: float = Field(3.0, ge=1e-6, le=1e6, description="B: cost of the search, in full trainings.")
    n_trials: int = Field(64, ge=1, le=5_000, description="n: number of configurations in the first round.")
    eta: int = Field(4, ge=2, le=10_000, description="η: the best 1/η of the configurations advance to the next round.")
    one_vs_all: bool | None = Field(
        None,
        description="Whether `default` and `wide` compare with all entities (1vsall). None: up to 50,000 entities, and "
        "beyond if a GPU affords it.",
    )
    variant: Variant = Field("combined", description="What early rounds reduce: graph, epoch, or both (combined).")
    space: str | dict[str, Any] = Field("default", description="default, paper, wide, or a mapping of parameters.")
    proposals: Proposals = Field("portfolio", description="How the configurations of the first round are chosen.")
    time: float | None = Field(
        None, gt=0, le=1e9, description="Seconds in which search, final training and test end; cuts what does not fit."
    )
    metric: Metric = Field(
        "mrr", description="Metric of validations that decides rounds, finalists and early stopping."
    )
    seed: int = Field(0, ge=0, le=MAX_SEED, description="Seed of every random choice.")
    reduction: Literal["core-order", "k-core", "walk"] = Field(
        "core-order",
        description="Cut subgraphs along the core order, as whole k-cores, or by KGTuner's random walks.",
    )
    degree: Degree = Field("neighbors", description="What an entity's degree counts: distinct neighbors, or triples.")
    guarded_split: bool = Field(True, description="Leave every entity and relation of a subgraph a training triple.")
    last_round_holdout: Literal["random", "match_valid"] = Field(
        "match_valid",
        description="How the last round holds out validation triples: random, or match_valid (isolated pairs if the "
        "valid split has only those).",
    )
    negatives_floor: float = Field(
        0.0, ge=0, le=1, description="Lower bound of the factor that scales the number of negatives on a subgraph."
    )
    guard_rails: bool = Field(True, description="Keep subgraphs and epochs large enough to compare configurations.")
    carry_over: bool = Field(True, description="Add the unused budget of a round to the next one.")
    trend: float = Field(
        0.5,
        ge=0,
        le=1000,
        description="Weight of a trial's rise in MRR over the second half of a round, added to its score; not in a "
        "last round that finalists follow.",
    )
    scaled_penalties: bool = Field(
        True,
        description="Multiply penalties by the round's share of the triples, except where isolated pairs are held out.",
    )
    budget_unit: BudgetUnit = Field("triples", description="Unit: training triples seen, or scores computed.")
    warm_start: WarmStart = Field("off", description="Copy the embeddings of survivors to the next round (weights).")
    finalists: int = Field(
        4,
        ge=0,
        le=1000,
        description="At most this many configurations of the last round are compared on the full graph before the "
        "final training (0: none).",
    )
    final_train: bool = Field(True, description="Train the winner on the full graph.")
    threads: int = Field(1, ge=1, le=1024, description="CPU threads of a trial; results on a CPU depend on it.")
    final_threads: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="CPU threads of the final training (as `threads`); a finalist that is trained to the end has half.",
    )
    max_retries: int = Field(2, ge=0, le=100, description="Retries of a trial that ran out of memory or was killed.")
    initial: tuple[dict[str, Any], ...] = Field((), description="Configurations of the user: values and origin.")
    max_dims: dict[str, int] = Field(
        default_factory=dict, description="Largest dimension of each model, from max_model_size."
    )
    max_prediction_ms: float | None = Field(
        None,
        gt=0,
        le=1e6,
        description="Milliseconds that a question to a model may take on this machine; lowers dimensions.",
    )
    prediction_ms: dict[str, dict[int, float]] = Field(
        default_factory=dict,
        description="Milliseconds of a question by model and dimension, measured for max_prediction_ms when the "
        "search began.",
    )
    fixed: dict[str, Any] = Field(default_factory=dict, description="Training settings that are not searched.")

    @field_validator("models")
    @classmethod
    def _known_models(cls, models: tuple[str, ...]) -> tuple[str, ...]:
        models = tuple(model_name(name) for name in models)
        if len(set(models)) < len(models):
            raise ConfigError(f"models={','.join(models)} names a model twice: give each once.")
        return models

    @model_validator(mode="after")
    def _fits_together(self) -> SearchSettings:
        if self.warm_start != "off" and self.variant == "epoch":
            raise ConfigError(
                "variant=epoch already continues from the weights of the round before: leave warm_start off."
            )
        return self

    @property
    def full_epochs(self) -> Fraction:
        return Fraction(str(self.max_epochs))

    @property
    def full_budget(self) -> Fraction:
        return Fraction(str(self.budget))

    def largest_dim(self, model: str) -> int:
        """Return the largest dimension that max_model_size and max_prediction_ms leave a model; 0 if it is too slow."""
        most = self.max_dims.get(model, 1_000_000)
        if self.max_prediction_ms is None or model not in self.prediction_ms:
            return most
        fast = (dim for dim, ms in self.prediction_ms[model].items() if ms <= self.max_prediction_ms)
        return min(most, max(fast, default=0))

    def threads_of(self, *, final: bool = False, to_the_end: bool = False) -> int:
        """Return the CPU threads of a trial, of the final training, or of a finalist that is trained to the end."""
        final_threads = self.final_threads or self.threads
        if to_the_end:  # two may run at a time; the same number if they do not, since results depend on it
            return max(self.threads, final_threads // TO_THE_END)
        return final_threads if final else self.threads


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
        "finalists": 0,
    },
}
PRESETS["paper-text"] = {**PRESETS["paper"], "degree": "triples", "negatives_floor": 0.0}

ALIASES = {
    "model": "models", "n": "n_trials", "num_trials": "n_trials", "reduction_factor": "eta", "epochs": "max_epochs",
    "search_budget": "budget",
}  # fmt: skip


def make_settings(values: dict[str, Any], *, preset: str = "default") -> SearchSettings:
    """Return SearchSettings from a mapping on top of a preset; an error names the wrong entry."""
    return SearchSettings(**named_settings(values, preset=preset))


def recorded_settings(values: dict[str, Any]) -> SearchSettings:
    """Return the settings that a run folder has. FormatError if this process does not know a model of them."""
    for name in values.get("models", ()):
        if name not in MODELS:
            raise FormatError(f"The search has the model {unknown_model(name)}")
    return make_settings(values)


def named_settings(values: dict[str, Any], *, preset: str = "default") -> dict[str, Any]:
    """Return the settings of a mapping on top of a preset, by their own names and not checked otherwise."""
    if preset not in PRESETS:
        raise UnknownName("preset", preset, hint=f"Presets: {', '.join(PRESETS)}.")
    chosen: dict[str, Any] = dict(PRESETS[preset])
    for name, value in by_setting(values, ALIASES).items():
        if name not in SearchSettings.model_fields:
            raise ConfigError(_unknown_setting(name))
        if name == "models" and isinstance(value, str):
            value = tuple(value.split(","))
        if name == "time" and value is not None:
            value = parse_duration(value)
        if name == "warm_start" and value is False:  # how YAML reads a bare `off`
            value = "off"
        chosen[name] = value
    return chosen


def _unknown_setting(name: str) -> str:
    """Return the sentence for a setting that does not exist; one of a training run can be fixed for all trials."""
    trained = TRAIN_ALIASES.get(name, name)
    if trained in TrainConfig.model_fields:
        return (
            f"{name!r} is a setting of a training run, not of a search: to use one value in all trials, give "
            f"fixed={{{trained!r}: …}} (--set {trained}=…); by default, the search chooses it."
        )
    return f"{name!r} is not a setting of a search.{did_you_mean(name, SearchSettings.model_fields)}"
