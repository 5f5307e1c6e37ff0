"""LibKGE's files: read a published GraSH search or trial, and write a TrainConfig for `kge start`.

Keys are dotted (`train.optimizer_args.lr`); files may nest them or write them flat. What has no counterpart in the
other tool is listed with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from grash.errors import ConfigError
from grash.interop.pykeen import whole, without_counterpart
from grash.models import MODELS
from grash.search.space import NEGATIVE_IS_ZERO, Parameter, Space, make_parameter
from grash.training.config import TrainConfig, make_config
from grash.yaml_files import read_yaml

_SEARCH_SETTINGS = {
    "grash_search.num_trials": "n_trials",
    "grash_search.eta": "eta",
    "grash_search.search_budget": "budget",
    "grash_search.variant": "variant",
    "grash_search.seed": "seed",
    "grash_search.min_negatives_percentage": "negatives_floor",
    "train.max_epochs": "max_epochs",
    "dataset.name": "dataset",
}
_TRAIN_SETTINGS: dict[str, tuple[Any, ...]] = {  # our name, and LibKGE's default if it has one
    "train.type": ("training", "KvsAll"),
    "train.loss": ("loss", "kl"),
    "train.batch_size": ("batch_size", 100),
    "train.optimizer": ("optimizer",),
    "train.optimizer.default.type": ("optimizer", "Adagrad"),
    "train.optimizer_args.lr": ("lr",),
    "train.optimizer.default.args.lr": ("lr", 0.01),  # torch's default for Adagrad
    "train.lr_scheduler": ("schedule", ""),
    "train.lr_scheduler_args.factor": ("schedule_factor",),
    "train.lr_scheduler_args.patience": ("schedule_patience",),
    "train.lr_warmup": ("warmup_epochs",),
    "KvsAll.label_smoothing": ("label_smoothing",),
    "lookup_embedder.dim": ("dim", 100),
    "lookup_embedder.initialize": ("init", "normal_"),
    "lookup_embedder.initialize_args.normal_.std": ("init_std", 1.0),
    "lookup_embedder.initialize_args.uniform_.a": ("init_low", 0.0),
    "lookup_embedder.initialize_args.uniform_.b": ("init_high", 1.0),
    "lookup_embedder.regularize": ("penalty", "lp"),
    "lookup_embedder.regularize_args.weighted": ("penalty_weighted", False),
    "negative_sampling.num_samples.s": ("negatives_head", 3),
    "negative_sampling.num_samples.o": ("negatives_tail", -1),
    "negative_sampling.shared": ("negatives_shared", False),
    "negative_sampling.with_replacement": ("negatives_replacement", True),
    "negative_sampling.sampling_type": ("negatives_sampling", "uniform"),
    "negative_sampling.filtering.s": ("negatives_filtered", False),
}
_DEFAULTS: dict[str, Any] = {key: entry[1] for key, entry in _TRAIN_SETTINGS.items() if len(entry) == 2}
_DEFAULTS["lookup_embedder.regularize_args.p"] = 2
_MODEL_SETTINGS = {
    "entity_embedder.regularize_weight": "penalty_entity",
    "relation_embedder.regularize_weight": "penalty_relation",
    "entity_embedder.dropout": "dropout_entity",
    "relation_embedder.dropout": "dropout_relation",
    "l_norm": "norm",
    "feature_map_dropout": "dropout_features",
    "projection_dropout": "dropout_query",
}
_MODELS = ("complex", "conve", "cp", "distmult", "rescal", "rotate", "simple", "transe")
_LOSS_ARGUMENT = {"margin": "margin", "bce": "offset"}  # what train.loss_arg is
_VALUES: dict[str, dict[str, str]] = {
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
    "init": {f"{name}_": name for name in ("xavier_normal", "xavier_uniform", "normal", "uniform")},
    "penalty": {"": "none", "l1": "l1", "l2": "l2", "l3": "l3", "n3": "n3"},
    "negatives_sampling": {"uniform": "uniform", "frequency": "frequency"},
}  # fmt: skip
_CONDITIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "init_std": ("init", ("normal",)),
    **dict.fromkeys(("init_low", "init_high"), ("init", ("uniform",))),
    **dict.fromkeys(("penalty_entity", "penalty_relation"), ("penalty", ("l3", "l2", "l1", "n3"))),
}
_NEGATIVES = tuple(n for n in TrainConfig.model_fields if n.startswith("negatives_"))
_EPOCHS = 20  # LibKGE's default
_MIN_RATE = 1e-6  # instead of a range of the learning rate that starts at 0
_RUNNING = "it controls how LibKGE runs, not what is trained"
_METRICS = "ranks and metrics are grash's own (docs/reference/metrics.md)"
_DEVICES = "devices and workers are options of the command"
_VALID = "the validation split is min(20 %, 5000), as published"
_REASONS = {  # of ignored sections and keys; a key before its section
    "entity_ranking": _METRICS, "eval": _METRICS, "job": _DEVICES, "search": _DEVICES,
    "valid": "trials are validated as the search plans it; test is never used",
    "random_seed": "grash_search.seed is the seed of every stream",
    "dataset": "the graph is given to the command",
    "console": _RUNNING, "modules": _RUNNING, "import": _RUNNING, "train.checkpoint": _RUNNING,
    "distributed_model": _RUNNING, "reciprocal_relations_model": _RUNNING,
    "grash_search.keep_initialization": "initial embeddings depend on seed and entity only, so they are always kept",
    "grash_search.keep_pretrained": "it is warm_start in grash, which is off by default",
    "grash_search.cost_metric": "the unit of the budget is set with --budget-unit",
    "grash_search.valid_frac": _VALID, "grash_search.valid_max": _VALID, "grash_search": _RUNNING,
    "train.loss_arg": "this loss has no argument",
    "negative_sampling.filtering.o": "filtering is the same for both sides",
    "negative_sampling.frequency": "counts are not smoothed",
    "lookup_embedder.initialize_args": "distributions have mean 0 and gain 1",
    "lookup_embedder.regularize_args.p": "the norm is in the name of the penalty",
}  # fmt: skip
_RUNNING_ENDS = (
    "class_name", "type", "trace_level", "num_workers", "pin_memory", "split", "abort_on_nan", "visualize_graph",
    "auto_correct", "implementation", "shared_type", "sparse", "normalize_phases", "pretrain.ensure_all",
)  # fmt: skip
_OPTIMIZERS = {"adagrad": "Adagrad", "row_adagrad": "Adagrad", "adam": "Adam", "lazy_adam": "SparseAdam", "sgd": "SGD"}
_POWERS = {"l1": 1, "l2": 2, "l3": 3}
# names in the catalog and in LibKGE's data/download_all.sh, where both are the same files
_DATASETS = {
    **{name: name for name in ("fb15k", "fb15k-237", "wn18", "yago3-10", "dbpedia50", "dbpedia500", "db100k")},
    **{name: name for name in ("codex-s", "codex-m", "codex-l")},
    "wn18rr": "wnrr", "wikidata5m-v2": "wikidata5m",
}  # fmt: skip


@dataclass(frozen=True)
class LibkgeSearch:
    """A GraSH search of LibKGE."""

    settings: dict[str, Any]  # of the search, by our names
    space: Space
    ignored: list[str]  # what was left out, and why


def is_libkge_search(content: Any) -> bool:
    return isinstance(content, Mapping) and any(str(key).split(".")[0] == "grash_search" for key in content)


def libkge_search(content: Any, source: str) -> LibkgeSearch:
    """Return the search from the content of a LibKGE file."""
    if not is_libkge_search(content):
        raise ConfigError(f"{source}: it is not a GraSH search of LibKGE: it has no `grash_search` section.")
    try:
        return _search(flatten(content))
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from error


def read_libkge_config(path: Path) -> TrainConfig:
    """Return the training in a LibKGE file, such as the published selected trials."""
    content = read_yaml(path)
    if not isinstance(content, Mapping) or "model" not in content:
        raise ConfigError(f"{path}: it is not a training of LibKGE: it has no `model`.")
    try:
        keys = {**_DEFAULTS, **flatten(content)}
        model, reciprocal = _model_of(keys)
        values, _ = _settings(keys, model)
        epochs, patience = keys.get("train.max_epochs", _EPOCHS), keys.get("valid.early_stopping.patience", 5) or None
        values = _consistent(values) | {"model": model, "reciprocal": reciprocal, "epochs": epochs}
        return make_config(values | {"valid_every": keys.get("valid.every", 5) or 5, "patience": patience})
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def config_to_libkge(config: TrainConfig, dataset: str) -> tuple[str, list[str]]:
    """Return the YAML, which starts with what has no counterpart, and that list.

    dataset: a folder under LibKGE's data/. LibKGE draws other random numbers: results differ as between two seeds.
    """
    if config.model not in _MODELS:
        raise ConfigError(
            f"model={config.model} cannot be exported as a configuration of LibKGE, only {', '.join(_MODELS)} can: "
            f"export the embeddings instead (--format npy)."
        )
    left_out: list[str] = []
    content: dict[str, Any] = {"job.type": "train", "dataset.name": dataset, "random_seed.default": config.seed}
    content["model"] = "reciprocal_relations_model" if config.reciprocal else config.model
    if config.reciprocal:
        content |= {"import": [config.model], "reciprocal_relations_model.base_model.type": config.model}
    content["train"] = _train_section(config, left_out)
    if config.training == "negative_sampling":
        content["negative_sampling"] = _negatives_section(config, left_out)
    if config.training == "kvsall":
        content["KvsAll.label_smoothing"] = config.label_smoothing
    if config.loss == "self_adversarial":
        content["user.bce_self_adversarial_temperature"] = config.temperature
    content["lookup_embedder"] = _embedder_section(config, left_out)
    content[config.model] = _table_sections(config)
    content["valid"] = {
        "every": whole("valid_every", config.valid_every, "LibKGE", left_out),
        "metric": "mean_reciprocal_rank_filtered",
        "early_stopping.patience": config.patience or 0,
    }
    content["entity_ranking.tie_handling.type"] = "rounded_mean_rank"
    if config.dropout_input:
        left_out.append(f"dropout_input: {config.dropout_input} has no counterpart")
    left_out += without_counterpart(config)
    head = "".join(f"# not carried over: {line}\n" for line in left_out)
    return head + yaml.safe_dump(content, sort_keys=False, allow_unicode=True), left_out


def libkge_dataset(graph: str, splits: str) -> tuple[str, str | None]:
    """Return LibKGE's name of a graph, or its own name and what to do if LibKGE does not have it.

    splits: the command or call that writes the graph's splits as text.
    """
    found = _DATASETS.get(graph.lower())
    if found is not None:
        return found, None
    return graph, (
        f"LibKGE reads {graph} from data/{graph}, a folder with dataset.yaml, train.del, valid.del, test.del, "
        f"entity_ids.del and relation_ids.del: `{splits}` writes train.txt, valid.txt and test.txt, and LibKGE's "
        f"data/preprocess/preprocess_default.py, run on their folder, makes the rest."
    )


def flatten(content: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """Return {"train.loss": "kl"} for {"train": {"loss": "kl"}}; lists are kept."""
    found: dict[str, Any] = {}
    for key, value in content.items():
        found |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def _search(given: dict[str, Any]) -> LibkgeSearch:
    keys = {**_DEFAULTS, **given}
    model, reciprocal = _model_of(keys)
    entries = keys.get("grash_search.parameters")
    if not isinstance(entries, list) or not entries:
        raise ConfigError("grash_search.parameters is empty: list at least one parameter.")
    values, used = _settings(keys, model)
    notes: list[str] = []
    parameters = _searched(entries, keys, model, values, notes)
    fixed = _consistent({n: v for n, v in values.items() if n not in parameters})
    if isinstance(values.get("training"), str) and values["training"] != "negative_sampling":
        parameters = {n: p for n, p in parameters.items() if n not in _NEGATIVES}
    settings = {ours: given[key] for key, ours in _SEARCH_SETTINGS.items() if key in given}
    settings.setdefault("max_epochs", _EPOCHS)
    settings |= {"model": model} | ({} if "dim" in parameters else {"dim": fixed["dim"]})
    if settings.get("seed", 0) < 0:  # LibKGE then draws one
        del settings["seed"]
    fixed |= {"model": model, "reciprocal": reciprocal}
    fixed.pop("dim", None)
    parameters |= {n: Parameter(n, "fixed", values=(v,)) for n, v in fixed.items()}
    space = Space({n: _conditional(p, parameters) for n, p in parameters.items()})
    read = {*used, *_SEARCH_SETTINGS, "grash_search.parameters"}
    return LibkgeSearch(settings, space.verified(), [*notes, *_ignored(given, read)])


def _searched(
    entries: list[Any], keys: dict[str, Any], model: str, fixed: dict[str, Any], notes: list[str]
) -> dict[str, Parameter]:
    """Return the listed parameters by our names; those without a counterpart go to the notes."""
    found: dict[str, Parameter] = {}
    for entry in entries:
        if not isinstance(entry, Mapping) or "name" not in entry:
            raise ConfigError(f"{entry!r} in grash_search.parameters has no name.")
        key = str(entry["name"])
        name = _setting_name(key, model, fixed["loss"])
        if name is None:
            notes.append(f"{key}: it was searched and has no counterpart in grash")
            continue
        if name in found:
            raise ConfigError(f"{key} is in grash_search.parameters twice: keep one.")
        found[name] = _adapted(make_parameter(name, _translated(entry, key, name, keys)), model, fixed, notes)
    if "negatives_head" in found and "negatives_tail" not in found and keys["negative_sampling.num_samples.o"] == -1:
        head = found["negatives_head"]
        found["negatives_tail"] = Parameter("negatives_tail", head.kind, head.low, head.high, head.log)
        notes.append("negative_sampling.num_samples.o: -1 means as many as s; here both are drawn, from the same range")
    return found


def _translated(entry: Mapping[str, Any], key: str, name: str, keys: dict[str, Any]) -> dict[str, Any]:
    p, translated = keys["lookup_embedder.regularize_args.p"], dict(entry)
    if isinstance(entry.get("values"), list):
        translated["values"] = [_value(key, name, value, p) for value in entry["values"]]
    if "value" in entry:
        translated["value"] = _value(key, name, entry["value"], p)
    return translated


def _adapted(parameter: Parameter, model: str, fixed: dict[str, Any], notes: list[str]) -> Parameter:
    """Return a parameter with values that a training accepts, and note each change."""
    name, low, high = parameter.name, parameter.low, parameter.high
    if name == "lr" and parameter.kind == "float" and low == 0:
        notes.append(f"lr: its range starts at 0, where nothing is learned; it starts at {_MIN_RATE:g} here")
        return Parameter(name, "float", _MIN_RATE, high, parameter.log)
    if name == "dim" and parameter.kind == "int" and MODELS[model].dim_multiple == 2:
        notes.append(f"dim: {model} needs even numbers; odd ones are left out")
        return Parameter(name, "choice", values=tuple(range(int(low) + int(low) % 2, int(high) + 1, 2)))
    if name == "penalty_entity" and parameter.kind == "float" and not fixed["penalty_weighted"]:
        notes.append("penalty_entity: LibKGE counts an unweighted penalty twice; the range is doubled")
        return Parameter(name, "float", 2 * low, 2 * high, parameter.log)
    return parameter


def _conditional(parameter: Parameter, parameters: Mapping[str, Parameter]) -> Parameter:
    """Return a parameter of one distribution or penalty with its condition; LibKGE draws it in any case."""
    other, wanted = _CONDITIONS.get(parameter.name, ("", ()))
    if other not in parameters:
        return parameter
    possible = tuple(v for v in parameters[other].values if v in wanted)
    return replace(parameter, when=((other, possible or wanted),))


def _model_of(keys: Mapping[str, Any]) -> tuple[str, bool]:
    """Return our name of the model, and whether it has reciprocal relations."""
    name, reciprocal = str(keys.get("model", "")), False
    while name in ("reciprocal_relations_model", "distributed_model"):
        reciprocal |= name == "reciprocal_relations_model"
        name = str(keys.get(f"{name}.base_model.type", ""))
    if name not in MODELS:
        raise ConfigError(f"model={name!r} is not one of grash's models, {', '.join(MODELS)}.")
    return name, reciprocal


def _settings(keys: Mapping[str, Any], model: str) -> tuple[dict[str, Any], list[str]]:
    """Return our settings with their values, and the keys that they were read from."""
    p = keys["lookup_embedder.regularize_args.p"]
    loss = _value("train.loss", "loss", keys["train.loss"])
    values: dict[str, Any] = {}
    for side in ("entity", "relation"):  # the common value, unless a side has its own
        values[f"dropout_{side}"] = keys.get("lookup_embedder.dropout", 0.0)
        values[f"penalty_{side}"] = keys.get("lookup_embedder.regularize_weight", 0.0)
    used = ["lookup_embedder.dropout", "lookup_embedder.regularize_weight", "lookup_embedder.regularize_args.p"]
    for key, value in keys.items():
        name = _setting_name(key, model, loss)
        if name is not None:
            values[name] = _value(key, name, value, p)
            used.append(key)
    if values["negatives_tail"] == -1:
        values["negatives_tail"] = values["negatives_head"]
    if not values["penalty_weighted"]:  # LibKGE penalizes the entities twice, for heads and for tails
        values["penalty_entity"] = 2 * float(values["penalty_entity"])
    return values, used


def _consistent(values: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that are in use, with 0 for negative values of those that cannot be negative."""
    kept = {n: max(float(v), 0.0) if n in NEGATIVE_IS_ZERO else v for n, v in values.items()}
    if kept.get("training", "negative_sampling") != "negative_sampling":
        kept = {n: v for n, v in kept.items() if n not in _NEGATIVES}
    if kept.get("training", "kvsall") != "kvsall":
        kept.pop("label_smoothing", None)
    if kept.get("init") in ("xavier_normal", "xavier_uniform"):
        kept = {n: v for n, v in kept.items() if n not in ("init_std", "init_low", "init_high")}
    return kept


