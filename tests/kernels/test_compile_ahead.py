"""Compiling ahead without a GPU: Triton compiles for one, and a fake driver launches nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from grash.kernels import compile_ahead
from grash.kernels.device import compile_seconds
from triton_interpreter import needs_triton

DRIVER = """
import threading
import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from grash.kernels import compile_ahead

class Card:  # the part of a driver that a launch uses
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
from grash.training.fused import stack_states
from grash.training.checkpoint import TrainState

E, R = 300, 3
triples = np.stack([np.arange(400) % m for m in (E, R, E)], 1).astype(np.int32)
dots = TrainConfig(dim=16, batch_size=64, negatives_head=20, negatives_tail=30, reciprocal=True)
away = TrainConfig(dim=16, batch_size=64, model="rotate", loss="self_adversarial", negatives_head=9)
one_vs_all = dots.changed(training="1vsall", relation_prediction=1.0, penalty="n3", penalty_entity=0.1)
bf16 = dots.changed(storage="bf16")
stacks = [[dots], [one_vs_all, one_vs_all.changed(variation=1, dropout_entity=0.1)], [away], [bf16]]

lacks = fused.compile_stacks(stacks, E, R)
assert lacks == [13, 13, 15, 13], lacks
begun = len(compile_ahead._compiling)
assert begun > 20 and not card.launched, (begun, card.launched)
for configs in stacks:
    states = stack_states((TrainState.fresh(initial_model(c, E, R), c) for c in configs), n=len(configs))
    steps = fused.FusedSteps(states, Batches(triples, E, R, configs[0], torch.device("cpu")), configs)
    steps._launch()
    if len(configs) > 1:  # the trial with dropout leaves the stack
        steps.remove([1])
        steps._launch()
step_launches = len(card.launched)
assert step_launches == 7 * 4 + 9, card.launched

from grash.kernels.count_above import TruthIndex
from grash.kernels.count_above_triton import (
    CountShape, count_candidates, largest_sizes, score_truths, subtract_filtered
)
def integers(*size):
    return torch.zeros(size, dtype=torch.int32)
for pair, width, dtype in (("dot", 16, torch.float32), ("modulus", 16, torch.float32), ("dot", 16, torch.bfloat16)):
    queries, candidates = torch.zeros(21, width), torch.zeros(700, width, dtype=dtype)
    numbers = torch.zeros(1 + 66 + 1 + 66 + 2, dtype=torch.int64)
    bad, *rest = numbers.split([1, 66, 1, 66, 2])
    shape, index = CountShape.of(33, 700, width), TruthIndex(integers(33), integers(33), integers(22))
    for out, n_open in (rest[:2], rest[2:]):
        out, bounds = out.view(2, -1), torch.zeros(3, shape.truths)
        largest, truth = largest_sizes(candidates, pair).max(), torch.zeros(33, dtype=torch.int64)
        score_truths(queries, candidates, truth, index.query, largest, pair, bounds, bad)
        count_candidates(queries, candidates, bounds, index, pair, shape, out=out, n_open=n_open)
        subtract_filtered(queries, candidates, bounds, integers(2, 33), integers(3, 33), pair, out)
assert len(card.launched) == step_launches + 3 * 2 * 6

assert fused.compile_stacks(stacks, E, R) == [0, 0, 0, 0]
by_launches = [name for name, here, _ in compiled if here]
assert not by_launches, f"compiled when they were launched, as if without a dry run: {by_launches}"
assert len(compiled) == begun and not compile_ahead._compiling, (len(compiled), begun, compile_ahead._compiling)
"""
FAILURE = """
from grash.kernels.compile_ahead import launch, dry_run
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
with dry_run():
    go()
[future] = compile_ahead._compiling.values()
assert isinstance(future.exception(), OSError) and not card.launched
_order.compile = go_compile
go()
assert card.launched == ["_order"] and compiled == [("_order", True, False)], compiled
with dry_run():  # it is in memory
    go()
    raise ValueError("a dry run that fails is only a slower start")
