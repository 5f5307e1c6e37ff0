"""From one round to the next: a survivor's state is kept, and taken over whole or row by row.

Whole (epoch variant): weights, optimizer state and step counter, so that the continued run equals an uninterrupted
one bit for bit (D10). Row by row (warm start): entities and relations that the earlier, smaller graph had keep their
rows; a new entity begins at the mean of its neighbours that had one, a new relation as it would have without (D11).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from grash.errors import FormatError, GrashError
from grash.files import read_json
from grash.kernels.half_rows import wide
from grash.reduction.subgraph import Subgraph
from grash.training.state import SCHEMA, VERSION, TrainState, save_state, state_tensors


def keep_state(state: TrainState, folder: Path) -> None:
    """Writes what a later round goes on from: no validations, no best weights, those belong to their round."""
    bare = replace(state, history=[], best={}, unread=[], loss_sum=0.0, loss_steps=0)
    save_state(bare, folder, belongs_to={})


def take_over(state: TrainState, folder: Path) -> None:
    """Goes on where the kept state stands."""
    tensors, record = _read(folder), _record(folder)
    for name, tensor in state_tensors(state).items():
        tensor.copy_(tensors[name])
    state.step, state.first_loss = record["step"], record["first_loss"]


def kept_step(folder: Path) -> int:
    """The step at which a kept state stands; one that cannot be read says so when it is taken over."""
    try:
        return int(_record(folder)["step"])
    except (GrashError, KeyError, TypeError, ValueError):
        return 0


def take_over_rows(state: TrainState, folder: Path, earlier: Subgraph, graph: Subgraph) -> None:
    """Rows and optimizer state of what the earlier graph knew; new entities from the mean of their neighbours."""
    tensors = _read(folder)
    device = state.model.entity.device
    entities = _places(earlier.entity_ids, graph.entity_ids)
    relations = _places(earlier.relation_ids, graph.relation_ids)
    if state.model.reciprocal:  # rows of inverse relations stand after the others
        n_before, n_now = len(earlier.relation_ids), len(graph.relation_ids)
        relations = (
            np.concatenate([relations[0], relations[0] + n_before]),
            np.concatenate([relations[1], relations[1] + n_now]),
        )
    for name, tensor in state_tensors(state).items():
        source, target = entities if name.startswith("entity") else relations
        if tensor.ndim:
            tensor[torch.from_numpy(target).to(device)] = tensors[name][torch.from_numpy(source)].to(device)
    fill_new_entities(state.model.entity, graph.dataset.train, known=entities[1])


def fill_new_entities(table: Tensor, triples: np.ndarray, *, known: np.ndarray) -> None:
    """Sets every row of table (E, D) that is not in `known` to the mean, over its triples, of the other end's row where
    that end is known; rows without such a neighbour stay."""
    is_known = torch.zeros(len(table), dtype=torch.bool)
    is_known[torch.from_numpy(known)] = True
    heads, tails = (torch.from_numpy(np.ascontiguousarray(triples[:, c])).long() for c in (0, 2))
    new = torch.cat([heads, tails])
    old = torch.cat([tails, heads])
    useful = ~is_known[new] & is_known[old]
    new, old = new[useful].to(table.device), old[useful].to(table.device)
    sums = torch.zeros_like(table, dtype=wide(table[:0]).dtype).index_add_(0, new, wide(table[old]))
    counts = torch.bincount(new, minlength=len(table)).to(sums.dtype)
    rows = counts > 0
    table[rows] = (sums[rows] / counts[rows, None]).to(table.dtype)


def _places(earlier: np.ndarray, now: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(place in earlier, place in now) of the ids that both have; both ascend."""
    _, first, second = np.intersect1d(earlier, now, assume_unique=True, return_indices=True)
    return first, second


def _record(folder: Path) -> dict[str, Any]:
    return read_json(folder / "state.json", schema=SCHEMA, version=VERSION)


def _read(folder: Path) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load_file(folder / "tensors.safetensors")
    except (SafetensorError, OSError) as error:
        raise FormatError(f"{folder} is damaged ({error}): the trial that goes on from it cannot run.") from error
