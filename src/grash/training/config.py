"""The hyperparameters of a training: names, ranges, meanings. One flat record, so a search space, a command line
option, a line of a YAML file and a field here use the same name (docs/reference/config.md)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from grash.errors import ConfigError, did_you_mean
from grash.formatting import html_table
from grash.kernels.random import key_at, key_of
from grash.models import MODELS, model_class, model_name
from grash.yaml_files import read_yaml_mapping

Training = Literal["negative_sampling", "1vsall", "kvsall"]
Loss = Literal["softmax", "bce", "margin", "self_adversarial"]
Penalty = Literal["none", "l1", "l2", "l3", "n3", "dura"]
Init = Literal["xavier_normal", "xavier_uniform", "normal", "uniform"]
Optimizer = Literal["adagrad", "row_adagrad", "adam", "lazy_adam", "sgd"]
Sampling = Literal["uniform", "frequency"]
Schedule = Literal["constant", "warmup", "plateau", "cosine", "linear"]


MAX_SEED = 2**63 - 1
DROPOUTS = ("dropout_entity", "dropout_relation", "dropout_input", "dropout_features", "dropout_query")
_NO_PRODUCT = ("conve", "mure", "pairre", "rotate", "transe")  # models whose score is more than Σ query·answer


class Settings(BaseModel):
    """A frozen record of settings, equal by value and JSON-able. A wrong name or value is a ConfigError."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            first = error.errors()[0]
            name = first["loc"][0]
            if first["type"] == "extra_forbidden":
                meant = did_you_mean(name, type(self).model_fields, " `grash settings` lists them all.")
                raise ConfigError(f"{name!r} is not a setting.{meant}") from None
            raise ConfigError(f"{name}={shown(first['input'])} is not valid: {_need(first)}.") from None

    @field_validator("*", mode="before")
    @classmethod
    def _is_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse true and false as numbers, which Python would count as 1 and 0."""
        if isinstance(value, bool) and cls.model_fields[str(info.field_name)].annotation in (int, float, int | None):
            raise PydanticCustomError("bool_as_number", "give a number")
        return value


def shown(value: Any) -> str:
    """Return a value for an error message, shortened."""
    try:
        text = repr(value)
    except ValueError:  # an integer of more than 4,300 digits
        text = "a number with thousands of digits"
    return text if len(text) <= 80 else f"{text[:77]}..."


def _need(error: Any) -> str:
    """Return what to give instead of a value that pydantic refused; bounds as people write them, not as 1e+06."""
    bounds = error.get("ctx", {})
    if 0 < bounds.get("ge", 0) < 0.001:
        return "give a larger number, above 0"
    bounds = {name: f"{v:,.15g}" if isinstance(v, int | float) else v for name, v in bounds.items()}
    return str(_NEEDS.get(error["type"], error["msg"]).format(**bounds))


class TrainConfig(Settings):
    """All hyperparameters of a training."""

    model: str = Field("complex", description="Score function.")
    dim: int = Field(
        128, ge=1, le=1_000_000, description="Floats per entity embedding; a complex number counts as two."
    )
    norm: Literal[1, 2] = Field(1, description="Norm of the distance in TransE, RotatE and PairRE.")
    reciprocal: bool = Field(
        False,
        description="Predict heads as tails of an inverse relation with its own embedding; true by default for ConvE "
        "and TuckER, which need it.",
    )

    training: Training = Field(
        "negative_sampling", description="Sampled negatives, all entities per triple (1vsall), or all answers (kvsall)."
    )
    batch_size: int = Field(
        1024, ge=1, le=10_000_000, description="Positive triples per step; with kvsall, questions per step."
    )
    negatives_head: int = Field(
        500, ge=0, le=10_000_000, description="Corrupted heads per positive; 0 does not train that side."
    )
    negatives_tail: int = Field(
        500, ge=0, le=10_000_000, description="Corrupted tails per positive; 0 does not train that side."
    )
    negatives_shared: bool = Field(True, description="Share one set of negatives among all positives of a batch.")
    negatives_replacement: bool = Field(False, description="Sample negatives with replacement.")
    negatives_sampling: Sampling = Field("uniform", description="Sample entities equally, or by frequency in train.")
    negatives_filtered: bool = Field(False, description="Leave out negatives that are triples of train.")
    label_smoothing: float = Field(
        0.0, ge=0, lt=1, description="With kvsall and s > 0, labels become (1 − s)·label + 1/E for E entities (ConvE)."
    )

    loss: Loss = Field("softmax", description="Loss function.")
    offset: float = Field(0.0, ge=-1e6, le=1e6, description="Added to every score in the bce loss.")
    margin: float = Field(1.0, ge=0, le=1e6, description="Margin of the margin loss; γ of self_adversarial.")
    temperature: float = Field(
        1.0, ge=0, le=1e6, description="Temperature α of the negatives' weights in self_adversarial."
    )
    relation_prediction: float = Field(
        0.0,
        ge=0,
        le=1e6,
        description="Weight of the auxiliary loss that predicts relations (with reciprocal in both directions).",
    )

    penalty: Penalty = Field("none", description="Regularization penalty.")
    penalty_entity: float = Field(0.0, ge=0, le=1e6, description="Weight of the penalty on entities.")
    penalty_relation: float = Field(0.0, ge=0, le=1e6, description="Weight of the penalty on relations.")
    penalty_weighted: bool = Field(
        True,
        description="Penalize only the rows of the batch, by how often they occur; false: all rows in every step.",
    )
    dropout_entity: float = Field(0.0, ge=0, lt=1, description="Dropout rate of entity embeddings.")
    dropout_relation: float = Field(0.0, ge=0, lt=1, description="Dropout rate of relation embeddings.")
    dropout_input: float = Field(0.0, ge=0, lt=1, description="Dropout rate of ConvE's image and of TuckER's head.")
    dropout_features: float = Field(
        0.0, ge=0, lt=1, description="Dropout rate of ConvE's feature maps and of TuckER's relation matrices."
    )
    dropout_query: float = Field(0.0, ge=0, lt=1, description="Dropout rate of the query in ConvE and TuckER.")

    init: Init = Field("xavier_normal", description="Distribution of initial embeddings; RotatE's phases are uniform.")
    init_std: float = Field(0.01, gt=0, le=1e30, description="Standard deviation of the normal init.")
    init_low: float = Field(-0.1, ge=-1e6, le=1e6, description="Lower bound of the uniform init.")
    init_high: float = Field(0.1, ge=-1e6, le=1e6, description="Upper bound of the uniform init.")

    optimizer: Optimizer = Field(
        "adagrad",
        description="Optimizer; row_adagrad keeps one sum per row, lazy_adam updates only the rows of a step.",
    )
    lr: float = Field(0.1, gt=0, le=1e30, description="Learning rate.")
    schedule: Schedule = Field("constant", description="Schedule of the learning rate.")
    schedule_factor: float = Field(0.95, gt=0, lt=1, description="Factor of the learning rate at a plateau.")
    schedule_patience: int = Field(
        5, ge=0, le=1_000_000, description="Validations without a gain before a plateau is assumed."
    )
    warmup_epochs: float = Field(
        0.0, ge=0, le=1e6, description="Epochs in which the rate rises from 0, with any schedule."
    )

    epochs: float = Field(100.0, ge=1e-12, le=1e6, description="Passes over the training triples; may be a fraction.")
    valid_every: float = Field(5.0, ge=1e-12, le=1e6, description="Epochs between validations.")
    patience: int | None = Field(
        10, ge=1, le=1_000_000, description="Validations without a better MRR before training stops."
    )
    precision: Literal["float32", "tf32", "bf16"] = Field(
        "bf16",
        description="Precision of the inputs of matrix products in training on a GPU. Sums and ranking are always "
        "float32, and so is everything on a CPU. Without the fused step, bf16 means tf32.",
    )
    storage: Literal["float32", "bf16"] = Field(
        "float32",
        description="Data type of stored entity embeddings; bf16 halves their memory and rounds updates "
        "stochastically. Relations and optimizer state are float32.",
    )
    seed: int = Field(0, ge=0, le=MAX_SEED, description="Random seed of the whole training.")
    variation: int = Field(
        0, ge=0, le=MAX_SEED, description="Varies initial embeddings and dropout for the same seed; a search sets it."
    )

    @field_validator("model", mode="before")
    @classmethod
    def _known_model(cls, name: Any) -> Any:
        return model_name(name) if isinstance(name, str) else name

    @model_validator(mode="before")
    @classmethod
    def _default_reciprocal(cls, values: Any) -> Any:
        """Make reciprocal relations the default of models that need them."""
        name = values.get("model") if isinstance(values, dict) else None
        if isinstance(name, str) and "reciprocal" not in values and model_class(model_name(name)).needs_reciprocal:
            return {**values, "reciprocal": True}
        return values

    @model_validator(mode="after")
    def _check_combinations(self) -> TrainConfig:
        self._check_model()
        kvsall, sampling, dura = self.training == "kvsall", self.training == "negative_sampling", self.penalty == "dura"
        if kvsall and self.loss not in ("softmax", "bce"):
            raise ConfigError(f"loss={self.loss} does not work with training=kvsall: give softmax or bce.")
        if kvsall and self.relation_prediction:
            given = f"relation_prediction={self.relation_prediction}"
            raise ConfigError(f"{given} does not work with training=kvsall: set it to 0, or give training=1vsall.")
        if kvsall and dura:
            raise ConfigError("penalty=dura does not work with training=kvsall: give another penalty.")
        if not kvsall and self.label_smoothing:
            raise ConfigError(f"label_smoothing={self.label_smoothing} needs training=kvsall: set it to 0.")
        if sampling and self.negatives_head + self.negatives_tail == 0:
            raise ConfigError("negatives_head=0 and negatives_tail=0 leave nothing to learn from: set one of them.")
        if not sampling and self.negatives_filtered:
            raise ConfigError("negatives_filtered=true needs training=negative_sampling: set it to false.")
        if self.init == "uniform" and self.init_low >= self.init_high:
            raise ConfigError(f"init_low={self.init_low} must be less than init_high={self.init_high}.")
        if dura and self.model in _NO_PRODUCT:
            raise ConfigError(f"penalty=dura is defined for dot-product models, not for {self.model}: give another.")
        if dura and self.penalty_relation:
            raise ConfigError("penalty=dura has one weight, penalty_entity: set penalty_relation to 0.")
        if dura and not self.penalty_weighted:
            raise ConfigError("penalty=dura needs penalty_weighted=true.")
        if self.storage == "bf16" and self.optimizer == "adam":
            raise ConfigError(
                "storage=bf16 does not work with optimizer=adam, which would round every row in every step: give "
                "lazy_adam or adagrad, or storage=float32."
            )
        if self.schedule == "warmup" and not self.warmup_epochs:
            raise ConfigError("schedule=warmup needs warmup_epochs above 0.")
        return self

    def _check_model(self) -> None:
        model = model_class(self.model)
        model.check_dim(self.dim)
        if model.needs_reciprocal and not self.reciprocal:
            raise ConfigError(f"model={self.model} predicts only tails, so it needs reciprocal=true.")
        for name in DROPOUTS[2:]:
            if getattr(self, name) and name not in model.dropouts:
                having = ", ".join(other for other, cls in MODELS.items() if name in cls.dropouts)
                raise ConfigError(f"{name}={getattr(self, name)} has no effect in {self.model}, only in {having}.")
        if self.relation_prediction and model.weight_shapes(self.dim):
            raise ConfigError(
                f"relation_prediction={self.relation_prediction} does not work with model={self.model}, which has "
                f"weights beside its embeddings: set it to 0."
            )

    def _repr_html_(self) -> str:
        """Return a table of the settings that are not the defaults."""
        rows = [
            (n, f"{v:.4g}" if isinstance(v, float) else str(v))
            for n, v in self.model_dump(exclude_defaults=True).items()
        ]
        return html_table("TrainConfig", ("setting", "value"), rows, below="Other settings have their defaults.")

    def own_key(self, *purpose: str) -> int:
        """Return the key of a random stream that depends on seed and variation: initial embeddings, dropout."""
        key = key_of(self.seed, *purpose)
        return key_at(key, self.variation) if self.variation else key

    def changed(self, **changes: Any) -> TrainConfig:
        """Return a copy with some fields changed, validated again."""
        return make_config({**self.model_dump(), **changes})


ALIASES = {"learning_rate": "lr", "embedding_dim": "dim", "num_epochs": "epochs", "n_epochs": "epochs"}


def make_config(values: Mapping[str, Any], *, source: str = "") -> TrainConfig:
    """Return a TrainConfig; errors name the source, e.g. the file."""
    try:
        return TrainConfig(**by_setting(values, ALIASES))
    except ConfigError as error:
        if not source:
            raise
        raise ConfigError(f"{source}: {error}") from None


def by_setting(values: Mapping[str, Any], aliases: Mapping[str, str]) -> dict[str, Any]:
    """Return the values by the names of their settings; other names of a setting are replaced."""
    found: dict[str, Any] = {}
    for given, value in values.items():
        name = aliases.get(str(given), str(given))
        if name in found:
            raise ConfigError(f"{name} is given twice, also as {given}: give it once.")
        found[name] = value
    return found


def read_config(path: Path) -> TrainConfig:
    """Read a TrainConfig from a YAML file of `name: value` lines."""
    return make_config(read_yaml_mapping(path), source=str(path))


_NEEDS = {
    "greater_than": "give a number greater than {gt}",
    "greater_than_equal": "give {ge} or more",
    "less_than": "give a number less than {lt}",
    "less_than_equal": "give {le} or less",
    "literal_error": "give {expected}",
    "finite_number": "give a number that is not infinite and not NaN",
    "string_type": "give a word",
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float", "int_parsing_size"), "give a whole number"),
    **dict.fromkeys(("float_parsing", "float_type"), "give a number"),
    **dict.fromkeys(("bool_parsing", "bool_type"), "give true or false"),
}
