"""LibKGE's keys and words in ours: which setting a key is, what its value becomes, and why the others are left out.

Used by `libkge.py`. Keys are dotted (`train.optimizer_args.lr`); files may nest them or write them flat.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from grash.errors import ConfigError

NAMES = {
    "train.type": "training",
    "train.loss": "loss",
    "train.batch_size": "batch_size",
    "train.optimizer": "optimizer",
    "train.optimizer.default.type": "optimizer",
    "train.optimizer_args.lr": "lr",
    "train.optimizer.default.args.lr": "lr",
    "train.lr_scheduler": "schedule",
    "train.lr_scheduler_args.factor": "schedule_factor",
    "train.lr_scheduler_args.patience": "schedule_patience",
    "train.lr_warmup": "warmup_epochs",
    "KvsAll.label_smoothing": "label_smoothing",
    "lookup_embedder.dim": "dim",
    "lookup_embedder.initialize": "init",
    "lookup_embedder.initialize_args.normal_.std": "init_std",
    "lookup_embedder.initialize_args.uniform_.a": "init_low",
    "lookup_embedder.initialize_args.uniform_.b": "init_high",
    "lookup_embedder.regularize": "penalty",
    "lookup_embedder.regularize_args.weighted": "penalty_weighted",
    "negative_sampling.num_samples.s": "negatives_head",
    "negative_sampling.num_samples.o": "negatives_tail",
    "negative_sampling.shared": "negatives_shared",
    "negative_sampling.with_replacement": "negatives_replacement",
    "negative_sampling.sampling_type": "negatives_sampling",
    "negative_sampling.filtering.s": "negatives_filtered",
}
_OF_MODEL = {
    "entity_embedder.regularize_weight": "penalty_entity",
    "relation_embedder.regularize_weight": "penalty_relation",
    "entity_embedder.dropout": "dropout_entity",
    "relation_embedder.dropout": "dropout_relation",
    "l_norm": "norm",
}
_BY_LOSS = {"margin": "margin", "bce": "offset"}  # what train.loss_arg is

DEFAULTS: dict[str, Any] = {  # LibKGE's own, where a file is silent
    "train.type": "KvsAll",
    "train.loss": "kl",
    "train.batch_size": 100,
    "train.optimizer.default.type": "Adagrad",
    "train.optimizer.default.args.lr": 0.01,  # torch's default for Adagrad
    "train.lr_scheduler": "",
    "lookup_embedder.dim": 100,
    "lookup_embedder.initialize": "normal_",
    "lookup_embedder.initialize_args.normal_.std": 1.0,
    "lookup_embedder.initialize_args.uniform_.a": 0.0,
    "lookup_embedder.initialize_args.uniform_.b": 1.0,
    "lookup_embedder.regularize": "lp",
    "lookup_embedder.regularize_args.p": 2,
    "lookup_embedder.regularize_args.weighted": False,
    "negative_sampling.num_samples.s": 3,
    "negative_sampling.num_samples.o": -1,
    "negative_sampling.shared": False,
    "negative_sampling.with_replacement": True,
    "negative_sampling.sampling_type": "uniform",
    "negative_sampling.filtering.s": False,
}

_WORDS: dict[str, dict[str, str]] = {
    "training": {
        "negative_sampling": "negative_sampling", "distributed_negative_sampling": "negative_sampling",
        "1vsAll": "1vsall", "KvsAll": "kvsall",
    },
    "loss": {
        "kl": "softmax", "ce": "softmax", "bce": "bce", "margin_ranking": "margin",
        "bce_self_adversarial": "self_adversarial",
    },
    "optimizer": {
        "adagrad": "adagrad", "rowadagrad": "row_adagrad", "adam": "adam", "sparseadam": "lazy_adam", "sgd": "sgd",
    },
    "schedule": {"": "constant", "ReduceLROnPlateau": "plateau"},
    "init": {f"{law}_": law for law in ("xavier_normal", "xavier_uniform", "normal", "uniform")},
    "penalty": {"": "none", "l1": "l1", "l2": "l2", "l3": "l3", "n3": "n3"},
    "negatives_sampling": {"uniform": "uniform", "frequency": "frequency"},
}  # fmt: skip

_RUNNING = "how LibKGE runs, not what is trained"
_HERE = {"model", "train.max_epochs", "dataset.name"}  # read by libkge.py
_REASONS = (
    ("entity_ranking", "ranks and metrics are grash's own (docs/reference/metrics.md)"),
    ("eval", "ranks and metrics are grash's own (docs/reference/metrics.md)"),
    ("valid", "trials are validated by the plan of the search; test is never looked at"),
    ("job", "devices and workers are options of the command"),
    ("search", "devices and workers are options of the command"),
    ("random_seed", "grash_search.seed is the seed of every stream"),
    ("console", _RUNNING),
    ("modules", _RUNNING),
    ("import", _RUNNING),
    ("dataset", "the graph is given to the command"),
    ("distributed_model", _RUNNING),
    ("reciprocal_relations_model", _RUNNING),
    ("grash_search.keep_initialization", "initial rows follow from seed and entity: they are kept in any case"),
    ("grash_search.keep_pretrained", "it is warm_start in grash, off unless asked for"),
    ("grash_search.cost_metric", "the unit of the budget is the option --price"),
    ("grash_search.valid_frac", "the validation split is min(20 %, 5000), as published"),
    ("grash_search.valid_max", "the validation split is min(20 %, 5000), as published"),
    ("grash_search", _RUNNING),
    ("train.checkpoint", _RUNNING),
    ("train.loss_arg", "this loss has no argument"),
    ("negative_sampling.filtering.o", "filtering goes for both slots alike"),
    ("negative_sampling.frequency", "counts are not smoothed"),
    ("lookup_embedder.initialize_args", "laws have mean 0 and gain 1"),
    ("lookup_embedder.regularize_args.p", "the norm is in the name of the penalty"),
)
_RUNNING_ENDS = (
    "class_name", "type", "trace_level", "num_workers", "pin_memory", "split", "abort_on_nan", "visualize_graph",
    "auto_correct", "implementation", "shared_type", "sparse", "normalize_phases", "pretrain.ensure_all",
)  # fmt: skip


def flat(content: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """{"train": {"loss": "kl"}} and {"train.loss": "kl"} → {"train.loss": "kl"}; lists stay whole."""
    found: dict[str, Any] = {}
    for key, value in content.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found |= flat(value, f"{name}.")
        else:
            found[name] = value
    return found


def setting_of(key: str, model: str, loss: str) -> str | None:
    """Our name of a LibKGE key, or None."""
    if key == "train.loss_arg":
        return _BY_LOSS.get(loss)
    if key.startswith(f"{model}."):
        return _OF_MODEL.get(key.removeprefix(f"{model}."))
    return NAMES.get(key)


def word_of(key: str, name: str, value: Any, p: Any = 2) -> Any:
    """Our value of a LibKGE value, for the setting `name`; `p` is the norm that `lp` speaks of."""
    if name == "norm":
        return int(value)
    if name not in _WORDS:
        return value
    word = "" if value is None else str(value)
    if name == "optimizer":
        word = word.lower().removeprefix("dist_")
    if name == "penalty" and word == "lp":
        word = f"l{int(p)}"
    if word not in _WORDS[name]:
        known = ", ".join(repr(w) for w in _WORDS[name])
        raise ConfigError(f"{key}={value!r} has no counterpart in grash, which knows {known} there.")
    return _WORDS[name][word]


def left_out(keys: Mapping[str, Any], used: Iterable[str]) -> list[str]:
    """A line for what was not used: a section or a key, and why."""
    read = {*used, *_HERE}
    found: dict[str, str] = {}
    for key in sorted(set(keys) - read):
        section = next((s for s, _ in _REASONS if key == s or key.startswith(f"{s}.")), None)
        if section is not None:
            whole = section != key and not any(other.startswith(f"{section}.") for other in read)
            found[f"{section}.*" if whole else key] = dict(_REASONS)[section]
        elif key.endswith(_RUNNING_ENDS):
            found[key] = _RUNNING
        elif keys[key] not in ("", None, [], -1, -1.0, 0, False):  # switched off there: nothing is lost
            found[key] = f"{keys[key]!r} has no counterpart in grash"
    return [f"{key}: {why}" for key, why in found.items()]
