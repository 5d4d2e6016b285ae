"""Bytes that a forward pass keeps for its backward pass."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from labkit.meters.allocation import AllocationMeter


def kept_by_forward(fn: Callable[..., Any], *args: Any) -> int:
    """Bytes that `fn(*args)` allocates and that stay alive with its output, without the output itself.

    That is what autograd saves, each storage once, beside what `args` and the output hold, and what is hidden from its
    hooks as well: a tensor that a custom Function keeps as an attribute of `ctx`, or what `torch.utils.checkpoint`
    holds. On the CPU and on meta tensors only.
    """
    if hasattr(fn, "__beside__"):
        return fn.__beside__(kept_by_forward, *args)
    with AllocationMeter() as meter:
        output = fn(*args)
    blocks = {meter.block_of(tensor) for tensor in _tensors(output)}
    return meter.live_bytes - sum(block.nbytes for block in blocks if block is not None)


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    for leaf in tree_leaves(tree):
        if isinstance(leaf, torch.nn.Module):
            yield from leaf.parameters()
            yield from leaf.buffers()
        elif isinstance(leaf, torch.Tensor):
            yield leaf
