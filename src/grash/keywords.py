"""Keyword arguments as types, so that editors complete them and type checkers find wrong names and values.

Written by tools/make_keywords.py from the records of settings. `with_keywords` shows the names to `help` and Jupyter.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])


def with_keywords(keywords: type) -> Callable[[_F], _F]:
    """Return a decorator that lists the keywords of a TypedDict in the signature of a function, in place of **rest."""

    def decorate(function: _F) -> _F:
        own = inspect.signature(function)
        named = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
        taken = {p.name for p in named}
        more = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=..., annotation=kind)
            for name, kind in keywords.__annotations__.items()
            if name not in taken
        ]
        function.__signature__ = own.replace(parameters=named + more)  # type: ignore[attr-defined]
        return function

    return decorate


class OpenKeywords(TypedDict, total=False):
    """Options of `grash.Search.open`: where and how the trials run."""

    engine: str
    device: str
    workers: int | None
    trial_timeout: float | None
    address: str | None
    placement: str


class EvaluateKeywords(TypedDict, total=False):
    """Options of `grash.evaluate` (docs/reference/python.md)."""

    split: Literal["valid", "test"]
    sample: int | None
    candidates: int | None
    like_known: bool
    unseen: Literal["keep", "drop"]
    detail: bool
    seed: int
    work_bytes: int | None


class SplitKeywords(TypedDict, total=False):
    """Options of `grash.from_triples`: duplicates, and splits that are missing."""

    duplicates: Literal["drop", "keep"]
    valid_fraction: float | None
    test_fraction: float | None
    n_valid: int | None
    n_test: int | None
    seed: int


class ReadKeywords(TypedDict, total=False):
    """Options of `grash.load_dataset` (docs/how-to/own-dataset.md)."""

    separator: str | None
    header: bool | None
    columns: str | Sequence[int | str] | None
    bad_lines: Literal["error", "skip", "list"]
    literals: Literal["skip", "keep"]
    duplicates: Literal["drop", "keep"]
    valid_fraction: float | None
    test_fraction: float | None
    n_valid: int | None
    n_test: int | None
    seed: int
    format: Literal["text", "ntriples", "nquads", "turtle", "rdfxml", "parquet", "npy", "npz"] | None


class TrainKeywords(TypedDict, total=False):
    """Settings of a training run (docs/reference/config.md)."""

    model: str
    dim: int
    norm: Literal[1, 2]
    reciprocal: bool
    training: Literal["negative_sampling", "1vsall", "kvsall"]
    batch_size: int
    negatives_head: int
    negatives_tail: int
    negatives_shared: bool
    negatives_replacement: bool
    negatives_sampling: Literal["uniform", "frequency"]
    negatives_filtered: bool
    label_smoothing: float
    loss: Literal["softmax", "bce", "margin", "self_adversarial"]
    offset: float
    margin: float
    temperature: float
    relation_prediction: float
    penalty: Literal["none", "l1", "l2", "l3", "n3", "dura"]
    penalty_entity: float
    penalty_relation: float
    penalty_weighted: bool
    dropout_entity: float
    dropout_relation: float
    dropout_input: float
    dropout_features: float
    dropout_query: float
    init: Literal["xavier_normal", "xavier_uniform", "normal", "uniform"]
    init_std: float
    init_low: float
    init_high: float
    optimizer: Literal["adagrad", "row_adagrad", "adam", "lazy_adam", "sgd"]
    lr: float
    schedule: Literal["constant", "warmup", "plateau", "cosine", "linear"]
    schedule_factor: float
    schedule_patience: int
    warmup_epochs: float
    epochs: float
    valid_every: float
    patience: int | None
    precision: Literal["float32", "tf32", "bf16"]
    storage: Literal["float32", "bf16"]
    seed: int
    variation: int
    learning_rate: float  # lr
    embedding_dim: int  # dim
    num_epochs: float  # epochs
    n_epochs: float  # epochs


class SearchKeywords(TypedDict, total=False):
    """Settings of a search (docs/reference/search.md)."""

    models: str | Sequence[str]
    dim: int
    max_epochs: float
    budget: float
    n_trials: int
    eta: int
    one_vs_all: bool | None
    variant: Literal["combined", "graph", "epoch"]
    space: str | Path | Mapping[str, Any]
    proposals: Literal["random", "sobol", "portfolio"]
    time: str | float | None
    metric: Literal["mrr", "hits@1", "hits@3", "hits@10", "macro-mrr", "weighted-mrr"]
    seed: int
    reduction: Literal["core-order", "k-core", "walk"]
    degree: Literal["neighbors", "triples"]
    guarded_split: bool
    last_round_holdout: Literal["random", "match_valid"]
    negatives_floor: float
    guard_rails: bool
    carry_over: bool
    trend: float
    scaled_penalties: bool
    budget_unit: Literal["triples", "scores"]
    warm_start: Literal["off", "weights"]
    finalists: int
    final_train: bool
    threads: int
    final_threads: int | None
    max_retries: int
    initial: tuple[dict[str, Any], ...]
    max_dims: dict[str, int]
    max_prediction_ms: float | None
    prediction_ms: dict[str, dict[int, float]]
    fixed: Mapping[str, Any]
    model: str | Sequence[str]  # models
    n: int  # n_trials
    num_trials: int  # n_trials
    reduction_factor: int  # eta
    epochs: float  # max_epochs
    search_budget: float  # budget
