"""Translate a TrainConfig into a pipeline of PyKEEN 1.11 (JSON for `pykeen.pipeline.pipeline_from_config`)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from grash import __version__
from grash.errors import ConfigError, InputError
from grash.training.config import TrainConfig

_MODELS = {
    "complex": "ComplEx", "cp": "CP", "distmult": "DistMult",
    "rescal": "RESCAL", "rotate": "RotatE", "transe": "TransE",
}  # fmt: skip
_HALVED = ("complex", "cp", "rotate")  # a row of D floats is D/2 complex numbers, or two roles
_OPTIMIZERS = {"adagrad": "Adagrad", "row_adagrad": "Adagrad", "adam": "Adam", "lazy_adam": "Adam", "sgd": "SGD"}
_LOSSES = {"softmax": "crossentropy", "bce": "bcewithlogits", "margin": "marginranking", "self_adversarial": "nssa"}
_POWERS = {"l1": 1.0, "l2": 2.0, "l3": 3.0, "n3": 3.0}
_SPLITS = {"training": "train.txt", "validation": "valid.txt", "testing": "test.txt"}
_SAME_NAMES = (
    "fb15k-237", "wn18rr", "fb15k", "wn18", "yago3-10", "wikidata5m", "dbpedia50", "db100k", "aristo-v4", "nations",
    "umls", "hetionet", "drkg", "primekg",
)  # fmt: skip
_DATASETS = {  # names in the catalog and in PyKEEN, whose resolver ignores case and hyphens
    **{name: name for name in _SAME_NAMES},
    "codex-s": "CoDExSmall", "codex-m": "CoDExMedium", "codex-l": "CoDExLarge", "kinship": "Kinships",
    "ogbl-wikikg2": "OGBWikiKG2", "ogbl-biokg": "OGBBioKG",
}  # fmt: skip
_SPLIT_THERE = ("hetionet", "drkg", "primekg")  # published as one file, which PyKEEN splits at random


def config_to_pykeen(config: TrainConfig, dataset: str) -> tuple[dict[str, Any], list[str]]:
    """Return the configuration of the pipeline, whose metadata list what has no counterpart, and that list.

    dataset: a name that PyKEEN knows, or a folder with train.txt, valid.txt and test.txt (three columns, tabs), whose
    absolute paths are written.
    """
    if config.model not in _MODELS:
        raise ConfigError(
            f"model={config.model} cannot be exported as a configuration of PyKEEN, only {', '.join(_MODELS)} can: "
            f"export its embeddings (npy, word2vec or parquet)."
        )
    left_out: list[str] = []
    pipeline = _graph(config, dataset)
    pipeline |= {"model": _MODELS[config.model], "model_kwargs": _model(config, left_out)}
    pipeline |= _loss(config, left_out)
    pipeline |= _optimizer(config, left_out)
    pipeline |= _training(config, left_out)
    pipeline |= _stopper(config, left_out)
    pipeline |= {"evaluator": "rankbased", "evaluator_kwargs": {"filtered": True}, "random_seed": config.seed}
    left_out += without_counterpart(config)
    metadata = {"title": f"{_MODELS[config.model]}, exported by grash {__version__}", "not_carried_over": left_out}
    return {"metadata": metadata, "pipeline": pipeline}, left_out


def pykeen_dataset(graph: str, splits: str) -> tuple[str, str | None]:
    """Return PyKEEN's name of a graph, or its own name and what to do if PyKEEN does not have it.

    splits: the command or call that writes the graph's splits as text.
    """
    found = _DATASETS.get(graph.lower())
    advice = f"`{splits}` writes its splits, and --dataset (dataset=) takes that folder."
    if found is None:
        return graph, f"PyKEEN has no dataset {graph}: {advice}"
    return found, f"PyKEEN makes other splits of {graph}: {advice}" if found in _SPLIT_THERE else None


def without_counterpart(config: TrainConfig) -> list[str]:
    """Return a line for each setting in use that neither PyKEEN nor LibKGE has."""
    lines = []
    if config.relation_prediction:
        lines.append(f"relation_prediction: {config.relation_prediction} has no counterpart")
    if config.precision == "tf32":  # bf16 is our default, float32 is torch's
        lines.append(f"precision: {config.precision} has no counterpart; torch's default is used")
    if config.storage != "float32":
        lines.append(f"storage: {config.storage} has no counterpart; entities are stored in float32")
    return lines


def whole(name: str, value: float, tool: str, left_out: list[str]) -> int:
    """Return the value as a whole number, rounded up; add a line if that changes it."""
    if value != math.ceil(value):
        left_out.append(f"{name}: {value:g} is rounded up to {math.ceil(value)}, since {tool} needs a whole number")
    return math.ceil(value)


def _graph(config: TrainConfig, dataset: str) -> dict[str, Any]:
    found: dict[str, Any] = {"dataset": _DATASETS.get(dataset, dataset)}
    if "/" in dataset and not Path(dataset).is_dir():
        raise InputError(f"There is no folder {dataset}: give a folder of splits, or the name of a dataset of PyKEEN.")
    if Path(dataset).is_dir():
        files = {split: Path(dataset).resolve() / name for split, name in _SPLITS.items()}  # read from any folder
        for path in files.values():
            if not path.is_file():
                raise InputError(f"{path} is missing, which PyKEEN reads (three columns, tabs): give a folder with it.")
        found = {split: str(path) for split, path in files.items()}
    return {**found, "dataset_kwargs": {"create_inverse_triples": config.reciprocal}}


def _model(config: TrainConfig, left_out: list[str]) -> dict[str, Any]:
    kwargs: dict[str, Any] = {"embedding_dim": config.dim // 2 if config.model in _HALVED else config.dim}
    if config.model == "cp":
        kwargs["rank"] = 1
    elif config.model == "transe":
        kwargs |= {"scoring_fct_norm": config.norm, "entity_constrainer": None}
    elif config.model == "distmult":
        kwargs["entity_constrainer"] = None
    elif config.model == "rotate" and config.norm == 1:
        left_out.append("norm: PyKEEN's RotatE always uses norm 2 of the whole difference")
    own: dict[str, dict[str, Any]] = {"entity": {}, "relation": {}}  # per table; only DistMult has them
    kwargs |= _initial(config, own, left_out)
    kwargs |= _penalty(config, own, left_out)
    if config.model == "distmult":
        own["entity"]["dropout"], own["relation"]["dropout"] = config.dropout_entity, config.dropout_relation
        return kwargs | {f"{side}_representations_kwargs": found for side, found in own.items()}
    if config.dropout_entity or config.dropout_relation:
        given = f"entities {config.dropout_entity:g}, relations {config.dropout_relation:g}"
        left_out.append(f"dropout: {_MODELS[config.model]} has none ({given})")
    return kwargs


def _initial(config: TrainConfig, own: dict[str, dict[str, Any]], left_out: list[str]) -> dict[str, Any]:
    """Return initializers. Only CP and DistMult accept one with numbers; others get xavier of the same shape."""
    init, numbers = str(config.init), dict[str, float]()
    if config.init == "normal":
        numbers = {"mean": 0.0, "std": config.init_std}
    elif config.init == "uniform":
        numbers = {"a": config.init_low, "b": config.init_high}
    sides = ["entity"] if config.model == "rotate" else ["entity", "relation"]
    if numbers and config.model == "distmult":
        for side in sides:
            own[side] |= {"initializer": init, "initializer_kwargs": numbers}
        return {}
    if numbers and config.model == "cp":
        return {f"{s}_initializer": init for s in sides} | {f"{s}_initializer_kwargs": numbers for s in sides}
    if numbers:
        init = f"xavier_{config.init}"
        given = ", ".join(f"{name} {value:g}" for name, value in numbers.items())
        left_out.append(f"init: {config.init} ({given}) is not possible for {_MODELS[config.model]}; {init} is used")
    elif config.model in ("complex", "rotate"):
        complex_parts = "counts real and imaginary parts in PyKEEN, so initial values are smaller, by up to √2"
        left_out.append(f"init: {init} {complex_parts}")
    if config.model == "rescal" and init.startswith("xavier"):
        left_out.append(f"init: {init} treats a relation as a matrix in PyKEEN, and as a row of a table here")
    return {f"{side}_initializer": init for side in sides}


def _penalty(config: TrainConfig, own: dict[str, dict[str, Any]], left_out: list[str]) -> dict[str, Any]:
    """Return regularizers: (w/p)·Σ|x|^p per positive is `powersum` with weight w/p. Others have no counterpart."""
    weights = {"entity": config.penalty_entity, "relation": config.penalty_relation}
    # with empty kwargs, ComplEx uses its default penalty
    off: dict[str, Any] = {} if config.model == "cp" else {"regularizer": "no", "regularizer_kwargs": {"weight": 0.0}}
    if config.penalty == "none" or not any(weights.values()):
        return off
    given = f"entities {config.penalty_entity:g}, relations {config.penalty_relation:g}"
    if config.penalty == "dura" or not config.penalty_weighted or config.model == "cp":
        kind = config.penalty if config.penalty_weighted else f"unweighted {config.penalty}"
        left_out.append(f"penalty: {kind} ({given}) is not possible for {_MODELS[config.model]}; none is used")
        return off
    power = _POWERS[config.penalty]
    left_out.append("penalty: PyKEEN penalizes the rows of negatives too")
    if config.model == "complex" and config.penalty != "n3":
        left_out.append(f"penalty: {config.penalty} uses complex moduli in PyKEEN, and single floats here")
    kwargs = {s: {"weight": w / power, "p": power, "normalize": False} for s, w in weights.items()}
    if config.model == "distmult":
        for side, side_kwargs in kwargs.items():
            own[side] |= {"regularizer": "powersum", "regularizer_kwargs": side_kwargs}
        return {}
    if config.model == "rotate" and config.penalty_relation:
        left_out.append(f"penalty_relation: {config.penalty_relation:g}; RotatE's regularizer has only entities")
    elif config.model != "rotate" and config.penalty_entity != config.penalty_relation:
        one = "PyKEEN has one weight for both tables, that of entities is used"
        left_out.append(f"penalty_relation: {config.penalty_relation:g}; {one}")
    return {"regularizer": "powersum", "regularizer_kwargs": kwargs["entity"]}


def _loss(config: TrainConfig, left_out: list[str]) -> dict[str, Any]:
    kwargs: dict[str, Any] = {"reduction": "mean"}
    if config.loss in ("margin", "self_adversarial"):
        kwargs["margin"] = config.margin
    if config.loss == "self_adversarial":
        kwargs["adversarial_temperature"] = config.temperature
    if config.loss == "bce" and config.offset:
        left_out.append(f"offset: {config.offset:g} has no counterpart")
    if config.loss != "softmax":
        sums = "PyKEEN averages over all scores, here those of a positive are added up; lr may need a change"
        left_out.append(f"loss: {sums}")
    return {"loss": _LOSSES[config.loss], "loss_kwargs": kwargs}


def _optimizer(config: TrainConfig, left_out: list[str]) -> dict[str, Any]:
    if config.optimizer in ("row_adagrad", "lazy_adam"):
        left_out.append(f"optimizer: {config.optimizer} has no counterpart; {_OPTIMIZERS[config.optimizer]} is used")
    found: dict[str, Any] = {"optimizer": _OPTIMIZERS[config.optimizer], "optimizer_kwargs": {"lr": config.lr}}
    epochs = math.ceil(config.epochs)
    if config.schedule == "cosine":
        found |= {"lr_scheduler": "CosineAnnealingLR", "lr_scheduler_kwargs": {"T_max": epochs}}
    elif config.schedule == "linear":
        ends = {"start_factor": 1.0, "end_factor": 0.0, "total_iters": epochs}
        found |= {"lr_scheduler": "LinearLR", "lr_scheduler_kwargs": ends}
    elif config.schedule == "plateau":
        left_out.append("schedule: plateau does not work in PyKEEN (1.11); the learning rate is constant")
    if config.schedule in ("cosine", "linear"):
        left_out.append("schedule: the learning rate changes once per epoch, not in every step")
    if config.warmup_epochs:
        left_out.append(f"warmup_epochs: {config.warmup_epochs:g} has no counterpart")
    return found


def _training(config: TrainConfig, left_out: list[str]) -> dict[str, Any]:
    epochs = whole("epochs", config.epochs, "PyKEEN", left_out)
    kwargs: dict[str, Any] = {"num_epochs": epochs, "batch_size": config.batch_size}
    if config.training == "1vsall":
        return {"training_loop": "symmetriclcwa", "training_kwargs": kwargs}
    if config.training == "kvsall":
        if config.label_smoothing:
            kwargs["label_smoothing"] = config.label_smoothing
            left_out.append("label_smoothing: PyKEEN distributes what it subtracts from the labels; here 1/E is added")
        if not config.reciprocal:
            left_out.append("training: without reciprocal relations, PyKEEN trains on tails only")
        return {"training_loop": "LCWA", "training_kwargs": kwargs}
    return {"training_loop": "sLCWA", "training_kwargs": kwargs, **_negatives(config, left_out)}


def _negatives(config: TrainConfig, left_out: list[str]) -> dict[str, Any]:
    counts = {"head": config.negatives_head, "tail": config.negatives_tail}
    count, sides = max(counts.values()), [side for side, n in counts.items() if n]
    if len(sides) == 2:
        here = f"here it is {counts['head']} heads and {counts['tail']} tails"
        left_out.append(f"negatives: PyKEEN draws {count} for a random side of each positive; {here}")
    if config.negatives_shared:
        left_out.append("negatives_shared: in PyKEEN each positive has its own, which takes more memory and time")
    if not config.negatives_replacement:
        left_out.append("negatives_replacement: PyKEEN draws with replacement")
    if config.negatives_sampling != "uniform":
        left_out.append(f"negatives_sampling: {config.negatives_sampling} has no counterpart; uniform is used")
    if not config.negatives_filtered:
        left_out.append("negatives: PyKEEN can draw the true answer as a negative")
    kwargs = {"num_negs_per_pos": count, "corruption_scheme": sides, "filtered": config.negatives_filtered}
    return {"negative_sampler": "basic", "negative_sampler_kwargs": kwargs}


def _stopper(config: TrainConfig, left_out: list[str]) -> dict[str, Any]:
    if config.patience is None:
        left_out.append("patience: without it, PyKEEN keeps the last weights, not those of the best validation")
        return {}
    every = max(1, round(config.valid_every))
    if every != config.valid_every:
        left_out.append(f"valid_every: {config.valid_every:g} is rounded to {every}, since PyKEEN needs a whole number")
    kwargs = {"frequency": every, "patience": config.patience, "relative_delta": 0.0, "metric": "mean_reciprocal_rank"}
    return {"stopper": "early", "stopper_kwargs": kwargs}
