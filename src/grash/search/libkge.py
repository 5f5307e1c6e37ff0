"""LibKGE's files: a published GraSH search becomes settings and a space, a published trial becomes a TrainConfig.

What has no counterpart is listed with the reason, never dropped in silence. Goes to `spaces.py` and the command line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grash.errors import ConfigError
from grash.models import MODELS
from grash.search.space import NEGATIVE_IS_NONE, Parameter, Space, parameter_of, read_yaml
from grash.training.config import TrainConfig, make_config

_SETTINGS = {
    "grash_search.num_trials": "n_trials",
    "grash_search.eta": "eta",
    "grash_search.search_budget": "budget",
    "grash_search.variant": "variant",
    "grash_search.seed": "seed",
    "grash_search.min_negatives_percentage": "negatives_floor",
    "train.max_epochs": "max_epochs",
    "dataset.name": "dataset",
}
_WHEN = {
    "init_std": ("init", ("normal",)),
    "init_low": ("init", ("uniform",)),
    "init_high": ("init", ("uniform",)),
    "penalty_entity": ("penalty", ("l3", "l2", "l1", "n3")),
    "penalty_relation": ("penalty", ("l3", "l2", "l1", "n3")),
}
_NEGATIVES = tuple(n for n in TrainConfig.model_fields if n.startswith("negatives_"))
_EPOCHS = 20  # LibKGE's default
_LEAST_RATE = 1e-6  # where a file lets the learning rate begin at 0


@dataclass(frozen=True)
class LibkgeSearch:
    """A GraSH search of LibKGE: settings of the search by our names, its space, and what was left out, with why."""

    settings: dict[str, Any]
    space: Space
    ignored: list[str]


def read_libkge_search(path: Path) -> LibkgeSearch:
    """The search in a LibKGE file (job.type search, search.type grash_search)."""
    return libkge_search(read_yaml(path), str(path))


def is_libkge_search(content: Any) -> bool:
    return isinstance(content, Mapping) and any(str(key).split(".")[0] == "grash_search" for key in content)


def libkge_search(content: Any, source: str) -> LibkgeSearch:
    """As read_libkge_search, from what the file holds."""
    if not is_libkge_search(content):
        raise ConfigError(f"{source}: there is no `grash_search` section: it is not a GraSH search of LibKGE.")
    try:
        return _search(flat(content))
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from error


def read_libkge_config(path: Path) -> TrainConfig:
    """The training in a LibKGE file, such as the published selected trials."""
    content = read_yaml(path)
    if not isinstance(content, Mapping) or "model" not in content:
        raise ConfigError(f"{path}: there is no `model`: it is not a training of LibKGE.")
    try:
        keys = {**DEFAULTS, **flat(content)}
        model, reciprocal = _model_of(keys)
        values, _ = _fixed(keys, model)
        return make_config({**_coherent(values), "model": model, "reciprocal": reciprocal, **_length(keys)})
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _search(given: dict[str, Any]) -> LibkgeSearch:
    keys = {**DEFAULTS, **given}
    model, reciprocal = _model_of(keys)
    entries = keys.get("grash_search.parameters")
    if not isinstance(entries, list) or not entries:
        raise ConfigError("grash_search.parameters is empty: list at least one parameter.")
    values, used = _fixed(keys, model)
    notes: list[str] = []
    found = _searched(entries, keys, model, values, notes)
    fixed = _coherent({n: v for n, v in values.items() if n not in found})
    if isinstance(values.get("training"), str) and values["training"] != "negative_sampling":
        found = {n: p for n, p in found.items() if n not in _NEGATIVES}
    settings = {ours: given[key] for key, ours in _SETTINGS.items() if key in given}
    settings.setdefault("max_epochs", _EPOCHS)
    settings |= {"model": model} | ({} if "dim" in found else {"dim": fixed["dim"]})
    if settings.get("seed", 0) < 0:  # LibKGE draws one then
        del settings["seed"]
    fixed |= {"model": model, "reciprocal": reciprocal}
    fixed.pop("dim", None)
    parameters = found | {n: Parameter(n, "fixed", values=(v,)) for n, v in fixed.items()}
    space = Space({n: _conditional(p, parameters) for n, p in parameters.items()})
    read = {*used, *_SETTINGS, "grash_search.parameters"}
    return LibkgeSearch(settings, space.verified(), [*notes, *left_out(given, read)])


def _searched(
    entries: list[Any], keys: dict[str, Any], model: str, fixed: dict[str, Any], notes: list[str]
) -> dict[str, Parameter]:
    """The parameters of the list by our names; those without a counterpart go to the notes."""
    found: dict[str, Parameter] = {}
    for entry in entries:
        if not isinstance(entry, Mapping) or "name" not in entry:
            raise ConfigError(f"{entry!r} in grash_search.parameters has no name.")
        key = str(entry["name"])
        name = setting_of(key, model, fixed["loss"])
        if name is None:
            notes.append(f"{key}: it was searched, and has no counterpart in grash")
            continue
        if name in found:
            raise ConfigError(f"{key} stands in grash_search.parameters twice: keep one.")
        found[name] = _adapted(parameter_of(name, _in_our_words(entry, key, name, keys)), model, fixed, notes)
    if "negatives_head" in found and "negatives_tail" not in found and keys["negative_sampling.num_samples.o"] == -1:
        head = found["negatives_head"]
        found["negatives_tail"] = Parameter("negatives_tail", head.kind, head.low, head.high, head.log)
        notes.append("negative_sampling.num_samples.o: -1 meant as many as s; here both are drawn, from one range")
    return found


def _in_our_words(entry: Mapping[str, Any], key: str, name: str, keys: dict[str, Any]) -> dict[str, Any]:
    p = keys["lookup_embedder.regularize_args.p"]
    ours = dict(entry)
    if isinstance(entry.get("values"), list):
        ours["values"] = [word_of(key, name, value, p) for value in entry["values"]]
    if "value" in entry:
        ours["value"] = word_of(key, name, entry["value"], p)
    return ours


def _adapted(parameter: Parameter, model: str, fixed: dict[str, Any], notes: list[str]) -> Parameter:
    """A parameter within what a training takes, each change noted."""
    name, low, high = parameter.name, parameter.low, parameter.high
    if name == "lr" and parameter.kind == "float" and low == 0:
        notes.append(f"lr: its range began at 0, where nothing is learnt; it begins at {_LEAST_RATE:g}")
        return Parameter(name, "float", _LEAST_RATE, high, parameter.log)
    if name == "dim" and parameter.kind == "int" and MODELS[model].even_dim:
        notes.append(f"dim: {model} needs even numbers; the odd ones were left out")
        return Parameter(name, "choice", values=tuple(range(int(low) + int(low) % 2, int(high) + 1, 2)))
    if name == "penalty_entity" and parameter.kind == "float" and not fixed["penalty_weighted"]:
        notes.append("penalty_entity: LibKGE counts an unweighted penalty twice; the range is doubled")
        return Parameter(name, "float", 2 * low, 2 * high, parameter.log)
    return parameter


def _conditional(parameter: Parameter, parameters: Mapping[str, Parameter]) -> Parameter:
    """Settings of one law or penalty count only there: drawn in any case, as LibKGE does, but not written."""
    other, wanted = _WHEN.get(parameter.name, ("", ()))
    if other not in parameters:
        return parameter
    held = tuple(v for v in parameters[other].values if v in wanted)
    when = ((other, held or wanted),)
    fields = (parameter.name, parameter.kind, parameter.low, parameter.high, parameter.log, parameter.off)
    return Parameter(*fields, values=parameter.values, when=when)


def _model_of(keys: Mapping[str, Any]) -> tuple[str, bool]:
    """The model's name here, and whether reciprocals are used."""
    name, reciprocal = str(keys.get("model", "")), False
    while name in ("reciprocal_relations_model", "distributed_model"):
        reciprocal |= name == "reciprocal_relations_model"
        name = str(keys.get(f"{name}.base_model.type", ""))
    if name not in MODELS:
        raise ConfigError(f"model={name!r} is not one of grash's models, {', '.join(MODELS)}.")
    return name, reciprocal


