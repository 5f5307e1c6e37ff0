"""Compiling ahead, without a card: Triton compiles for one, and a driver that launches nothing stands in for it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from triton_interpreter import needs_triton

PLAY = """
import threading
import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from grash.kernels import compile_ahead

class Card:  # as much of a driver as a launch asks for
    def __init__(self):
        self.utils, self.launched, self.built = self, [], []
    def get_current_device(self): return 0
    def get_current_stream(self, device): return 0
    def get_current_target(self): return GPUTarget("cuda", 90, 32)
    def get_device_properties(self, device): return {"max_shared_mem": 232448}
    def load_binary(self, name, binary, shared, device): return None, name, 0, 0, 1024
    def launcher_cls(self, src, metadata):
        self.built.append((src.fn.__name__, threading.current_thread() is threading.main_thread()))
        return lambda x, y, z, stream, name, *rest: self.launched.append(name)

card = Card()
driver.set_active(card)
compiled = []  # (kernel, whether this thread compiled it)
def note(src, metadata, metadata_group, times, cache_hit):
    compiled.append((src.fn.__name__, threading.current_thread() is threading.main_thread(), cache_hit))
knobs.compilation.listener = note
"""
STEPS = """
import numpy as np
from grash.training import fused
from grash.training.batches import Batches
from grash.training.config import TrainConfig
from grash.training.initial import initial_model
from grash.training.stack import stack_states
from grash.training.state import TrainState

E, R = 300, 3
triples = np.stack([np.arange(400) % m for m in (E, R, E)], 1).astype(np.int32)
dots = TrainConfig(dim=16, batch_size=64, negatives_head=20, negatives_tail=30, reciprocal=True)
away = TrainConfig(dim=16, batch_size=64, model="rotate", loss="self_adversarial", negatives_head=9)
everyone = dots.changed(training="1vsall", relation_prediction=1.0, penalty="n3", penalty_entity=0.1)
half = dots.changed(storage="bf16")
stacks = [[dots], [everyone, everyone.changed(variation=1, dropout_entity=0.1)], [away], [half]]

lacks = fused.compile_stacks(stacks, E, R)
assert lacks == [13, 13, 15, 13], lacks
begun = len(compile_ahead._under_way)
assert begun > 20 and not card.launched, (begun, card.launched)
for configs in stacks:
    states = stack_states((TrainState.fresh(initial_model(c, E, R), c) for c in configs), n=len(configs))
    steps = fused.FusedSteps(states, Batches(triples, E, R, configs[0], torch.device("cpu")), configs)
    steps._launch()
    if len(configs) > 1:  # the one with dropout leaves
        steps.leave([1])
        steps._launch()
step_launches = len(card.launched)
assert step_launches == 7 * 4 + 9, card.launched

from grash.kernels import count_above_triton as counting, count_exact_triton as exact
from grash.kernels.count_above_triton import Asked, Filter, Shape, count
for pair, width, dtype in (("dot", 16, torch.float32), ("modulus", 16, torch.float32), ("dot", 16, torch.bfloat16)):
    queries, candidates = torch.zeros(21, width), torch.zeros(700, width, dtype=dtype)
    numbers = torch.zeros(1 + 66 + 1 + 66 + 2, dtype=torch.int64)
    bad, *rest = numbers.split([1, 66, 1, 66, 2])
    for out, found in (rest[:2], rest[2:]):
        known = Filter(torch.zeros(2, 33, dtype=torch.int32), torch.zeros(3, 33, dtype=torch.int32))
        asked = Asked(*(torch.zeros(n, dtype=torch.int32) for n in (33, 33, 22)))
        largest = exact.sizes(candidates, pair).max()
        count(queries, candidates, torch.zeros(33, dtype=torch.int64), asked, largest, known, pair,
              Shape.of(33, 700, width), out=out.view(2, -1), open_pairs=found, bad=bad)
assert len(card.launched) == step_launches + 3 * 2 * 6

assert fused.compile_stacks(stacks, E, R) == [0, 0, 0, 0]
by_launches = [name for name, here, _ in compiled if here]
assert not by_launches, f"compiled when they were launched, as if not rehearsed: {by_launches}"
assert len(compiled) == begun and not compile_ahead._under_way, (len(compiled), begun, compile_ahead._under_way)
"""
FAILURE = """
from grash.kernels.compile_ahead import launch, rehearsal
from grash.kernels.step_draw_triton import _order
ids = torch.zeros(64, dtype=torch.int32)
def go():
    launch(_order, (8,), ids, ids, ids, ids, 32, SORTED=8, AGAINST=16, num_warps=1)
right = _order.create_binder
def broken(*args, **kwargs):
    raise OSError("no space left")
go_compile = None
def wrong():
    made = right()
    global go_compile
    go_compile, _order.compile = _order.compile, broken
    return made
_order.device_caches.default_factory = wrong
with rehearsal():
    go()
[future] = compile_ahead._under_way.values()
assert isinstance(future.exception(), OSError) and not card.launched
_order.compile = go_compile
go()
assert card.launched == ["_order"] and compiled == [("_order", True, False)], compiled
with rehearsal():  # it is in memory
    go()
    raise ValueError("a rehearsal that fails is only a slower start")
assert not compile_ahead._under_way and card.launched == ["_order"]
"""


def play(code: str, cache: Path) -> None:
    environment = {**os.environ, "TRITON_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1"}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run([sys.executable, "-c", PLAY + code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.slow
@needs_triton
def test_every_launch_of_steps_and_validations_finds_the_kernel_that_was_compiled_ahead(tmp_path: Path) -> None:
    play(STEPS, tmp_path)


@needs_triton
def test_what_fails_to_compile_ahead_is_compiled_by_its_launch(tmp_path: Path) -> None:
    play(FAILURE, tmp_path)


def test_a_process_that_ends_compiles_nothing_more() -> None:
    code = (
        "import time; from grash.kernels.compile_ahead import _begin\n"
        "_begin({str(i): lambda: time.sleep(0.2) or print('done', flush=True) for i in range(200)})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20)
    assert done.returncode == 0 and done.stdout.count("done") <= 2 * (os.cpu_count() or 1), done
    assert threading.main_thread().is_alive()
