"""Losses and their gradients against torch.nn.functional and autograd, −∞ entries included."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from grash.kernels.softmax_loss import softmax_loss, softmax_loss_reference
from grash.training.config import make_config
from grash.training.losses import bce, label_loss, margin, self_adversarial, side_loss

B, N = 5, 7


def scores(seed: int, *, scale: float = 3.0, masked: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    positive = scale * torch.randn(B, dtype=torch.float64, generator=generator)
    negative = scale * torch.randn(B, N, dtype=torch.float64, generator=generator)
    if masked:
        negative[torch.rand(B, N, generator=generator) < 0.3] = -torch.inf
        negative[seed % B] = -torch.inf  # a row without negatives
    return positive, negative


def torch_loss(name: str, p: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    total = p.new_zeros(())
    for one, row in zip(p, n):
        row = row[row > -torch.inf]
        if name == "softmax":
            total = total + F.cross_entropy(torch.cat([one[None], row]), torch.tensor(0))
        elif name == "bce":
            total = total + F.binary_cross_entropy_with_logits(one + 0.5, torch.ones_like(one))
            total = total + F.binary_cross_entropy_with_logits(row + 0.5, torch.zeros_like(row), reduction="sum")
        elif name == "margin":
            total = total + F.margin_ranking_loss(one.expand_as(row), row, torch.ones_like(row), 1.5, reduction="sum")
        else:
            alpha = float(name.partition("-")[2])
            weights = torch.softmax(alpha * row, 0).detach()
            total = total - F.logsigmoid(1.5 + one) - (weights * F.logsigmoid(-1.5 - row)).sum()
    return total


LOSSES = {
    "softmax": softmax_loss,
    "bce": lambda p, n: bce(p, n, 0.5),
    "margin": lambda p, n: margin(p, n, 1.5),
    "adversarial-0.0": lambda p, n: self_adversarial(p, n, 1.5, 0.0),
    "adversarial-2.0": lambda p, n: self_adversarial(p, n, 1.5, 2.0),
}


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("name", LOSSES)
def test_loss_and_gradient_equal_torchs(name: str, masked: bool) -> None:
    for seed in range(10):
        p, n = scores(seed, masked=masked)
        loss, for_p, for_n = LOSSES[name](p, n)
        p.requires_grad_()
        real = n > -torch.inf
        leaf = n.clone().requires_grad_()
        wanted = torch_loss(name, p, torch.where(real, leaf, -torch.inf))
        want_p, want_n = torch.autograd.grad(wanted, (p, leaf))
        torch.testing.assert_close(loss, wanted.detach())
        torch.testing.assert_close(for_p, want_p)
        torch.testing.assert_close(for_n, torch.where(real, want_n, 0))


@settings(deadline=None)
@given(st.integers(0, 10**6), st.booleans(), st.sampled_from([0.01, 1.0, 50.0, 3000.0]))
def test_fast_softmax_equals_the_plain_form(seed: int, masked: bool, scale: float) -> None:
    p, n = scores(seed, scale=scale, masked=masked)
    for dtype in (torch.float64, torch.float32):
        fast, plain = softmax_loss(p.to(dtype), n.to(dtype)), softmax_loss_reference(p.to(dtype), n.to(dtype))
        for a, b in zip(fast, plain):
            assert a.dtype == dtype and bool(torch.isfinite(a).all())
            torch.testing.assert_close(
                a, b, rtol=1e-5, atol=max(1.0, scale) * (1e-6 if dtype == torch.float32 else 1e-12)
            )


def test_a_row_without_negatives_has_no_loss_under_softmax() -> None:
    loss, for_p, for_n = softmax_loss(torch.tensor([3.0, -2.0]), torch.full((2, 4), -torch.inf))
    assert float(loss) == 0 and for_p.tolist() == [0, 0] and not for_n.any()


def test_a_number_that_is_none_stays_none() -> None:
    for loss in ("softmax", "bce", "margin", "self_adversarial"):
        config = make_config({"dim": 4, "loss": loss})
        result, _, _ = side_loss(torch.tensor([1.0, 2.0]), torch.tensor([[torch.nan, 1.0], [0.0, 1.0]]), config)
        assert not bool(torch.isfinite(result))


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("loss", ["softmax", "bce"])
def test_label_loss_equals_torchs(loss: str, smoothing: float) -> None:
    config = make_config(
        {
            "dim": 4,
            "training": "kvsall",
            "loss": loss,
            "offset": 0.4 if loss == "bce" else 0.0,
            "label_smoothing": smoothing,
        }
    )
    s = scores(0, masked=False)[1].requires_grad_()
    labels = torch.zeros(B, N, dtype=torch.float64)
    labels[range(B), [0, 3, 3, 6, 1]] = labels[1, 2] = labels[4, 5] = 1
    found, gradient = label_loss(s.detach(), labels.clone(), config)
    smooth = labels * (1 - smoothing) + (1 / N if smoothing else 0)
    if loss == "bce":
        wanted = F.binary_cross_entropy_with_logits(s + 0.4, smooth, reduction="sum")
    else:
        wanted = F.kl_div(F.log_softmax(s, 1), smooth / smooth.sum(1, keepdim=True), reduction="sum")
    torch.testing.assert_close(found, wanted.detach())
    torch.testing.assert_close(gradient, torch.autograd.grad(wanted, s)[0])


def test_different_batches_are_named() -> None:
    with pytest.raises(ValueError, match="differ in B"):
        side_loss(torch.zeros(2), torch.zeros(3, 4), make_config({"dim": 4}))
