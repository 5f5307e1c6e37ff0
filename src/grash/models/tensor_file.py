"""Tensors in a safetensors file, written and read piece by piece: none of them is ever there twice.

Used by model folders (`models/store`) and checkpoints (`training/state`), whose tables may be as large as the memory.
The format is that of the safetensors library (a header's length, the header in JSON, the tensors one after the other),
whose own writer takes every tensor as one block of host memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import IO

import torch
from safetensors import safe_open
from torch import Tensor

from grash.kernels.far_rows import near, pieces

_TYPES = {
    torch.float32: "F32", torch.bfloat16: "BF16", torch.float64: "F64", torch.int32: "I32", torch.int64: "I64",
}  # fmt: skip
_PIECE_BYTES = 64 << 20


def write_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Writes tensors of any device; a full disk is an OSError."""
    header, end = {}, 0
    for name, tensor in sorted(tensors.items()):
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the tensors are aligned
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, tensor in sorted(tensors.items()):
            _write(tensor, file)


def read_tensors(path: Path, targets: dict[str, Tensor]) -> None:
    """Fills the targets, wherever they lie, from tensors of the same names and shapes."""
    with safe_open(path, framework="pt") as stored:
        for name, target in targets.items():
            part = stored.get_slice(name)
            if part.get_shape() != list(target.shape):
                raise ValueError(f"{name} has another shape")
            if not target.ndim:
                target.copy_(stored.get_tensor(name))
                continue
            there = near(target)
            for first in range(0, len(there), step := _rows(target)):
                there[first : first + step].copy_(part[first : first + step])


def _write(tensor: Tensor, file: IO[bytes]) -> None:
    there = near(tensor)
    parts: Iterable[Tensor] = [there] if not there.ndim else (rows for _, rows in pieces(there, _rows(there)))
    for rows in parts:
        if rows.numel():
            if rows.dtype == torch.bfloat16:  # which NumPy does not know
                rows = rows.view(torch.int16)
            file.write(rows.cpu().contiguous().numpy().reshape(-1).data)


def _rows(tensor: Tensor) -> int:
    return max(1, _PIECE_BYTES // max(1, tensor[:1].numel() * tensor.element_size()))