assert not compile_ahead._compiling and card.launched == ["_order"]
"""


def run_with_driver(code: str, cache: Path) -> None:
    environment = {**os.environ, "TRITON_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1"}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run([sys.executable, "-c", DRIVER + code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]


WITHOUT_HOOK = """
import logging, sys
sys.modules["triton.runtime._async_compile"] = None  # as in a version of Triton that has no such module
logged = []
handler = logging.Handler()
handler.emit = lambda record: logged.append((record.levelname, record.getMessage()))
compile_ahead.log.addHandler(handler)
compile_ahead.log.setLevel("DEBUG")
from grash.kernels.step_draw_triton import _order
ids = torch.zeros(64, dtype=torch.int32)
def go():
    compile_ahead.launch(_order, (8,), ids, ids, ids, ids, 32, SORTED=8, AGAINST=16, num_warps=1)
for _ in range(2):
    with compile_ahead.dry_run() as missing:
        go()
        go()
    assert missing == [] and not compile_ahead._compiling and not card.launched
[(level, message)] = logged
assert level == "DEBUG" and "compiled at their first launch" in message, logged
go()
assert card.launched == ["_order"] and compiled == [("_order", True, False)], compiled
"""

CHANGED_HOOK = """
from grash.kernels.step_draw_triton import _order
ids = torch.zeros(64, dtype=torch.int32)
def go():
    compile_ahead.launch(_order, (8,), ids, ids, ids, ids, 32, SORTED=8, AGAINST=16, num_warps=1)
submit = compile_ahead._CompileMode.submit
compile_ahead._CompileMode.submit = lambda self, key: None  # Triton passes more arguments
with compile_ahead.dry_run() as missing:
    go()
assert missing == [] and not compile_ahead._compiling and not card.launched
compile_ahead._CompileMode.submit = submit
with compile_ahead.dry_run() as missing:
    go()
assert len(missing) == 1 and len(compile_ahead._compiling) == 1
compile_ahead._CompileMode.submit = lambda self, key: None
go()
assert card.launched == ["_order"] and not compile_ahead._compiling, card.launched
"""


@pytest.mark.slow
@needs_triton
def test_every_launch_of_steps_and_validations_finds_the_kernel_that_was_compiled_ahead(tmp_path: Path) -> None:
    run_with_driver(STEPS, tmp_path)


@pytest.mark.slow
@needs_triton
def test_what_fails_to_compile_ahead_is_compiled_by_its_launch(tmp_path: Path) -> None:
    run_with_driver(FAILURE, tmp_path)


@pytest.mark.slow
@needs_triton
def test_without_the_hook_of_triton_nothing_is_compiled_ahead(tmp_path: Path) -> None:
    run_with_driver(WITHOUT_HOOK, tmp_path)


@pytest.mark.slow
@needs_triton
def test_a_hook_that_triton_calls_in_another_way_breaks_no_launch(tmp_path: Path) -> None:
    run_with_driver(CHANGED_HOOK, tmp_path)


@pytest.mark.slow
def test_a_process_that_ends_compiles_nothing_more() -> None:
    code = (
        "import time; from grash.kernels.compile_ahead import _start_compiling\n"
        "_start_compiling({str(i): lambda: time.sleep(0.2) or print('done', flush=True) for i in range(200)})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.count("done") <= 2 * (os.cpu_count() or 1), done
    assert threading.main_thread().is_alive()


def test_a_launch_that_waits_for_its_kernel_counts_as_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([10.0, 13.5])
    monkeypatch.setattr(compile_ahead, "time", SimpleNamespace(monotonic=lambda: next(times)))
    before = compile_seconds()
    finished: list[str] = []
    assert compile_ahead._CompileMode().submit("key", lambda: "kernel", finished.append) == "kernel"
    assert finished == ["kernel"] and compile_seconds() - before == pytest.approx(3.5)
