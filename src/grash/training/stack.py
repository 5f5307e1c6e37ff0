"""Where the trainings of a stack lie: their tables and optimizer states side by side, a slab each of one tensor.

The fused step (`fused`) makes steps of all of them with the same launches; the loop does not care.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from grash.training.state import TrainState, state_tensors

_ROWS = 1 << 16  # rows that lie aside while two slabs are exchanged


def stack_states(states: Iterable[TrainState], *, n: int) -> list[TrainState]:
    """The states, their tables and optimizer states moved into n slabs, (n, rows, width), of which they become views.

    They are taken one after the other: at most the whole stack and one model lie in memory. One alone stays as it is.
    """
    slabs: dict[str, Tensor] = {}
    found: list[TrainState] = []
    for state in states:
        if n > 1:
            _move(state, slabs, len(found), n)
        found.append(state)
    return found


def _move(state: TrainState, slabs: dict[str, Tensor], place: int, n: int) -> None:
    """A function of its own, so that no name holds the model's first tables when the next model is made."""
    for name, tensor in _tensors(state).items():
        if name not in slabs:
            slabs[name] = tensor.new_empty((n, *tensor.shape))
        slabs[name][place].copy_(tensor)
        _put(state, name, slabs[name][place])


def swap(one: TrainState, other: TrainState) -> None:
    """Exchanges the places of two states' tensors; the values stay with their states."""
    theirs = _tensors(other)
    for name, mine in _tensors(one).items():
        for here, there in zip(mine.split(_ROWS), theirs[name].split(_ROWS)):
            aside = here.clone()
            here.copy_(there)
            there.copy_(aside)
        _put(one, name, theirs[name])
        _put(other, name, mine)


def take_out(row: list[Any], places: Sequence[int]) -> None:
    """From the last place to the first: what stands last moves to the free place."""
    for place in sorted(places, reverse=True):
        row[place] = row[-1]
        row.pop()


def _tensors(state: TrainState) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in state_tensors(state).items() if not name.startswith("best.")}


def _put(state: TrainState, name: str, tensor: Tensor) -> None:
    table, _, kept = name.partition(".")
    if not kept:
        setattr(state.model, table, tensor)
    elif table == "entity":
        state.entity_optimizer.state[kept] = tensor
    else:
        state.relation_optimizer.state[kept] = tensor