def _setting_name(key: str, model: str, loss: str) -> str | None:
    """Return our name of a LibKGE key, or None."""
    if key == "train.loss_arg":
        return _LOSS_ARGUMENT.get(loss)
    if key.startswith(f"{model}."):
        return _MODEL_SETTINGS.get(key.removeprefix(f"{model}."))
    return _TRAIN_SETTINGS.get(key, (None,))[0]


def _value(key: str, name: str, value: Any, p: Any = 2) -> Any:
    """Return our value of a LibKGE value for the setting `name`; p is the norm of `lp`."""
    if name == "norm":
        return int(value)
    if name not in _VALUES:
        return value
    word = "" if value is None else str(value)
    if name == "optimizer":
        word = word.lower().removeprefix("dist_")
    if name == "penalty" and word == "lp":
        word = f"l{int(p)}"
    if word not in _VALUES[name]:
        known = ", ".join(repr(w) for w in _VALUES[name])
        raise ConfigError(f"{key}={value!r} has no counterpart in grash: possible are {known}.")
    return _VALUES[name][word]


def _ignored(keys: Mapping[str, Any], used: Iterable[str]) -> list[str]:
    """Return a line for each section or key that was not used, with the reason."""
    read = {*used, "model", "train.max_epochs", "dataset.name"}
    found: dict[str, str] = {}
    for key in sorted(set(keys) - read):
        section = next((s for s in _REASONS if key == s or key.startswith(f"{s}.")), None)
        if section is not None:
            whole = section != key and not any(other.startswith(f"{section}.") for other in read)
            found[f"{section}.*" if whole else key] = _REASONS[section]
        elif key.endswith(_RUNNING_ENDS):
            found[key] = _RUNNING
        elif keys[key] not in ("", None, [], -1, -1.0, 0, False):  # off in LibKGE: nothing is lost
            found[key] = f"{keys[key]!r} has no counterpart in grash"
    return [f"{key}: {why}" for key, why in found.items()]


