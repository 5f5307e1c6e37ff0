"""The fused stack through Triton's interpreter: a trial that diverges leaves, its neighbor takes its place."""

from __future__ import annotations

import pytest

from triton_interpreter import interpret, needs_triton

LEAVE = """
import numpy as np, torch
from grash.kernels import step_draw_triton as drawing, step_update_triton as updating
from grash.training.batches import Batches
from grash.training.config import TrainConfig
from grash.training.fused import FusedSteps
from grash.training.initial import initial_model
from grash.training.loop import train_stack
from grash.training.loop import Training
from grash.training.fused import stack_states
from grash.training.checkpoint import TrainState, state_tensors

# the interpreter takes its time by the program
drawing.ROWS, drawing.DRAWN, updating.ROWS, updating.LINES = 64, 128, 128, 32
E, R, n = 23, 3, 40
rng = np.random.default_rng(0)
triples = np.stack([rng.integers(0, m, n) for m in (E, R, E)], 1).astype(np.int32)
calm = TrainConfig(dim=4, batch_size=40, init="normal", init_std=0.3, lr=0.05, epochs=3, valid_every=2,
                   negatives_head=7, negatives_tail=9, patience=None, schedule="cosine", storage=storage)
wild = calm.changed(variation=1, lr=1e25, negatives_head=20, dropout_entity=0.2, schedule="constant")

def run(*configs):
    states = stack_states((TrainState.fresh(initial_model(c, E, R), c) for c in configs), n=len(configs))
    def fused(live):
        return FusedSteps([t.state for t in live], live[0].batches, [t.config for t in live])
    trainings = [Training(c).started(s, Batches(triples, E, R, c, torch.device("cpu")), lambda model: 0.5)
                 for s, c in zip(states, configs)]
    errors = train_stack(trainings, make_steps=fused)
    return errors, states

with np.errstate(all="ignore"):
    (wild_error, no_error), (_, together) = run(wild, calm)
    _, (alone,) = run(calm)
assert "diverged at step 2" in str(wild_error) and no_error is None, (wild_error, no_error)
assert together.history == alone.history and together.step == 3
for name, tensor in state_tensors(alone).items():
    assert torch.equal(tensor, state_tensors(together)[name]), name
"""


@pytest.mark.slow
@needs_triton
def test_a_trial_that_leaves_changes_nothing_for_its_neighbor() -> None:
    """One process runs both storages, since starting it takes as long as running one."""
    interpret(f"for storage in ('float32', 'bf16'):\n    exec({LEAVE!r}, {{'storage': storage}})")
