"""The fused step against the unfused one in float32 and in float64 (`tests/gpu/test_fused_twin.py`), in Triton's
interpreter."""

from __future__ import annotations

import json

import pytest

from triton_interpreter import interpret, needs_triton

PREPARE = """
import json, sys
import numpy as np, torch
from gpu.test_fused_twin import TOLERANCES, WIDE, apart, check, edge_graphs, random_graph, tensors, twin_of
from grash.kernels import step_draw_triton as drawing, step_score_triton as scoring, step_update_triton as updating
from grash.training.batches import Batches
from grash.training.config import TrainConfig
from grash.training.fused import FusedSteps
from grash.training.initial import initial_model
from grash.training.loop import train_step
from grash.training.checkpoint import TrainState

# the interpreter's time grows with the number of programs
drawing.ROWS, drawing.DRAWN, updating.ROWS, updating.LINES = 64, 128, 128, 32
scoring.SCORE["BM"] = scoring.GRADIENT["BM"] = 128
values = {"dim": 10, "batch_size": 50, "init": "normal", "init_std": 0.3, "lr": 0.05, "epochs": 10,
          "precision": "float32"}
"""
COMPARE = """
for settings in json.loads(sys.argv[1]):
    scoring.INT32_LIMIT = settings.pop("int32_limit", 2**31)
    E, R, n = 23, settings.pop("n_relations", 3), 70
    rng = np.random.default_rng(0)
    train = np.stack([rng.integers(0, m, n) for m in (E, R, E)], 1).astype(np.int32)
    config = TrainConfig(**values | settings)
    batches = Batches(train, E, R, config, torch.device("cpu"))
    plain, fused = (TrainState.fresh(initial_model(config, E, R), config) for _ in range(2))
    steps = FusedSteps([fused], batches, [config])
    losses, wanted = [], []
    for _ in range(2):  # the second batch is cut short
        twin = twin_of(fused, config)
        before = [t.clone() for t in tensors(twin)]
        losses.append(steps.advance(fused.step + 1)[0, 0])
        wanted.append(train_step(plain, batches, config))
        train_step(twin, batches, config)
        errors = [apart(*three) for three in zip(tensors(fused), tensors(twin), before)]
        of_rows = fused.model.entity.dtype == torch.bfloat16  # the twin rounds no rows
        assert all(e < TOLERANCES["float32"] for e in errors[of_rows:]), (settings, errors)
    assert torch.allclose(torch.stack(losses), torch.stack(wanted), rtol=1e-5), (settings, losses, wanted)
    for name in ("entity", "relation"):
        mine, theirs = (getattr(s.model, name) for s in (fused, plain))
        if mine.dtype == torch.bfloat16:  # the same random bits: another neighbor only where a last bit decides
            assert (mine != theirs).float().mean() < 0.02 and torch.allclose(mine, theirs, rtol=2**-7), settings
            continue
        assert torch.allclose(mine, theirs, rtol=1e-4, atol=1e-6), (settings, name, (mine - theirs).abs().max())
        mine, theirs = (getattr(s, name + "_optimizer").state["squares"] for s in (fused, plain))
        assert torch.allclose(mine, theirs, rtol=1e-4, atol=1e-9), (settings, name, "squares")
"""
EDGES = """
from triton.language import bfloat16, float32
from triton.runtime import interpreter

multiply = interpreter.InterpreterBuilder.create_dot

def multiply_bf16(self, a, b, *rest):  # Triton 3.6 multiplies the bits of bf16 as if they were integers
    widened = [interpreter.TensorHandle((x.data.astype(np.uint32) << 16).view(np.float32), float32)
               if x.dtype.scalar == bfloat16 else x for x in (a, b)]
    return multiply(self, *widened, *rest)

interpreter.InterpreterBuilder.create_dot = multiply_bf16
for graph, settings in json.loads(sys.argv[1]):
    config = TrainConfig(**values | {"negatives_head": 7, "negatives_tail": 30} | settings)
    triples, n_entities = edge_graphs(50)[graph] if graph else (random_graph(23, 3, 70), 23)
    last = (len(triples) - 1) // 50  # of an epoch's steps; cut short where it can be
    tolerance = max(TOLERANCES[config.precision], WIDE if config.dim > 500 else 0)
    check(tolerance, config, triples, n_entities, 3, torch.device("cpu"), steps=[last])
"""
FEW_PROGRAMS = """
class RowsOfAnyWidth(int):  # wide rows get smaller programs on a GPU, which has few registers

    def __floordiv__(self, wide):
        return int(self)

drawing.ROWS, drawing.DRAWN, updating.ROWS = map(RowsOfAnyWidth, (32, 64, 32))
"""
CASES: dict[str, list[dict[str, object]]] = {
    "dot products": [
        {"reciprocal": True, "negatives_head": 40, "negatives_tail": 9, "dropout_entity": 0.2, "penalty": "n3",
         "penalty_entity": 0.1},
        {"training": "1vsall", "penalty": "l3", "penalty_entity": 0.1, "int32_limit": 0},
        {"training": "1vsall", "model": "distmult", "reciprocal": True, "dropout_entity": 0.3,
         "dropout_relation": 0.1, "optimizer": "row_adagrad", "relation_prediction": 1.0},
        {"relation_prediction": 0.5, "dropout_entity": 0.2, "reciprocal": True, "negatives_head": 3,
         "negatives_tail": 0, "penalty": "l1", "penalty_relation": 0.1},
        {"relation_prediction": 0.5, "reciprocal": True, "training": "1vsall", "n_relations": 150, "penalty": "n3",
         "penalty_entity": 0.1, "penalty_relation": 0.1, "lr": 0.001},
        {"loss": "self_adversarial", "margin": 0.3, "temperature": 2.0, "negatives_head": 1, "negatives_tail": 9},
        {"negatives_head": 0, "negatives_tail": 9, "dropout_entity": 0.2, "reciprocal": True, "penalty": "l2",
         "penalty_relation": 0.1},
    ],
    "entities in bf16": [
        {"storage": "bf16", "reciprocal": True, "negatives_head": 40, "negatives_tail": 9, "dropout_entity": 0.2},
        {"storage": "bf16", "training": "1vsall", "penalty": "l3", "penalty_entity": 0.1},
        {"storage": "bf16", "model": "rotate", "negatives_head": 7, "negatives_tail": 12, "optimizer": "row_adagrad"},
    ],
    "questions": [
        {"training": "kvsall"},
        {"training": "kvsall", "label_smoothing": 0.1, "penalty": "n3", "penalty_entity": 0.1, "penalty_relation": 0.1},
        {"training": "kvsall", "model": "distmult", "label_smoothing": 0.3, "penalty": "l3", "penalty_entity": 0.1,
         "optimizer": "row_adagrad", "batch_size": 80},
        {"training": "kvsall", "reciprocal": True, "label_smoothing": 0.1, "penalty": "l2", "penalty_relation": 0.1,
         "n_relations": 150, "storage": "bf16"},
    ],
    "distances": [
        {"model": "transe", "negatives_head": 7, "negatives_tail": 12, "optimizer": "row_adagrad", "n_relations": 150,
         "penalty": "l1", "penalty_relation": 0.1},
        {"model": "rotate", "negatives_head": 1, "negatives_tail": 23, "dropout_relation": 0.2, "int32_limit": 0},
        {"model": "rotate", "loss": "self_adversarial", "margin": 1.5, "temperature": 0.7, "dropout_entity": 0.1,
         "negatives_head": 9, "negatives_tail": 0},
        {"model": "transe", "norm": 2, "loss": "self_adversarial", "temperature": 0, "negatives_head": 1,
         "negatives_tail": 2, "relation_prediction": 2.0},
    ],
}  # fmt: skip
STORED: list[dict[str, object]] = [
    {"reciprocal": True, "dropout_entity": 0.2, "penalty": "n3", "penalty_entity": 0.1},
    {"training": "1vsall", "penalty": "l3", "penalty_entity": 0.1, "relation_prediction": 0.5},
    {"training": "1vsall", "model": "distmult", "reciprocal": True, "dropout_entity": 0.3, "optimizer": "row_adagrad"},
    {"training": "1vsall", "reciprocal": True, "penalty": "n3", "penalty_entity": 0.1, "relation_prediction": 0.5},
    {"loss": "self_adversarial", "margin": 0.3, "temperature": 2.0, "negatives_head": 0},
]
AT_THE_EDGES: list[tuple[str, dict[str, object]]] = [
    ("", {"precision": "bf16", "penalty": "l3", "penalty_entity": 0.1}),
    ("one entity", {"relation_prediction": 0.5}),
    ("one triple", {"model": "transe", "norm": 2, "loss": "self_adversarial"}),
    ("one triple of one entity", {"model": "rotate", "penalty": "n3", "penalty_entity": 0.1}),
    ("every triple the same", {"training": "1vsall", "model": "distmult", "optimizer": "row_adagrad"}),
    ("all heads equal", {"reciprocal": True, "dropout_entity": 0.2, "loss": "self_adversarial"}),
    ("a last batch of one", {"model": "distmult", "penalty": "l2", "penalty_relation": 0.1}),
    ("negatives equal to positives", {"model": "transe", "norm": 1}),
    ("one entity", {"training": "kvsall"}),
    ("one triple", {"training": "kvsall", "reciprocal": True, "penalty": "l3", "penalty_entity": 0.1}),
    ("all heads equal", {"training": "kvsall", "label_smoothing": 0.1, "model": "distmult"}),
]
WIDE: list[tuple[str, dict[str, object]]] = [
    ("", {"dim": 1000, "precision": "bf16", "dropout_entity": 0.2, "reciprocal": True}),
    ("", {"dim": 2000, "precision": "bf16", "model": "distmult", "relation_prediction": 0.5}),
    ("", {"dim": 2000, "model": "rotate", "penalty": "n3", "penalty_entity": 0.1, "negatives_head": 0}),
    ("", {"dim": 1000, "model": "transe", "norm": 2, "optimizer": "row_adagrad"}),
    ("", {"dim": 2000, "model": "transe", "dropout_entity": 0.5, "negatives_tail": 0}),
]


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("case", CASES)
def test_the_fused_step_equals_the_unfused_one_in_float32_and_float64(case):
    interpret(PREPARE + COMPARE, json.dumps(CASES[case]))