def _train_section(config: TrainConfig, left_out: list[str]) -> dict[str, Any]:
    section: dict[str, Any] = {"type": _inverse("training")[config.training], "loss": _inverse("loss")[config.loss]}
    if config.loss == "bce":
        section["loss_arg"] = config.offset
    elif config.loss in ("margin", "self_adversarial"):
        section["loss_arg"] = config.margin
    if config.loss == "self_adversarial":
        left_out.append("loss: LibKGE's is half of ours; lr may need a change")
    if config.loss == "margin" and config.training == "1vsall":
        left_out.append("loss: LibKGE does not support margin_ranking with 1vsAll")
    section["max_epochs"] = whole("epochs", config.epochs, "LibKGE", left_out)
    section["batch_size"] = config.batch_size
    kind = _OPTIMIZERS[config.optimizer]
    if kind == "SparseAdam" and config.training != "negative_sampling":
        left_out.append("optimizer: SparseAdam does not support gradients of all entities; Adam is used")
        kind = "Adam"
    section["optimizer"] = {"default": {"type": kind, "args": {"lr": config.lr}}}
    if config.optimizer == "row_adagrad":
        left_out.append("optimizer: row_adagrad has no counterpart; Adagrad is used, which needs another lr")
    if config.schedule == "plateau":
        arguments = {"mode": "max", "factor": config.schedule_factor, "patience": config.schedule_patience}
        section |= {"lr_scheduler": "ReduceLROnPlateau", "lr_scheduler_args": arguments}
    elif config.schedule == "cosine":
        section |= {"lr_scheduler": "CosineAnnealingLR", "lr_scheduler_args": {"T_max": section["max_epochs"]}}
        left_out.append("schedule: the learning rate changes once per epoch, not in every step")
    elif config.schedule == "linear":
        left_out.append("schedule: linear has no counterpart; the learning rate is constant")
    if config.warmup_epochs:
        section["lr_warmup"] = whole("warmup_epochs", config.warmup_epochs, "LibKGE", left_out)
    return section


