"""Every hyperparameter: its name, its range, its meaning. One flat record, so that a search space, a command
line option, a line in a YAML file and a field here are the same word (docs/reference/config.md)."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from grash.errors import ConfigError, InputError
from grash.kernels.random import key_at, key_of
from grash.models import model_class

Training = Literal["negative_sampling", "1vsall", "kvsall"]
Loss = Literal["softmax", "bce", "margin", "self_adversarial"]
Penalty = Literal["none", "l1", "l2", "l3", "n3", "dura"]
Init = Literal["xavier_normal", "xavier_uniform", "normal", "uniform"]
Optimizer = Literal["adagrad", "row_adagrad", "adam", "lazy_adam", "sgd"]
Schedule = Literal["constant", "warmup", "plateau", "cosine", "linear"]

AS_BEFORE = {"storage": "float32"}  # settings that checkpoints did not have when they were written without them


class TrainConfig(BaseModel):
    """A training run, wholly described; frozen, equal by value, JSON-able."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    model: str = Field("complex", description="Score function: complex, cp, distmult, rescal, rotate, transe.")
    dim: int = Field(128, ge=1, description="Floats per entity; a complex number counts as two.")
    norm: Literal[1, 2] = Field(1, description="Norm of the distance in TransE and RotatE.")
    reciprocal: bool = Field(False, description="Ask heads as tails of an inverse relation with its own row.")

    training: Training = Field("negative_sampling", description="What a positive is compared with.")
    batch_size: int = Field(1024, ge=1, description="Positives per step; with kvsall, questions per step.")
    negatives_head: int = Field(500, ge=0, description="Corrupted heads per positive; 0 leaves the side out.")
    negatives_tail: int = Field(500, ge=0, description="Corrupted tails per positive; 0 leaves the side out.")
    negatives_shared: bool = Field(True, description="One set of negatives for the whole batch.")
    negatives_replacement: bool = Field(False, description="Draw negatives with replacement.")
    negatives_sampling: Literal["uniform", "frequency"] = Field(
        "uniform", description="Every entity alike, or in proportion to its count in train."
    )
    negatives_filtered: bool = Field(False, description="Leave out negatives that are triples of train.")
    label_smoothing: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="s of kvsall: above 0, labels become (1 − s)·label + 1/E with E entities, as in ConvE and LibKGE.",
    )

    loss: Loss = Field("softmax", description="How scores of positives and negatives become a loss.")
    offset: float = Field(0.0, description="Added to every score in the bce loss.")
    margin: float = Field(1.0, ge=0, description="Margin of the margin loss; γ of self_adversarial.")
    temperature: float = Field(1.0, ge=0, description="Sharpness α of the weights in self_adversarial.")
    relation_prediction: float = Field(
        0.0, ge=0, description="Weight of the auxiliary loss that predicts the relation between the two ends."
    )

    penalty: Penalty = Field("none", description="Norm that is penalized.")
    penalty_entity: float = Field(0.0, ge=0, description="Weight of the penalty on entities.")
    penalty_relation: float = Field(0.0, ge=0, description="Weight of the penalty on relations.")
    penalty_weighted: bool = Field(
        True,
        description="Penalize rows as often as the batch's positives use them; else the whole table, every step.",
    )
    dropout_entity: float = Field(0.0, ge=0, lt=1, description="Share of an entity row's floats set to 0.")
    dropout_relation: float = Field(0.0, ge=0, lt=1, description="Share of a relation row's floats set to 0.")

    init: Init = Field("xavier_normal", description="Law of the initial rows (RotatE's phases: always uniform).")
    init_std: float = Field(0.01, gt=0, description="Standard deviation of the normal init.")
    init_low: float = Field(-0.1, description="Lower bound of the uniform init.")
    init_high: float = Field(0.1, description="Upper bound of the uniform init.")

    optimizer: Optimizer = Field("adagrad", description="Update rule; lazy_adam touches only a step's rows.")
    lr: float = Field(0.1, gt=0, description="Learning rate.")
    schedule: Schedule = Field("constant", description="How the learning rate changes.")
    schedule_factor: float = Field(0.95, gt=0, lt=1, description="Plateau: the rate is multiplied by this.")
    schedule_patience: int = Field(5, ge=0, description="Plateau: validations without gain before that.")
    warmup_epochs: float = Field(0.0, ge=0, description="Epochs over which the rate rises from 0, any schedule.")

    epochs: float = Field(100.0, gt=0, description="Passes over the training triples; fractions are exact.")
    valid_every: float = Field(5.0, gt=0, description="Epochs between validations.")
    patience: int | None = Field(10, ge=1, description="Validations without a better MRR before stopping.")
    precision: Literal["float32", "tf32", "bf16"] = Field(
        "bf16",
        description="Factors of matrix products in training on a CUDA device; sums and ranking are always "
        "float32, and on a CPU everything is. bf16 needs the fused step; without it, it is tf32.",
    )
    storage: Literal["float32", "bf16"] = Field(
        "float32",
        description="How entity rows are kept between steps: bf16 takes half the memory, and rounds a row that a step "
        "has moved to one of its two neighbors, by chance. Relations and optimizer state are float32.",
    )
    seed: int = Field(0, ge=0, description="Every random choice follows from it.")
    variation: int = Field(
        0, ge=0, description="With the seed, decides initial rows and dropout; a search numbers its configurations."
    )

    @model_validator(mode="after")
    def _fits_together(self) -> TrainConfig:
        cls = model_class(self.model)
        cls.check_dim(self.dim)
        if self.training == "negative_sampling" and self.negatives_head + self.negatives_tail == 0:
            raise ConfigError("negatives_head=0 and negatives_tail=0 leave nothing to learn from: give one of them.")
        if self.training == "kvsall" and self.loss not in ("softmax", "bce"):
            raise ConfigError(f"loss={self.loss} does not suit training=kvsall: give softmax or bce.")
        if self.training == "kvsall" and self.relation_prediction:
            raise ConfigError(
                f"relation_prediction={self.relation_prediction} needs positives, and training=kvsall has questions: "
                f"set it to 0, or give training=1vsall."
            )
        if self.training == "kvsall" and self.penalty == "dura":
            raise ConfigError("penalty=dura needs positives, and training=kvsall has questions: give another penalty.")
        if self.training != "kvsall" and self.label_smoothing:
            raise ConfigError(f"label_smoothing={self.label_smoothing} needs training=kvsall: set it to 0.")
        if self.negatives_filtered and self.training != "negative_sampling":
            raise ConfigError("negatives_filtered=true needs training=negative_sampling: set it to false.")
        if self.init == "uniform" and self.init_low >= self.init_high:
            raise ConfigError(f"init_low={self.init_low} must lie below init_high={self.init_high}.")
        if self.penalty == "dura" and self.model in ("transe", "rotate"):
            raise ConfigError(f"penalty=dura is defined for dot-product models, not for {self.model}: give another.")
        if self.penalty == "dura" and self.penalty_relation:
            raise ConfigError("penalty=dura has one weight, penalty_entity: set penalty_relation to 0.")
        if self.penalty == "dura" and not self.penalty_weighted:
            raise ConfigError("penalty=dura follows the batch: set penalty_weighted to true.")
        if self.storage == "bf16" and self.optimizer == "adam":
            raise ConfigError(
                "storage=bf16 does not suit optimizer=adam, which moves every row in every step, and would round every "
                "row in every step: give lazy_adam or adagrad, or storage=float32."
            )
        if self.schedule == "warmup" and not self.warmup_epochs:
            raise ConfigError("schedule=warmup needs warmup_epochs above 0.")
        return self

    def own_key(self, *purpose: str) -> int:
        """The key of a random stream that is this configuration's own: initial rows, dropout."""
        key = key_of(self.seed, *purpose)
        return key_at(key, self.variation) if self.variation else key

    def changed(self, **changes: Any) -> TrainConfig:
        """The same with some fields changed, checked anew."""
        return make_config({**self.model_dump(), **changes})


