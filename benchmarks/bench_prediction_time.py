"""Time a question by model and dimension, as `max_prediction_ms` measures it, and a question to a trained model.

python benchmarks/bench_prediction_time.py CoDEx-S        # a table; run it on an idle machine
OMP_NUM_THREADS=1 python benchmarks/bench_prediction_time.py CoDEx-S --cpu-time    # on a busy one
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import numpy as np
import torch

import grash
from grash.data.dataset import Dataset
from grash.engines.memory import choose_device
from grash.engines.prediction_time import probe_prediction
from grash.training.config import make_config

MODELS = ("complex", "transe", "rotate", "rescal")
DIMS = (8, 16, 32, 64, 128, 256, 512)
SIZES = ((2_034, 42), (14_541, 237), (105_132, 68))  # entities and relations of CoDEx-S, FB15k-237 and DebianKG-10


def probed(device: torch.device) -> None:
    """Print the milliseconds of a question by model and dimension, three measurements of each."""
    none = np.empty((0, 3), np.int32)
    for n_entities, n_relations in SIZES:
        dataset = Dataset(none, none, none, n_entities, n_relations)
        for model in MODELS:
            cells = []
            for dim in DIMS if model != "rescal" else DIMS[:-1]:
                config = make_config({"model": model, "dim": dim})
                found = sorted(probe_prediction(config, dataset, device) for _ in range(3))
                cells.append(f"{dim}: {found[1]:.2f} ({found[0]:.2f} to {found[2]:.2f})")
            print(f"{n_entities:,} entities, {model}: {', '.join(cells)}", flush=True)


def trained(source: str, device: torch.device) -> None:
    """Print the milliseconds of Model.predict after a short training, beside what was probed for its dimension."""
    for name, dim in (("complex", 128), ("complex", 512), ("transe", 128), ("transe", 512)):
        model = grash.train(source, model=name, dim=dim, epochs=2, device=str(device), seed=0)
        dataset = model.dataset
        model.triple_index = None
        seconds = []
        for head, relation, _ in dataset.test[:200].tolist():
            began = time.perf_counter()
            model.predict(head=dataset.entities.name(head), relation=dataset.relations.name(relation), k=10)
            seconds.append(time.perf_counter() - began)
        probe = probe_prediction(model.config, dataset, device)
        print(f"{name}, dim {dim}: Model.predict {1000 * median(seconds):.2f} ms, probed {probe:.2f} ms", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", nargs="?")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cpu-time", action="store_true", help="count the time of this process without waiting")
    given = parser.parse_args()
    if given.cpu_time:
        time.perf_counter = time.process_time
    device = choose_device(given.device)
    print(f"{torch.get_num_threads()} threads, {device}")
    probed(device)
    if given.source is not None:
        trained(given.source, device)
