"""ConvE (Dettmers et al., 2018): f(h, r)·t + b_t, where f convolves the rows of h and r, stacked as one image.

32 filters of 3 × 3, batch normalization without scale and shift, and no bias in the layers, as in LibKGE. An entity's
row ends with its bias. It asks for tails only, so it needs reciprocal relations.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from grash.errors import ConfigError
from grash.models.autograd import AutogradModel, batch_norm
from grash.models.base import Side, Weight, joined

_CHANNELS, _FILTER = 32, 3


class ConvE(AutogradModel):
    name = "conve"
    needs_reciprocal = True
    dropouts = ("dropout_input", "dropout_features", "dropout_query")
    n_biases = 1

    @classmethod
    def check_dim(cls, dim: int) -> None:
        height = image_height(dim)
        if height < 2:
            raise ConfigError(
                f"dim={dim} is not possible for conve, which needs an image of at least 2 × 4: give 2·n² or another "
                f"number with many divisors, e.g. 8, 32, 128 or 200."
            )

    @classmethod
    def weight_shapes(cls, dim: int) -> dict[str, Weight]:
        filters = {"filters": Weight((_CHANNELS, 1, _FILTER, _FILTER)), "projection": Weight((dim, _map_floats(dim)))}
        return filters | batch_norm("map_norm", _CHANNELS) | batch_norm("query_norm", dim)

    @classmethod
    def query_floats(cls, dim: int) -> int:
        return 5 * _map_floats(dim) + 6 * dim

    def query(self, known: Tensor, relation: Tensor, side: Side) -> Tensor:
        height = image_height(self.dim)
        image = joined(known[:, : self.dim], relation).view(-1, 1, 2 * height, self.dim // height)
        maps = F.conv2d(self.dropped(image, "dropout_input"), self.weights["filters"])
        maps = self.dropped(F.relu(self.normalized(maps, "map_norm")), "dropout_features", channels=True)
        found = self.dropped(maps.flatten(1) @ self.weights["projection"].T, "dropout_query")
        found = F.relu(self.normalized(found, "query_norm"))
        return joined(found, torch.ones_like(found[:, :1]))  # 1 times the candidate's bias


def image_height(dim: int) -> int:
    """Return the height of an entity's image: the largest divisor of dim that is at most half of the width."""
    return max((n for n in range(1, math.isqrt(max(dim, 2) // 2) + 1) if dim % n == 0), default=0)


def _map_floats(dim: int) -> int:
    """Return the floats of all feature maps of one query."""
    height = image_height(dim)
    return _CHANNELS * (2 * height - _FILTER + 1) * (dim // height - _FILTER + 1)
