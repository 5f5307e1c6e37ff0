"""The first process, which compiles the loops, and the second, which loads them, make the same bits (decision 0038)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from grash.data.load import load_dataset

STEPS = """
import hashlib
import sys
import numpy as np
import torch
from grash.data.dataset import Dataset
from grash.engines.trainer import TrainingData
from grash.training.config import make_config
from grash.training.initial import initial_model
from grash.training.loop import train_step
from grash.training.checkpoint import TrainState

torch.set_num_threads(1)
train, none = np.load(sys.argv[1]), np.empty((0, 3), np.int32)  # reading the text would compile other loops
data, cpu = Dataset(train, none, none, train[:, ::2].max() + 1, train[:, 1].max() + 1), torch.device("cpu")
for settings in (
    {"penalty": "n3", "penalty_entity": 0.1, "dropout_entity": 0.1, "reciprocal": True, "relation_prediction": 0.3},
    {"training": "1vsall", "optimizer": "adam"},
    {"model": "rotate", "loss": "self_adversarial", "margin": 6.0},
    {"model": "transe", "norm": 1},
):
    config = make_config({"dim": 70, "negatives_head": 150, "negatives_tail": 101, "batch_size": 256, **settings})
    with torch.no_grad():
        state = TrainState.fresh(initial_model(config, data.n_entities, data.n_relations), config)
        batches = TrainingData(data, cpu).batches(config)
        for _ in range(4):
            train_step(state, batches, config)
    tables = (state.model.entity, state.model.relation)
    print(settings, [hashlib.sha256(t.numpy().tobytes()).hexdigest() for t in tables])
"""


@pytest.mark.slow
def test_a_cold_and_a_warm_cache_of_compiled_loops_give_the_same_bits(tmp_path: Path) -> None:
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    np.save(tmp_path / "train.npy", load_dataset("world").train)
    command = [sys.executable, "-c", STEPS, str(tmp_path / "train.npy")]
    cold, warm = (subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout for _ in range(2))
    assert list((tmp_path / "cache").rglob("*.nbc")), "nothing was compiled"
    assert cold.count("\n") == 4 and cold == warm
