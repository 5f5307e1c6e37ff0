"""How a CUDA device multiplies float32 matrices while training; ranking never uses anything but float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch


@contextmanager
def products(precision: Literal["float32", "tf32", "bf16"]) -> Iterator[None]:
    """tf32 rounds the factors to 10 bits of mantissa and sums in float32; bf16 (7 bits) is only the fused step's."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = precision != "float32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
