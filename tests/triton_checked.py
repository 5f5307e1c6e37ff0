"""Triton's interpreter with a check of every access; the processes of `triton_interpreter` import it first.

On a device an access outside a tensor often hits other memory of the process and is not noticed, or it ends all tests.
Here each tensor of a launch is placed between guards, and all unmasked addresses of a load, store or atomic must be
inside one tensor. Uninitialized memory holds NaN or the largest integer, so no result and no address can come from it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
import triton.language as tl
import triton.runtime.interpreter as interpreter
from torch import Tensor

_GUARD = 1 << 16  # bytes before and after each tensor


class OutOfBounds(Exception):
    """An access of a kernel outside the tensors of its launch."""


class _Given:
    """The tensors of one launch, each moved between guards and back. Several names may have the same bytes."""

    def __init__(self) -> None:
        self.moved: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}  # (first byte, bytes) → original, copy
        self.names: dict[int, str] = {}  # of the tensor that begins at an address
        self.begins, self.ends = np.empty(0, np.uint64), np.empty(0, np.uint64)

    def move(self, name: str, tensor: Tensor) -> Tensor:
        length = _span(tensor) * tensor.element_size()
        first = tensor.data_ptr()
        if (first, length) not in self.moved:
            if any(first < a + n and a < first + length for a, n in self.moved):
                raise OutOfBounds(f"{name} shares some of its bytes with another argument, but not all")
            here = torch.as_strided(tensor, (_span(tensor),), (1,)).view(torch.uint8)
            around = torch.full((length + 2 * _GUARD,), 0x7F, dtype=torch.uint8)
            self.moved[first, length] = here, around[_GUARD : _GUARD + length]
            self.moved[first, length][1].copy_(here)
        there = self.moved[first, length][1]
        self.names[there.data_ptr()] = name
        return torch.as_strided(there.view(tensor.dtype), tensor.shape, tensor.stride())

    def seal(self) -> None:
        found = sorted((there.data_ptr(), there.numel()) for _, there in self.moved.values() if there.numel())
        self.begins = np.array([begin for begin, _ in found], np.uint64)
        self.ends = np.array([begin + length for begin, length in found], np.uint64)

    def check(self, what: str, pointers: Any, mask: Any, kernel: str) -> None:
        """pointers, mask: handles of the interpreter."""
        at = pointers.data[np.broadcast_to(mask.data, pointers.data.shape).astype(bool)].astype(np.uint64)
        if not at.size:
            return
        low, high = at.min(), at.max()
        size = pointers.get_element_ty().primitive_bitwidth // 8
        i = int(np.searchsorted(self.begins, low, side="right")) - 1
        if i >= 0 and high + np.uint64(size) <= self.ends[i]:
            return
        raise OutOfBounds(self._sentence(what, int(low), int(high), size, kernel))

    def _sentence(self, what: str, low: int, high: int, size: int, kernel: str) -> str:
        """Return a message that names the nearest tensor."""
        distances = [max(int(b) - low, high - int(e), 0) for b, e in zip(self.begins, self.ends)]
        i = int(np.argmin(distances)) if distances else 0
        begin, end = (int(self.begins[i]), int(self.ends[i])) if distances else (0, 0)
        name = self.names.get(begin, "nothing")
        return (
            f"{kernel}, program {interpreter.interpreter_builder.grid_idx}: {what} of elements "
            f"{(low - begin) // size} … {(high - begin) // size} of {name}, which has {(end - begin) // size}"
        )

    def restore(self) -> None:
        for here, there in self.moved.values():
            here.copy_(there)


def _span(tensor: Tensor) -> int:
    """Return the elements from the first to the last, including gaps between rows."""
    if not tensor.numel():
        return 0
    return 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride()))


class _Launch(interpreter.GridExecutor):  # type: ignore[misc]
    """One launch; during it `current` holds the tensors that may be accessed."""

    current: _Launch | None = None

    def _init_args_hst(self, args_dev: Any, kwargs: Any) -> Any:
        self.given, self.patched = _Given(), set[int]()
        args = [self._moved(name, arg) for name, arg in zip(self.arg_names, args_dev)]
        named = {name: self._moved(name, arg) for name, arg in kwargs.items()}
        self.given.seal()
        _Launch.current = self
        return args, named

    def _moved(self, name: str, argument: Any) -> Any:
        return self.given.move(name, argument) if isinstance(argument, Tensor) else argument

    def _restore_args_dev(self, *_: Any) -> None:
        self.given.restore()
        _Launch.current = None


def _check(what: str, pointers: Any, mask: Any) -> None:
    launch = _Launch.current
    assert launch is not None
    launch.given.check(what, pointers, mask, launch.fn.__name__)


def _watch(builder: Any) -> None:
    load, store, change = builder.create_masked_load, builder.create_masked_store, builder.create_atomic_rmw

    def checked_load(self: Any, ptrs: Any, mask: Any, *rest: Any) -> Any:
        _check("load", ptrs, mask)
        return load(self, ptrs, mask, *rest)

    def checked_store(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
        _check("store", ptrs, mask)
        return store(self, ptrs, value, mask, *rest)

    def checked_change(self: Any, kind: Any, ptr: Any, val: Any, mask: Any, *rest: Any) -> Any:
        _check("atomic", ptr, mask)
        return change(self, kind, ptr, val, mask, *rest)

    builder.create_masked_load, builder.create_masked_store = checked_load, checked_store
    builder.create_atomic_rmw = checked_change


def _index(scope_patch: Any) -> Any:
    """Triton 3.6 turns arrays of one element into integers, which numpy 2.4 no longer does."""

    def patched(tensor: Any, scope: Any) -> None:
        scope_patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    return patched


def _once_per_launch(patch_lang: Any) -> Any:
    """Triton 3.6 looks for what it has to patch at every call of a function within a kernel: 40 % of the time."""
    patched_by: dict[Any, frozenset[int]] = {}

    def patch(fn: Any) -> Any:
        if fn not in patched_by:
            found = (value for value in fn.__globals__.values() if value is tl or value is tl.core)
            patched_by[fn] = frozenset(map(id, found))
        launch = _Launch.current
        assert launch is not None
        if launch.patched and patched_by[fn] <= launch.patched:
            return None
        launch.patched |= patched_by[fn]
        return patch_lang(fn)

    return patch


def _remember_shapes() -> None:
    """Triton 3.6 unwraps, checks and prints the shape of each block for each value: a quarter of the time."""
    block_init = tl.block_type.__init__

    @cache
    def block_of(shape: tuple[int, ...]) -> Any:
        made = object.__new__(tl.block_type)
        block_init(made, tl.int32, list(shape))
        return made, str(made.shape)

    @cache
    def tensor_of(shape: tuple[int, ...]) -> Any:
        return tl.tuple([tl.constexpr(n) for n in shape]), tl.constexpr(math.prod(shape))

    def init_block(self: Any, element_ty: Any, shape: Any) -> None:
        made, text = block_of(tuple(getattr(n, "value", n) for n in shape))
        self.element_ty, self.shape, self.numel = element_ty, made.shape, made.numel
        self.name = f"<{text}, {element_ty}>"

    def init_tensor(self: Any, handle: Any, type: Any) -> None:
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = tensor_of(tuple(type.shape) if type.is_block() else ())

    tl.block_type.__init__, tl.tensor.__init__ = init_block, init_tensor


def _remember_types(np_dtype: Any) -> Any:
    """Triton 3.6 makes a table of all types at each look into it."""
    known: dict[str, Any] = {}

    def remembered(dtype: Any) -> Any:
        if dtype.name not in known:
            known[dtype.name] = np_dtype(dtype)
        return known[dtype.name]

    return remembered


interpreter._patch_lang = _once_per_launch(interpreter._patch_lang)
interpreter._get_np_dtype = _remember_types(interpreter._get_np_dtype)
# Triton 3.6 computes whether integers overflow, and without `debug` it looks at no result: a third of the time
builder = interpreter.interpreter_builder
builder.options = replace(builder.options, sanitize_overflow=builder.options.debug)
_remember_shapes()
interpreter._patch_lang_tensor = _index(interpreter._patch_lang_tensor)
interpreter.GridExecutor = _Launch
_watch(interpreter.InterpreterBuilder)
torch.use_deterministic_algorithms(True)  # torch then fills uninitialized memory
torch.utils.deterministic.fill_uninitialized_memory = True
