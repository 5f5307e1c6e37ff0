"""Arrays on disk: .npy files that are mapped into memory, with a sentence where one is damaged."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike, NDArray

from grash.errors import FormatError


def map_array(path: Path, dtype: DTypeLike, shape: tuple[int | None, ...]) -> NDArray:
    """The array of a .npy file, mapped read-only, checked for its dtype and shape (None: any length)."""
    try:
        array = open_array(path)
    except FileNotFoundError:
        raise FormatError(f"{path} is missing: the folder is incomplete, make it anew.") from None
    except (ValueError, OSError) as error:
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


def open_array(path: Path) -> NDArray:
    """The array of a .npy file, mapped read-only; OSError, or ValueError with a reason, if that cannot be."""
    with path.open("rb") as file:
        if file.read(6) != b"\x93NUMPY":
            raise ValueError("its first bytes are not those of a .npy file")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a header that needs a second look will fail the checks that follow
            return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except OSError:
        raise
    except Exception as error:  # numpy's header reader lets errors of tokenize, ast, struct and mmap through
        reason = str(error) or type(error).__name__
        raise ValueError(
            "it holds Python objects, which are not loaded" if "Python objects" in reason else reason
        ) from error
