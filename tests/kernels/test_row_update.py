"""Row updates against torch.optim on the dense gradient."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grash.kernels.row_update import adagrad_rows, adagrad_update, summed_rows, summed_rows_reference
from grash.training.gradients import Gradient
from grash.training.optimizers import TableOptimizer, dense_gradient

E, D = 9, 4
IDS = st.lists(st.integers(0, E - 1), min_size=1, max_size=20)


def rows_for(ids: list[int], seed: int) -> torch.Tensor:
    return torch.randn(len(ids), D, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def summed_by_hand(ids: list[int], rows: torch.Tensor) -> dict[int, torch.Tensor]:
    sums: dict[int, torch.Tensor] = {}
    for i, row in zip(ids, rows):
        sums[i] = sums[i] + row if i in sums else row.clone()
    return sums


@settings(deadline=None)
@given(IDS, st.integers(0, 999))
def test_occurrences_of_a_row_are_added_up(ids: list[int], seed: int) -> None:
    rows = rows_for(ids, seed).float()
    cut = len(ids) // 2
    parts = [torch.tensor(ids[:cut], dtype=torch.int64), torch.tensor(ids[cut:])], [rows[:cut], rows[cut:]]
    wanted = summed_by_hand(ids, rows)
    scratch = torch.full((E,), -1, dtype=torch.int32)
    for distinct, sums in (summed_rows_reference(*parts), summed_rows(*parts, scratch), summed_rows(*parts, scratch)):
        assert sorted(distinct.tolist()) == sorted(wanted)
        for i, row in zip(distinct.tolist(), sums):
            assert torch.equal(row, wanted[i])
    assert (scratch == -1).all()


@settings(deadline=None)
@given(IDS, st.integers(1, 4), st.integers(0, 999), st.floats(1e-6, 10))
def test_the_adagrad_loop_equals_separate_sums_and_updates(ids: list[int], n_parts: int, seed: int, lr: float) -> None:
    rows = rows_for(ids, seed).float()
    parts = list(torch.tensor(ids).tensor_split(n_parts)), list(rows.tensor_split(n_parts))
    start, squares = rows_for([*range(E)], seed + 1).float(), rows_for([*range(E)], seed + 2).float().square()
    found, wanted = (start.clone(), squares.clone()), (start.clone(), squares.clone())
    scratch = torch.full((E,), -1, dtype=torch.int32)
    adagrad_update(*found, *parts, lr, 1e-10, scratch)
    adagrad_rows(*wanted, *summed_rows_reference(*parts), lr, 1e-10)
    for a, b in zip(found, wanted):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-6)
    assert (scratch == -1).all()


def test_different_numbers_of_ids_and_rows_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"ids \(2,\) and rows \(3, 4\) differ"):
        summed_rows([torch.tensor([0, 1])], [torch.zeros(3, 4)])
    with pytest.raises(ValueError, match=r"ids \(2,\) and rows \(3, 4\) differ"):
        table, scratch = torch.zeros(5, 4), torch.full((5,), -1, dtype=torch.int32)
        adagrad_update(table, table.clone(), [torch.tensor([0, 1])], [torch.zeros(3, 4)], 0.1, 1e-10, scratch)


def sparse_adam(table: torch.nn.Parameter) -> torch.optim.Optimizer:
    return torch.optim.SparseAdam([table], lr=0.1, eps=1e-15)  # its formula adds ε at another place


RULES: dict[str, tuple[Callable[[torch.nn.Parameter], torch.optim.Optimizer], bool]] = {
    "adagrad": (lambda t: torch.optim.Adagrad([t], lr=0.1), False),
    "adam": (lambda t: torch.optim.Adam([t], lr=0.1), False),
    "lazy_adam": (sparse_adam, True),
    "sgd": (lambda t: torch.optim.SGD([t], lr=0.1), False),
}


@pytest.mark.parametrize("kind", RULES)
@settings(deadline=None)
@given(steps=st.lists(IDS, min_size=1, max_size=4), seed=st.integers(0, 999))
def test_rows_of_a_step_are_updated_as_by_torch(kind: str, steps: list[list[int]], seed: int) -> None:
    make, sparse = RULES[kind]
    start = rows_for([*range(E)], seed)
    parameter = torch.nn.Parameter(start.clone())
    theirs = make(parameter)
    table, ours = start.clone(), TableOptimizer(kind, start)
    for number, ids in enumerate(steps):
        rows = rows_for(ids, seed + number + 1)
        grad = torch.zeros(E, D, dtype=torch.float64).index_add_(0, torch.tensor(ids), rows)
        parameter.grad = grad.to_sparse(1) if sparse else grad
        theirs.step()
        half = len(ids) // 2  # the occurrences of a row may be in several parts
        parts = [
            (torch.tensor(i, dtype=torch.int64), r) for i, r in ((ids[:half], rows[:half]), (ids[half:], rows[half:]))
        ]
        ours.update(table, Gradient([i for i, _ in parts], [r for _, r in parts]), 0.1, number + 1)
    torch.testing.assert_close(table, parameter.detach(), rtol=1e-6, atol=1e-5 if sparse else 1e-12)


@settings(deadline=None)
@given(steps=st.lists(IDS, min_size=1, max_size=4), seed=st.integers(0, 999))
def test_row_adagrad_keeps_the_mean_square_of_each_row(steps: list[list[int]], seed: int) -> None:
    start = rows_for([*range(E)], seed)
    table, ours = start.clone(), TableOptimizer("row_adagrad", start)
    wanted, squares = start.clone(), [0.0] * E
    for number, ids in enumerate(steps):
        rows = rows_for(ids, seed + number + 1)
        for i, row in summed_by_hand(ids, rows).items():
            squares[i] += float((row * row).mean())
            wanted[i] -= 0.1 * row / (squares[i] ** 0.5 + 1e-10)
        ours.update(table, Gradient([torch.tensor(ids)], [rows]), 0.1, number + 1)
    torch.testing.assert_close(table, wanted)
    assert ours.state["squares"].shape == (E, 1)


@pytest.mark.parametrize("kind", ["adagrad", "row_adagrad", "adam", "lazy_adam", "sgd"])
def test_a_dense_gradient_and_all_rows_give_the_same(kind: str) -> None:
    start = rows_for([*range(E)], 0)
    by_rows, whole = start.clone(), start.clone()
    one, other = TableOptimizer(kind, start), TableOptimizer(kind, start)
    for step in (1, 2, 3):
        rows = rows_for([*range(E)], step)
        one.update(by_rows, Gradient([torch.arange(E)], [rows.clone()]), 0.1, step)
        other.update(whole, Gradient(dense=rows.clone()), 0.1, step)
    torch.testing.assert_close(by_rows, whole)


@pytest.mark.parametrize("kind", ["adagrad", "row_adagrad", "lazy_adam", "sgd"])
def test_other_rows_keep_their_bits(kind: str) -> None:
    start = rows_for([*range(E)], 0).float()
    table, ours = start.clone(), TableOptimizer(kind, start)
    for step in (1, 2):
        ours.update(table, Gradient([torch.tensor([3, 3, 5])], [torch.ones(3, D)]), 0.1, step)
    still = [i for i in range(E) if i not in (3, 5)]
    assert torch.equal(table[still], start[still])
    assert not torch.equal(table[[3, 5]], start[[3, 5]])


def test_repeated_rows_are_summed_before_they_are_squared() -> None:
    table = torch.zeros(2, 1)
    optimizer = TableOptimizer("adagrad", table)
    optimizer.update(table, Gradient([torch.tensor([0, 0])], [torch.tensor([[3.0], [4.0]])]), 1.0, 1)
    assert optimizer.state["squares"].tolist() == [[49.0], [0.0]]  # (3 + 4)², not 3² + 4²
    assert table.tolist() == [[-1.0], [0.0]]


def test_rows_are_added_to_a_dense_gradient() -> None:
    gradient = Gradient([torch.tensor([1, 1])], [torch.ones(2, 2)], dense=torch.full((3, 2), 10.0))
    assert dense_gradient(gradient, torch.zeros(3, 2)).tolist() == [[10, 10], [12, 12], [10, 10]]


def test_an_empty_gradient_changes_nothing() -> None:
    table = torch.ones(2, 2)
    TableOptimizer("adam", table).update(table, Gradient(), 0.1, 1)
    assert torch.equal(table, torch.ones(2, 2))
