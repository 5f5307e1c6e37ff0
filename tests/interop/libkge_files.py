"""Search files as the GraSH authors published them: keys and values of their 39 files, written by these functions."""

from __future__ import annotations

from typing import Any

EPOCHS = {"yago3-10": 400, "wikidata5m": 64, "freebase": 10}
VALID_EVERY = {"yago3-10": 5, "wikidata5m": 4, "freebase": 1}
MODELS = ("complex", "rotate", "transe")


def published_search(
    model: str, dataset: str, variant: str = "combined", eta: int = 4, budget: int = 3
) -> dict[str, Any]:
    """The content of search-MODEL-DATASET-VARIANT.yaml."""
    freebase = dataset == "freebase"
    split = "valid_tiny" if freebase else "valid"
    content: dict[str, Any] = {"import": ["distributed_model"]} if freebase else {}
    devices = [f"cuda:{i}" for i in range(4)]
    content |= {
        "dataset": {"name": dataset, "pickle": False},
        "entity_ranking": {
            "chunk_size": 50000,
            "class_name": "EntityRankingJob",
            "filter_splits": ["train", "valid"],
            "filter_with_test": True,
            "metrics_per": {"head_and_tail": True, "relation_type": False},
        },
        "eval": {"batch_size": 50 if freebase else 128, "num_workers": 0, "split": split, "type": "entity_ranking"},
        "grash_search": {
            "class_name": "GraSHSearchJob",
            "cost_metric": "triples",
            "eta": eta,
            "keep_initialization": not freebase,
            "keep_pretrained": False,
            "min_negatives_percentage": 0.01,
            "num_trials": 64,
            "parameters": parameters(model),
            "search_budget": budget,
            "seed": 2,
            "variant": variant,
            **({"distributed_worker_per_round": {"3": 8}} if freebase else {}),
        },
        "job": {"auto_correct": True, "device": "cuda", "type": "search"},
        "lookup_embedder": {
            "class_name": "LookupEmbedder",
            "dim": 128,
            "initialize_args": {
                "normal_": {"mean": 0.0},
                "xavier_normal_": {"gain": 1.0},
                "xavier_uniform_": {"gain": 1.0},
            },
            "regularize_args": {"weighted": True, "p": 2},
            "sparse": True,
        },
        "model": model,
        "negative_sampling": {
            "class_name": "TrainingJobNegativeSampling",
            "filtering": {"implementation": "fast_if_available", "o": False, "p": False, "s": False, "split": ""},
            "frequency": {"smoothing": 1},
            "implementation": "batch",
            "num_samples": {"o": -1, "p": 0, "s": 3},
            "sampling_type": "uniform",
            "shared": True,
            "with_replacement": False,
        },
        "random_seed": {"numpy": 0, "python": 0, "torch": 0},
        "search": {"device_pool": devices, "num_workers": 4, "on_error": "abort", "type": "grash_search"},
        "train": {
            "abort_on_nan": True,
            "batch_size": 1024,
            "checkpoint": {"every": 0, "keep": 0},
            "loss": "kl",
            "loss_arg": 1.0,
            "lr_scheduler": "",
            "max_epochs": EPOCHS[dataset],
            "num_workers": 4 if freebase else 0,
            "optimizer": "RowAdagrad" if freebase else "Adagrad",
            "pin_memory": False,
            "split": "train",
            "trace_level": "epoch",
            "type": "negative_sampling",
            "visualize_graph": False,
        },
        "valid": {
            "early_stopping": {"patience": 0 if freebase else 50, "threshold": {"epochs": 10, "metric_value": 0.05}},
            "every": VALID_EVERY[dataset],
            "metric": "mean_reciprocal_rank_filtered",
            "metric_expr": 'float("nan")',
            "split": split,
            "trace_level": "epoch",
        },
    }
    return content


def parameters(model: str) -> list[dict[str, Any]]:
    """The eleven searched parameters, in the order and wording of the files."""
    init, cap = "lookup_embedder.initialize", 10000 if model == "complex" else 1000
    found: list[dict[str, Any]] = [
        {"bounds": [0.0003, 1.0], "log_scale": True, "name": "train.optimizer_args.lr", "type": "range"},
        {"name": init, "type": "choice", "values": ["xavier_normal_", "xavier_uniform_", "normal_", "uniform_"]},
        {"bounds": [1e-05, 1.0], "log_scale": True, "name": f"{init}_args.normal_.std", "type": "range"},
        {"bounds": [-1.0, -1e-05], "name": f"{init}_args.uniform_.a", "type": "range"},
        {"is_ordered": True, "name": "lookup_embedder.regularize", "type": "choice", "values": ["", "l3", "l2", "l1"]},
    ]
    for side in ("entity", "relation"):
        key = f"{model}.{side}_embedder.regularize_weight"
        found.append({"bounds": [1e-20, 0.1], "log_scale": True, "name": key, "type": "range"})
    for side in ("entity", "relation"):
        found.append({"bounds": [-0.5, 0.5], "name": f"{model}.{side}_embedder.dropout", "type": "range"})
    for side in ("s", "o"):
        key = f"negative_sampling.num_samples.{side}"
        found.append({"bounds": [1, cap], "log_scale": False, "name": key, "type": "range"})
    return found


def selected_trial() -> dict[str, Any]:
    """A published winner, trained with several workers: RotatE on Freebase."""
    uniform = {"a": -3.14159265359, "b": 3.14159265359}
    return {
        "dataset": {"name": "freebase"},
        "distributed_model": {"base_model": {"type": "rotate"}},
        "import": ["rotate", "distributed_model"],
        "job": {"type": "train", "distributed": {"num_workers": 8}},
        "lookup_embedder": {
            "dim": 128,
            "dropout": 0.0,
            "initialize": "normal_",
            "initialize_args": {
                "normal_": {"mean": 0.0, "std": 0.01048932117101729},
                "uniform_": {"a": -0.9923825803674324},
            },
            "normalize": {"p": -1.0},
            "regularize": "lp",
            "regularize_args": {"p": 2, "weighted": True},
            "regularize_weight": 0.0,
        },
        "model": "distributed_model",
        "negative_sampling": {
            "num_samples": {"o": 377, "p": 0, "s": 811},
            "sampling_type": "uniform",
            "shared": True,
            "with_replacement": False,
        },
        "rotate": {
            "entity_embedder": {"dropout": -0.492707877367642, "regularize_weight": 2.851117109269539e-12},
            "l_norm": 1.0,
            "relation_embedder": {
                "dim": -1,
                "dropout": -0.2510582272901898,
                "initialize": "uniform_",
                "initialize_args": {"uniform_": uniform},
                "regularize_weight": 1.5702862966016602e-07,
            },
        },
        "train": {
            "batch_size": 1024,
            "loss": "kl",
            "loss_arg": 1.0,
            "max_epochs": 10,
            "optimizer": {"default": {"args": {"lr": 0.06499562081250351}, "type": "dist_rowadagrad"}},
            "type": "distributed_negative_sampling",
        },
        "valid": {"early_stopping": {"patience": 0}, "every": 1},
    }
