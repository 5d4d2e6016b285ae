"""Notes what arrays pass by while other code runs: those of one shape, and how many masks are made."""

import math
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from labkit.meters.products import ProductMeter


class ArraysSeen(ProductMeter):
    """Between entering and leaving, holds every array of `shape` that an operator reads or makes.

    Leading axes may be taken together, as products of matrices do. All stay in memory until the meter goes: nothing
    that is measured besides means anything. `n_masks` is the number of memories of bool that hold as many numbers as
    a square of the shape's last axis but one, copies that only exchange True and False left out.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape
        self.arrays: dict[int, torch.Tensor] = {}
        self._masks: dict[int, torch.Tensor] = {}

    @property
    def n_masks(self) -> int:
        """How many masks were made."""
        return len(self._masks)

    def leaves(self) -> list[torch.Tensor]:
        """The arrays to which a backward pass has brought a gradient."""
        return [x for x in self.arrays.values() if _is_leaf(x) and x.grad is not None]

    def _see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = super()._see(func, args, kwargs)
        for x in filter(torch.is_tensor, tree_leaves((args, kwargs, out))):
            if x.numel() == math.prod(self.shape) and x.shape[-2:] == self.shape[-2:]:
                self.arrays[id(x)] = x
        if "_not" in func._schema.name and not func._schema.name.endswith("_not_"):
            return out
        for x in filter(torch.is_tensor, tree_leaves(out)):
            if x.dtype == torch.bool and x.numel() == self.shape[-2] ** 2:
                self._masks[x.untyped_storage()._cdata] = x
        return out


def _is_leaf(x: torch.Tensor) -> bool:
    try:
        return x.requires_grad and x.is_leaf
    except RuntimeError:  # a view of what was changed since, of which autograd says nothing
        return False