def make_config(values: dict[str, Any], *, source: str = "") -> TrainConfig:
    """A TrainConfig from a mapping; a wrong entry is named, with suggestions for unknown names."""
    where = f"{source}: " if source else ""
    for key in values:
        if key not in TrainConfig.model_fields:
            close = difflib.get_close_matches(str(key), TrainConfig.model_fields, n=3, cutoff=0.5)
            meant = f" Did you mean {', '.join(close)}?" if close else " `grash settings` lists them all."
            raise ConfigError(f"{where}{key!r} is not a setting.{meant}")
    try:
        return TrainConfig(**values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        given = first.get("input")
        raise ConfigError(f"{where}{key}={given!r} does not suit: {_need(first)}.") from error


def read_config(path: Path) -> TrainConfig:
    """The TrainConfig in a YAML file of `name: value` lines."""
    return make_config(read_yaml_mapping(path), source=str(path))


def read_yaml_mapping(path: Path) -> dict[str, Any]:
    """The `name: value` lines of a YAML file."""
    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"There is no file {path}.") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"{path} cannot be read as YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise InputError(f"{path} should hold `name: value` lines, one per setting.")
    return values


def _need(error: Mapping[str, Any]) -> str:
    """What a setting needs, from the validator's record of the error."""
    sentence = _NEEDS.get(error["type"])
    return str(error["msg"]) if sentence is None else sentence.format(**error.get("ctx", {}))


_NEEDS = {
    "greater_than": "give a number greater than {gt:g}",
    "greater_than_equal": "give {ge:g} or more",
    "less_than": "give a number less than {lt:g}",
    "less_than_equal": "give {le:g} or less",
    "literal_error": "give {expected}",
    "finite_number": "give a number that is not infinite and not NaN",
    "string_type": "give a word",
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float", "int_parsing_size"), "give a whole number"),
    **dict.fromkeys(("float_parsing", "float_type"), "give a number"),
    **dict.fromkeys(("bool_parsing", "bool_type"), "give true or false"),
}
