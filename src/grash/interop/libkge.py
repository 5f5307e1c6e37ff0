"""A TrainConfig as a training of LibKGE (YAML for `kge start`). The way back is `search/libkge.py`."""

from __future__ import annotations

import math
from typing import Any

import yaml

from grash.interop.pykeen import no_counterpart
from grash.training.config import TrainConfig

_TRAINING = {"negative_sampling": "negative_sampling", "1vsall": "1vsAll", "kvsall": "KvsAll"}
_LOSSES = {"softmax": "kl", "bce": "bce", "margin": "margin_ranking", "self_adversarial": "bce_self_adversarial"}
_OPTIMIZERS = {"adagrad": "Adagrad", "row_adagrad": "Adagrad", "adam": "Adam", "lazy_adam": "SparseAdam", "sgd": "SGD"}
_POWERS = {"l1": 1, "l2": 2, "l3": 3}
# the catalog's names and those of LibKGE's data/download_all.sh, where both are the same files
_DATASETS = {
    **{name: name for name in ("fb15k", "fb15k-237", "wn18", "yago3-10", "dbpedia50", "dbpedia500", "db100k")},
    **{name: name for name in ("codex-s", "codex-m", "codex-l")},
    "wn18rr": "wnrr", "wikidata5m-v2": "wikidata5m",
}  # fmt: skip


def config_to_libkge(config: TrainConfig, dataset: str) -> tuple[str, list[str]]:
    """The YAML, which begins with what could not be carried over, and that list.

    dataset: a folder under LibKGE's data/. Random numbers are others there: results agree as those of two seeds do.
    """
    left_out: list[str] = []
    content: dict[str, Any] = {"job.type": "train", "dataset.name": dataset, "random_seed.default": config.seed}
    content |= _model(config)
    content["train"] = _train(config, left_out)
    if config.training == "negative_sampling":
        content["negative_sampling"] = _negatives(config, left_out)
    if config.training == "kvsall":
        content["KvsAll.label_smoothing"] = config.label_smoothing
    if config.loss == "self_adversarial":
        content["user.bce_self_adversarial_temperature"] = config.temperature
    content["lookup_embedder"] = _embedder(config, left_out)
    content[config.model] = _sides(config)
    content["valid"] = {
        "every": _whole("valid_every", config.valid_every, left_out),
        "metric": "mean_reciprocal_rank_filtered",
        "early_stopping.patience": config.patience or 0,
    }
    content["entity_ranking.tie_handling.type"] = "rounded_mean_rank"
    left_out += no_counterpart(config)
    head = "".join(f"# not carried over: {line}\n" for line in left_out)
    return head + yaml.safe_dump(content, sort_keys=False, allow_unicode=True), left_out


def libkge_dataset(graph: str, splits: str) -> tuple[str, str | None]:
    """LibKGE's name of a graph, or its own where LibKGE does not fetch it, and what is to be done about it.

    splits: how the graph's splits are written as text, a command or a call.
    """
    found = _DATASETS.get(graph.lower())
    if found is not None:
        return found, None
    return graph, (
        f"LibKGE reads {graph} from data/{graph}, a folder with dataset.yaml, train.del, valid.del, test.del, "
        f"entity_ids.del and relation_ids.del: `{splits}` writes train.txt, valid.txt and test.txt, and LibKGE's "
        f"data/preprocess/preprocess_default.py, run on the folder that holds these, makes the rest."
    )


def _model(config: TrainConfig) -> dict[str, Any]:
    if not config.reciprocal:
        return {"model": config.model}
    return {
        "model": "reciprocal_relations_model",
        "import": [config.model],
        "reciprocal_relations_model.base_model.type": config.model,
    }


