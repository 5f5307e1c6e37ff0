"""How a CUDA device multiplies float32 matrices while training; ranking never uses anything but float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch


@contextmanager
def products(precision: Literal["float32", "tf32"]) -> Iterator[None]:
    """tf32 rounds the factors to 10 bits of mantissa and sums in float32."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
