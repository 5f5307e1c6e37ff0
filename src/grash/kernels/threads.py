"""Numba's loops use as many threads as torch does."""

from __future__ import annotations

import numba
import torch
from numba import config as numba_config


def use_torch_threads() -> None:
    numba.set_num_threads(min(torch.get_num_threads(), getattr(numba_config, "NUMBA_NUM_THREADS", 1)))
