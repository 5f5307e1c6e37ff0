"""The Triton kernels of the unfused step (rows, losses, complex products) in Triton's interpreter."""

from __future__ import annotations

import pytest

from triton_interpreter import interpret, needs_triton

UPDATES = """
import torch
from grash.kernels import row_update_triton as fast
from grash.training.gradients import Gradient
from grash.training.optimizers import ADAGRAD_EPS, ADAM_EPS, BETAS, TableOptimizer

fast._BLOCK, fast._SUMMED = 16, 64
torch.manual_seed(0)
for kind in ("sgd", "adagrad", "row_adagrad", "adam", "lazy_adam"):
    for dense in (False, True):
        table = torch.randn(11, 37)
        ids = [torch.tensor([3, 3, 0, 9, 3]), torch.tensor([9, 3, 3, 3, 3, 10, 3, 3])]
        rows = [torch.randn(5, 37), torch.randn(8, 37)]
        wanted, plain = table.clone(), TableOptimizer(kind, table)
        mine, from_memory = ((table.clone(), TableOptimizer(kind, table)) for _ in range(2))
        for step in (1, 2, 3):
            gradient = Gradient(list(ids), list(rows))
            if dense:
                gradient.dense = torch.randn(11, 37)
                whole = gradient.dense.clone()
                fast.add_rows(whole, ids, rows)
            elif kind == "adam":
                whole = torch.zeros_like(table)
                fast.add_rows(whole, ids, rows)
            plain.update(wanted, gradient, 0.1, step)
            eps = ADAM_EPS if "adam" in kind else ADAGRAD_EPS
            numbers = plain.rates(0.1, step)
            for (moved, optimizer), rates in ((mine, numbers), (from_memory, torch.tensor(numbers))):
                state = [*optimizer.state.values()]
                if dense or kind == "adam":
                    fast.update_all(moved, state, whole, rates, kind, eps=eps, betas=BETAS)
                else:
                    fast.update_rows(moved, state, ids, rows, rates, kind, eps=eps, betas=BETAS)
            assert torch.allclose(mine[0], wanted, rtol=1e-5, atol=1e-6), (kind, dense, step)
            assert torch.equal(mine[0], from_memory[0]), (kind, dense)
            for name, values in plain.state.items():
                assert torch.allclose(mine[1].state[name], values, rtol=1e-5, atol=1e-6), (kind, dense, name)
                assert torch.equal(mine[1].state[name], from_memory[1].state[name])
fast.update_rows(table, [], [torch.empty(0, dtype=torch.int64)], [torch.empty(0, 37)], (0.1, 1.0), "sgd", eps=0.0,
                 betas=BETAS)
"""
LOSSES = """
import torch
from grash.kernels import softmax_loss_triton as fast
from grash.kernels.softmax_loss import softmax_loss_reference
from grash.training.config import TrainConfig
from grash.training.losses import label_loss

fast._BLOCK, fast._ANSWERS = 128, 16
torch.manual_seed(0)
for n in (1, 5, 300):
    positive, negative = 3 * torch.randn(7), 3 * torch.randn(7, n)
    negative[torch.arange(7), torch.randint(0, n, (7,))] = -torch.inf
    wanted = softmax_loss_reference(positive.double(), negative.double(), scale=0.3)
    before = negative.clone()
    for overwrite in (False, True):
        found = fast.softmax_loss(positive, negative, scale=0.3, overwrite=overwrite)
        assert (found[2] is negative) == overwrite and (overwrite or torch.equal(negative, before))
        for mine, theirs in zip(found, wanted):
            assert torch.allclose(mine.double(), theirs, rtol=2e-6, atol=1e-7), (n, overwrite)
bad = torch.tensor([[0.0, torch.nan], [torch.inf, 0.0]])
loss, _, _ = fast.softmax_loss(torch.zeros(2), bad, scale=1.0, overwrite=False)
assert torch.isnan(loss)

answers = torch.cat([torch.randperm(300)[:n] for n in (1, 40, 3)]).to(torch.int32)
first, count = torch.tensor([1, 0, 41]), torch.tensor([40, 1, 3])
labels = torch.zeros(3, 300)
for i in range(3):
    labels[i, answers[first[i] : first[i] + count[i]].long()] = 1
for settings in ({}, {"label_smoothing": 0.2}, {"loss": "bce", "offset": 0.3},
                 {"loss": "bce", "label_smoothing": 0.1}):
    config = TrainConfig(training="kvsall", **settings)
    scores = 3 * torch.randn(3, 300)
    loss, gradient = label_loss(scores.double(), labels.double(), config)
    mine, written = fast.label_loss(
        scores, first, count, answers, smoothing=config.label_smoothing, offset=config.offset,
        bce=config.loss == "bce", scale=0.25)
    assert written is scores and torch.allclose(written.double(), gradient / 4, rtol=1e-4, atol=1e-7), settings
    assert torch.allclose(mine.double(), loss / 4, rtol=1e-5), (settings, mine, loss / 4)
assert torch.equal(fast.answer_counts(first, count, answers, 300), labels.sum(0))
"""
PRODUCTS = """
import torch
from grash.kernels import complex_product as plain, complex_product_triton as fast

fast._BLOCK = 16
torch.manual_seed(0)
for n, d in ((1, 2), (7, 10), (5, 64), (0, 4)):
    u, a, b = (torch.randn(n, d) for _ in range(3))
    for conjugate in (False, True):
        found = fast.product(a, b, conjugate=conjugate), *fast.product_gradient(u, a, b, conjugate=conjugate)
        wanted = (plain.product_reference(a, b, conjugate=conjugate),
                  *plain.product_gradient_reference(u, a, b, conjugate=conjugate))
        assert all(torch.allclose(x, y, rtol=1e-5, atol=1e-6) for x, y in zip(found, wanted)), (n, d, conjugate)
"""


@pytest.mark.slow
@needs_triton
def test_products_updates_and_losses_equal_their_references():
    """One process runs all, since starting it takes as long as running them."""
    interpret(PRODUCTS + UPDATES + LOSSES)