def _negatives_section(config: TrainConfig, left_out: list[str]) -> dict[str, Any]:
    replacement = config.negatives_replacement
    if not config.negatives_shared and not replacement:
        left_out.append("negatives_replacement: LibKGE draws negatives that are not shared with replacement")
        replacement = True
    return {
        "num_samples": {"s": config.negatives_head, "p": 0, "o": config.negatives_tail},
        "shared": config.negatives_shared,
        "with_replacement": replacement,
        "sampling_type": config.negatives_sampling,
        "filtering": {"s": config.negatives_filtered, "o": config.negatives_filtered},
        "implementation": "batch" if config.negatives_shared else "auto",
    }


def _embedder_section(config: TrainConfig, left_out: list[str]) -> dict[str, Any]:
    section: dict[str, Any] = {"dim": config.dim, "initialize": f"{config.init}_"}
    if config.init == "normal":
        section["initialize_args"] = {"normal_": {"mean": 0.0, "std": config.init_std}}
    elif config.init == "uniform":
        section["initialize_args"] = {"uniform_": {"a": config.init_low, "b": config.init_high}}
    if config.penalty in _POWERS:
        arguments = {"p": _POWERS[config.penalty], "weighted": config.penalty_weighted}
        section |= {"regularize": "lp", "regularize_args": arguments}
    elif config.penalty == "n3":
        section |= {"regularize": "n3", "regularize_args": {"weighted": config.penalty_weighted}}
    else:
        section["regularize"] = ""
        if config.penalty == "dura":
            left_out.append(f"penalty: dura has no counterpart; its weight is {config.penalty_entity}")
    # sparse gradients: Adam does not support them, and losses over all entities have none
    section["sparse"] = config.training == "negative_sampling" and config.optimizer != "adam"
    return section


def _table_sections(config: TrainConfig) -> dict[str, Any]:
    """Return penalties and dropout of both tables; LibKGE counts the unweighted penalty of entities twice."""
    penalized = config.penalty not in ("none", "dura")
    entity = penalized * (config.penalty_entity if config.penalty_weighted else config.penalty_entity / 2)
    relation = penalized * config.penalty_relation
    section: dict[str, Any] = {
        "entity_embedder": {"dropout": config.dropout_entity, "regularize_weight": entity},
        "relation_embedder": {"dropout": config.dropout_relation, "regularize_weight": relation},
    }
    if config.model in ("transe", "rotate"):
        section["l_norm"] = float(config.norm)
    if config.model == "conve":
        section |= {"feature_map_dropout": config.dropout_features, "projection_dropout": config.dropout_query}
    return section


def _inverse(name: str) -> dict[str, str]:
    """Return LibKGE's value for each of ours; of several, the one listed first."""
    return {ours: theirs for theirs, ours in reversed(_VALUES[name].items())}
