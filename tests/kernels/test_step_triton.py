"""The fused step's Triton kernels against the plain path, through Triton's interpreter where Triton is installed."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import pytest

COMPARE = """
import json, sys
import numpy as np, torch
import triton.runtime.interpreter as interpreter

patch = interpreter._patch_lang_tensor
def patched(tensor, scope):  # Triton 3.6 turns arrays of one element into integers, which numpy 2.4 no longer does
    patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))
interpreter._patch_lang_tensor = patched

from grash.training.batches import Batches
from grash.training.config import TrainConfig
from grash.training.fused import FusedSteps
from grash.training.initial import initial_model
from grash.training.loop import train_step
from grash.training.state import TrainState

settings = json.loads(sys.argv[1])
E, R, n = 23, settings.pop("n_relations", 3), 70
rng = np.random.default_rng(0)
train = np.stack([rng.integers(0, m, n) for m in (E, R, E)], 1).astype(np.int32)
config = TrainConfig(dim=10, batch_size=50, init="normal", init_std=0.3, lr=0.05, epochs=10, **settings)
batches = Batches(train, E, R, config, torch.device("cpu"))
plain, fused = (TrainState.fresh(initial_model(config, E, R), config) for _ in range(2))
steps = FusedSteps([fused], batches, [config])
for _ in range(2):  # the second batch is cut short
    steps.advance(fused.step + 1)
    train_step(plain, batches, config)
assert torch.allclose(torch.stack(fused.unread), torch.stack(plain.unread), rtol=1e-5)
for name in ("entity", "relation"):
    assert torch.allclose(getattr(fused.model, name), getattr(plain.model, name), rtol=1e-4, atol=1e-6), name
    mine, theirs = (getattr(s, name + "_optimizer").state["squares"] for s in (fused, plain))
    assert torch.allclose(mine, theirs, rtol=1e-4, atol=1e-9), name
"""
CASES: dict[str, dict[str, object]] = {
    "complex": {"reciprocal": True, "negatives_head": 40, "negatives_tail": 9, "dropout_entity": 0.2,
                "penalty": "n3", "penalty_entity": 0.1},
    "transe": {"model": "transe", "negatives_head": 7, "negatives_tail": 12, "optimizer": "row_adagrad",
               "n_relations": 150, "penalty": "l1", "penalty_relation": 0.1},
    "rotate": {"model": "rotate", "negatives_head": 1, "negatives_tail": 23, "dropout_relation": 0.2},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("case", CASES)
def test_the_fused_step_equals_the_plain_one(case):
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", COMPARE, json.dumps(CASES[case])], check=True, env=environment)