@pytest.mark.slow
@needs_triton
def test_the_fused_step_of_extreme_graphs_equals_the_unfused_one_in_float64():
    interpret(PREPARE + EDGES, json.dumps(AT_THE_EDGES))


@pytest.mark.slow
@needs_triton
def test_products_with_stored_weights_equal_the_unfused_step_in_float64():
    """As for rows of more than 256 floats: all cases of dot products, several parts of candidates."""
    wide = "from grash.kernels import step\nstep.NARROW, step.PRODUCT_CHUNK = 0, 128\n"
    cases = [("", {**settings, "precision": "bf16"}) for settings in STORED]
    interpret(PREPARE + wide + EDGES, json.dumps(cases))


QUESTIONS = """
step.PRODUCT_CHUNK = 128
triples = random_graph(300, 2, 2600)
triples[:1500, 0] = 7  # whose questions have more answers than are marked at once
for settings in json.loads(sys.argv[1]):
    config = TrainConfig(**values | {"training": "kvsall", "batch_size": 130} | settings)
    check(2 * TOLERANCES[config.precision], config, triples, 300, 2, torch.device("cpu"))  # bf16 is cut, not rounded

configs = [TrainConfig(**values | {"training": "kvsall", "precision": "bf16", "variation": i} | settings)
           for i, settings in enumerate(({}, {"label_smoothing": 0.1, "penalty": "l3", "penalty_entity": 0.1},
                                         {"lr": 0.2, "penalty": "n3", "penalty_relation": 0.1}))]
batches = [Batches(random_graph(140, 3, 150), 140, 3, config, torch.device("cpu")) for config in configs]
alone, stack = ([TrainState.fresh(initial_model(config, 140, 3), config) for config in configs] for _ in range(2))
losses = [FusedSteps([s], b, [c]).run(7) for s, b, c in zip(alone, batches, configs)]
stack_states(stack, n=len(stack))
assert torch.equal(FusedSteps(stack, batches[0], configs).run(7), torch.cat(losses, 1))
for mine, theirs in zip(stack, alone):
    assert all(torch.equal(a, b) for a, b in zip(tensors(mine), tensors(theirs)))
"""
ASKED: list[dict[str, object]] = [
    {"label_smoothing": 0.1, "penalty": "l3", "penalty_entity": 0.1, "penalty_relation": 0.1},
    {"model": "distmult", "reciprocal": True, "dim": 34, "penalty": "n3", "penalty_entity": 0.1},
    {"precision": "bf16", "reciprocal": True, "label_smoothing": 0.3, "dim": 34},
]


