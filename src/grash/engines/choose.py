"""Choose the engine of a search from the devices of this machine and the user's settings."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import count, islice, takewhile
from pathlib import Path
from typing import Any

import torch

from grash.data.dataset import Dataset
from grash.engines.local import LocalEngine, TrialRunner
from grash.engines.memory import USABLE_SHARE, choose_device, fits, plan_memory, total_bytes
from grash.engines.processes import ProcessEngine
from grash.engines.ray import TRIALS_PER_GPU, RayEngine, check_ray
from grash.errors import ConfigError
from grash.formatting import format_bytes
from grash.kernels.device import Card, card_of, n_cores
from grash.models import MODELS, import_path, model_class, own_models
from grash.search.graphs import SearchGraphs
from grash.search.named_spaces import ONE_VS_ALL_ENTITIES
from grash.search.proposals import full_training
from grash.search.settings import SearchSettings
from grash.search.trial import Engine
from grash.training.config import TrainConfig, make_config
from grash.training.fused import why_not, work_bytes

ONE_VS_ALL_SECONDS = 120.0  # of a full training: a search with its final training costs about four
_FLOPS_PER_MULTIPROCESSOR = 1.5e12  # of bf16 products in a step; an H200 reaches more
ENGINES = ("auto", "sequential", "processes", "stacked", "ray")


def choose_engine(
    name: str,
    graphs: SearchGraphs,
    folder: Path,
    *,
    device: str = "auto",
    workers: int | None = None,
    timeout: float | None = None,
    address: str | None = None,
) -> Engine:
    """Return the engine: `sequential` and `stacked` run in this process, `processes` in workers, `ray` on the cluster
    at the address. `auto` is stacked on one GPU, and processes if there is room for several workers.

    device: auto, or names separated by commas (cuda:0,cuda:1). workers: their number on all devices.
    """
    settings, models = graphs.settings, graphs.settings.models
    threads, end_threads = settings.threads, settings.threads_of(to_the_end=True)
    devices = check_engine(name, device, workers, threads=threads, models=models, address=address)
    if name == "ray":
        return RayEngine(
            folder, address=address, device=device, threads=threads, end_threads=end_threads,
            final_threads=settings.threads_of(final=True), workers=workers, timeout=timeout,
        )  # fmt: skip
    name = _resolve(name, devices, workers)
    if name == "stacked" and len(set(devices)) > 1:
        raise ConfigError(
            f"engine=stacked uses one device, but {', '.join(sorted(set(devices)))} were given: name one."
        )
    if name == "processes":
        paths = [path for model in own_models(models) if (path := import_path(model)) is not None]
        return ProcessEngine(folder, devices, timeout=timeout, models=paths)
    return LocalEngine(TrialRunner(graphs, folder, device=devices[0], timeout=timeout), stacked=name == "stacked")


def trials_at_once(name: str, device: str, workers: int | None, *, threads: int, models: Sequence[str] = ()) -> int:
    """Return how many trials run at the same time; a stack, and a cluster of unknown size, count as one."""
    if name == "ray":
        return workers or 1
    devices = check_engine(name, device, workers, threads=threads, models=models)
    return len(devices) if _resolve(name, devices, workers) == "processes" else 1


def _resolve(name: str, devices: list[str], workers: int | None) -> str:
    """Return the engine that `auto` is."""
    if name != "auto":
        return name
    one_gpu = len(set(devices)) == 1 and devices[0] != "cpu" and workers is None
    return "stacked" if one_gpu else "sequential" if len(devices) == 1 else "processes"


def check_engine(
    name: str,
    device: str,
    workers: int | None,
    *,
    threads: int,
    models: Sequence[str] = (),
    address: str | None = None,
) -> list[str]:
    """Return the device of every worker (none for `ray`, which chooses them), or raise ConfigError.

    models: of the search. If a worker cannot import one of them, `auto` has one device: that of this process.
    """
    if name not in ENGINES:
        raise ConfigError(f"engine={name!r} is unknown: give {', '.join(ENGINES)}.")
    here = only_in_this_process(models) if name != "ray" else own_models(models)
    if here and (name in ("processes", "ray") or (name == "auto" and (workers or 1) > 1)):
        asked = f"engine={name!r}" if name != "auto" else f"workers={workers}"
        remedy = "" if name == "ray" else "Put its class into a module that this script imports, or leave"
        raise ConfigError(
            f"{asked} runs trials in other processes, which do not have the model {here[0]!r}. "
            f"{remedy or 'Leave'} out {asked}."
        )
    if name == "ray":
        check_ray(device, workers, address)
        return []
    if address is not None:
        raise ConfigError(f"address={address!r} is the address of a Ray cluster: give engine='ray', not {name!r}.")
    devices = worker_devices(device, workers, threads=threads)
    return devices[:1] if here and name == "auto" else devices


def only_in_this_process(models: Sequence[str]) -> list[str]:
    """Return the models of a search that worker processes cannot import."""
    return [model for model in own_models(models) if import_path(model) is None]


def fitting_models(dataset: Dataset, values: Mapping[str, Any], device: str) -> tuple[str, ...]:
    """Return the models that can be trained on this graph: the tables fit into memory, the dimension fits the model.

    values: settings of the training, such as its dimension.
    """
    on, fitting = choose_device(device), []
    for name in MODELS:
        try:
            config = make_config({**values, "model": name})
        except ConfigError:  # e.g. an odd dimension of complex numbers
            continue
        sizes = (dataset.n_entities, dataset.n_relations, len(dataset.train))
        if fits(plan_memory([config], *sizes, on, n_valid=len(dataset.valid)), on):
            fitting.append(name)
    if not fitting:
        raise ConfigError("model=auto: no model fits into memory with these settings. Give a smaller dim, or a model.")
    return tuple(fitting)


def affords_one_vs_all(settings: SearchSettings, dataset: Dataset, device: str) -> bool:
    """Return whether comparing with all entities of a graph beyond ONE_VS_ALL_ENTITIES is affordable on this GPU.

    It is if the fused step covers it, one training fits into the memory, and a full training is estimated to take at
    most ONE_VS_ALL_SECONDS. Both follow from sizes and the GPU alone, so the same machine always decides the same.
    """
    models = [model for model in settings.models if model in ("complex", "distmult")]
    if dataset.n_entities <= ONE_VS_ALL_ENTITIES or settings.space not in ("default", "wide") or not models:
        return False
    on = choose_device(device.split(",")[0].strip() or "auto")
    config = full_training(settings, models[0], {"training": "1vsall", "reciprocal": True}, number=0)
    if on.type != "cuda" or why_not(config, on):
        return False
    tables = 2 * 4 * (dataset.n_entities + 2 * dataset.n_relations) * config.dim  # rows and Adagrad's sums
    needed = tables + work_bytes([config], dataset.n_entities, dataset.n_relations, on)
    seconds = one_vs_all_seconds(config, dataset.n_entities, len(dataset.train), card_of(on))
    return needed <= USABLE_SHARE * total_bytes(on) and seconds <= ONE_VS_ALL_SECONDS


def one_vs_all_seconds(config: TrainConfig, n_entities: int, n_train: int, card: Card) -> float:
    """Return the estimated seconds of a full training: both sides of every triple are scored with all entities, and
    both gradients need as many products."""
    flops = 12.0 * n_train * config.epochs * n_entities * config.dim
    return flops / (_FLOPS_PER_MULTIPROCESSOR * card.multiprocessors)


def largest_dims(dataset: Dataset, models: Sequence[str], n_bytes: float) -> dict[str, int]:
    """Return for each model the largest dimension, a multiple of 8, whose float32 tables have at most this size.

    Relations have a reciprocal each, as any configuration may.
    """
    found = {}
    for name in models:
        width = model_class(name).relation_width
        sizes = (4 * (dataset.n_entities * dim + 2 * dataset.n_relations * width(dim)) for dim in count(8, 8))
        found[name] = 8 * sum(1 for _ in takewhile(lambda size: size <= n_bytes, islice(sizes, 125_000)))
        if not found[name]:
            least = format_bytes(4 * (8 * dataset.n_entities + 2 * dataset.n_relations * width(8)))
            raise ConfigError(
                f"max_model_size={format_bytes(n_bytes)} is too small: {name} takes {least} at dimension 8. Give more."
            )
    return found


def worker_devices(device: str, workers: int | None, *, threads: int) -> list[str]:
    """Return the device of every worker."""
    if workers is not None and workers < 1:
        raise ConfigError(f"workers={workers}: give 1 or more.")
    if device == "auto":
        names = [f"cuda:{i}" for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else ["cpu"]
    else:
        names = [str(choose_device(part.strip())) for part in device.split(",") if part.strip()]
    if not names:
        raise ConfigError(f"device={device!r} names no device: give auto, cpu or cuda:0,cuda:1, …")
    if names == ["cpu"]:
        per_device = max(1, n_cores() // threads)
    else:
        per_device = TRIALS_PER_GPU if _mps_runs() else 1
    return [names[i % len(names)] for i in range(workers or per_device * len(names))]


def _mps_runs() -> bool:
    return (Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")) / "control").exists()
