"""How many bytes of tensors live at a time, on any device and without a card."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Peak(TorchDispatchMode):
    """Most bytes of tensors that were made inside and lived at the same time."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.most = 0
        self._known: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {x.untyped_storage() for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        out = func(*args, **(kwargs or {}))
        for made in tree_leaves(out):
            storage = made.untyped_storage()
            if storage not in self._known and storage not in given:
                self._known.add(storage)
                self.live += storage.nbytes()
                self.most = max(self.most, self.live)
                weakref.finalize(storage, self._gone, storage.nbytes())
        return out

    def _gone(self, size: int) -> None:
        self.live -= size