def _fixed(keys: Mapping[str, Any], model: str) -> tuple[dict[str, Any], list[str]]:
    """Our settings with their values, and the keys that they were read from."""
    p = keys["lookup_embedder.regularize_args.p"]
    loss = word_of("train.loss", "loss", keys["train.loss"])
    values: dict[str, Any] = {}
    for side in ("entity", "relation"):  # what both sides take unless they have their own
        values[f"dropout_{side}"] = keys.get("lookup_embedder.dropout", 0.0)
        values[f"penalty_{side}"] = keys.get("lookup_embedder.regularize_weight", 0.0)
    used = ["lookup_embedder.dropout", "lookup_embedder.regularize_weight", "lookup_embedder.regularize_args.p"]
    for key, value in keys.items():
        name = setting_of(key, model, loss)
        if name is not None:
            values[name] = word_of(key, name, value, p)
            used.append(key)
    if values["negatives_tail"] == -1:
        values["negatives_tail"] = values["negatives_head"]
    if not values["penalty_weighted"]:  # LibKGE counts the table once for heads and once for tails
        values["penalty_entity"] = 2 * float(values["penalty_entity"])
    return values, used


def _coherent(values: dict[str, Any]) -> dict[str, Any]:
    """Without the settings that do not count, and with what is below none at none."""
    kept = {n: max(float(v), 0.0) if n in NEGATIVE_IS_NONE else v for n, v in values.items()}
    if kept.get("training", "negative_sampling") != "negative_sampling":
        kept = {n: v for n, v in kept.items() if n not in _NEGATIVES}
    if kept.get("training", "kvsall") != "kvsall":
        kept.pop("label_smoothing", None)
    for name in ("init_std", "init_low", "init_high"):
        if kept.get("init", "") in ("xavier_normal", "xavier_uniform"):
            kept.pop(name, None)
    return kept


def _length(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Epochs, validations and patience of a training."""
    patience = keys.get("valid.early_stopping.patience", 5)
    return {
        "epochs": keys.get("train.max_epochs", _EPOCHS),
        "valid_every": keys.get("valid.every", 5) or 5,
        "patience": patience or None,
    }


# = LibKGE's keys and words in ours: which setting a key is, what its value becomes, and why the others are left out.
# =
# = Used by `libkge.py`. Keys are dotted (`train.optimizer_args.lr`); files may nest them or write them flat.

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
    ("grash_search.cost_metric", "the unit of the budget is the option --budget-unit"),
    ("grash_search.valid_frac", "the validation split is min(20 %, 5000), as published"),
    ("grash_search.valid_max", "the validation split is min(20 %, 5000), as published"),
    ("grash_search", _RUNNING),
    ("train.checkpoint", _RUNNING),
    ("train.loss_arg", "this loss has no argument"),
    ("negative_sampling.filtering.o", "filtering goes for both sides alike"),
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