@pytest.mark.slow
@needs_triton
def test_questions_with_many_answers_equal_the_unfused_step_in_float64_and_are_the_same_in_a_stack():
    imports = "from grash.kernels import step\nfrom grash.training.fused import stack_states\n"
    interpret(PREPARE + imports + EDGES.split("for graph,")[0] + QUESTIONS, json.dumps(ASKED))


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("weights", ["stored", "not stored"])
def test_the_fused_step_of_wide_rows_equals_the_unfused_one_in_float64(weights):
    """A graph with too many entities for stored weights computes dot products without them."""
    narrow = "from grash.kernels import step\nstep.NARROW = 4096\n" if weights == "not stored" else ""
    cases = WIDE if weights == "stored" else WIDE[:2]
    interpret(PREPARE + FEW_PROGRAMS + narrow + EDGES, json.dumps(cases))


@pytest.mark.slow
@needs_triton
def test_triples_that_are_not_contiguous_are_an_error():
    interpret("""
import numpy as np, torch
from grash.training.batches import Batches
from grash.training.config import TrainConfig
from grash.training.fused import FusedSteps
from grash.training.initial import initial_model
from grash.training.checkpoint import TrainState

config = TrainConfig(dim=4, batch_size=5, negatives_head=2, negatives_tail=2)
batches = Batches(np.zeros((9, 3), np.int32), 3, 1, config, torch.device("cpu"))
for wrong in (batches.train.T.contiguous().T, batches.train.long()):
    batches.train = wrong
    try:
        FusedSteps([TrainState.fresh(initial_model(config, 3, 1), config)], batches, [config]).advance(1)
    except ValueError as error:
        assert "give a contiguous int32 tensor" in str(error)
    else:
        raise AssertionError("no error was raised")
""")