def _train(config: TrainConfig, left_out: list[str]) -> dict[str, Any]:
    section: dict[str, Any] = {"type": _TRAINING[config.training], "loss": _LOSSES[config.loss]}
    if config.loss == "bce":
        section["loss_arg"] = config.offset
    elif config.loss in ("margin", "self_adversarial"):
        section["loss_arg"] = config.margin
    if config.loss == "self_adversarial":
        left_out.append("loss: half of ours there, with the same minimum; lr may need a change")
    if config.loss == "margin" and config.training == "1vsall":
        left_out.append("loss: LibKGE has no margin_ranking for 1vsAll and will refuse it")
    section["max_epochs"] = _whole("epochs", config.epochs, left_out)
    section["batch_size"] = config.batch_size
    kind = _OPTIMIZERS[config.optimizer]
    if kind == "SparseAdam" and config.training != "negative_sampling":
        left_out.append("optimizer: SparseAdam takes no gradients of all entities; Adam stands there")
        kind = "Adam"
    section["optimizer"] = {"default": {"type": kind, "args": {"lr": config.lr}}}
    if config.optimizer == "row_adagrad":
        left_out.append(
            "optimizer: row_adagrad has no counterpart; Adagrad stands there, whose lr needs to be found anew"
        )
    if config.schedule == "plateau":
        section["lr_scheduler"] = "ReduceLROnPlateau"
        section["lr_scheduler_args"] = {
            "mode": "max", "factor": config.schedule_factor, "patience": config.schedule_patience,
        }  # fmt: skip
    elif config.schedule == "cosine":
        section["lr_scheduler"] = "CosineAnnealingLR"
        section["lr_scheduler_args"] = {"T_max": section["max_epochs"]}
        left_out.append("schedule: the rate falls once per epoch, not in every step")
    elif config.schedule == "linear":
        left_out.append("schedule: linear has no counterpart; the rate stays constant")
    if config.warmup_epochs:
        section["lr_warmup"] = _whole("warmup_epochs", config.warmup_epochs, left_out)
    return section


def _negatives(config: TrainConfig, left_out: list[str]) -> dict[str, Any]:
    replacement = config.negatives_replacement
    if not config.negatives_shared and not replacement:
        left_out.append("negatives_replacement: LibKGE draws negatives of each positive's own with replacement")
        replacement = True
    return {
        "num_samples": {"s": config.negatives_head, "p": 0, "o": config.negatives_tail},
        "shared": config.negatives_shared,
        "with_replacement": replacement,
        "sampling_type": config.negatives_sampling,
        "filtering": {"s": config.negatives_filtered, "o": config.negatives_filtered},
        "implementation": "batch" if config.negatives_shared else "auto",
    }


def _embedder(config: TrainConfig, left_out: list[str]) -> dict[str, Any]:
    section: dict[str, Any] = {"dim": config.dim, "initialize": f"{config.init}_"}
    if config.init == "normal":
        section["initialize_args"] = {"normal_": {"mean": 0.0, "std": config.init_std}}
    elif config.init == "uniform":
        section["initialize_args"] = {"uniform_": {"a": config.init_low, "b": config.init_high}}
    if config.penalty in _POWERS:
        section["regularize"] = "lp"
        section["regularize_args"] = {"p": _POWERS[config.penalty], "weighted": config.penalty_weighted}
    elif config.penalty == "n3":
        section["regularize"] = "n3"
        section["regularize_args"] = {"weighted": config.penalty_weighted}
    else:
        section["regularize"] = ""
        if config.penalty == "dura":
            left_out.append(f"penalty: dura has no counterpart; its weight was {config.penalty_entity}")
    # gradients of touched rows alone: Adam refuses them, and losses over all entities have none
    section["sparse"] = config.training == "negative_sampling" and config.optimizer != "adam"
    return section


def _sides(config: TrainConfig) -> dict[str, Any]:
    """Weights and dropout of the two tables; LibKGE counts the entities' unweighted penalty twice."""
    weighed = config.penalty not in ("none", "dura")
    entity = config.penalty_entity if config.penalty_weighted else config.penalty_entity / 2
    section: dict[str, Any] = {
        "entity_embedder": {"dropout": config.dropout_entity, "regularize_weight": entity if weighed else 0.0},
        "relation_embedder": {
            "dropout": config.dropout_relation, "regularize_weight": config.penalty_relation if weighed else 0.0,
        },
    }  # fmt: skip
    if config.model in ("transe", "rotate"):
        section["l_norm"] = float(config.norm)
    return section


def _whole(name: str, value: float, left_out: list[str]) -> int:
    if value == int(value):
        return int(value)
    left_out.append(f"{name}: {value:g} became {math.ceil(value)}, since it must be whole")
    return math.ceil(value)
