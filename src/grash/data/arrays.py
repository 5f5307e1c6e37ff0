"""Arrays of ours on disk: .npy files that are mapped into memory, with a sentence where one is damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike, NDArray

from grash.errors import FormatError


def map_array(path: Path, dtype: DTypeLike, shape: tuple[int | None, ...]) -> NDArray:
    """The array of a .npy file, mapped read-only, checked for its dtype and shape (None: any length)."""
    try:
        array = np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except FileNotFoundError:
        raise FormatError(f"{path} is missing: the folder is incomplete, make it anew.") from None
    except (ValueError, EOFError, SyntaxError, OverflowError, TypeError) as error:
        raise FormatError(f"{path} is damaged ({error}): make the folder anew.") from error
    fits = array.ndim == len(shape) and all(n in (None, m) for n, m in zip(shape, array.shape))
    if array.dtype != np.dtype(dtype) or not fits or not array.flags.c_contiguous:
        wanted = " × ".join("n" if n is None else f"{n:,}" for n in shape)
        found = " × ".join(f"{n:,}" for n in array.shape)
        raise FormatError(
            f"{path} holds {array.dtype} of {found or 'no shape'}, and {np.dtype(dtype)} of {wanted} is "
            f"needed: the folder is damaged, make it anew."
        )
    return array
