"""Bytes that a forward pass keeps for its backward pass."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from labkit.meters.allocation import AllocationMeter


def saved_for_backward(fn: Callable[..., Any], *args: Any) -> int:
    """Bytes of the tensors autograd saves while `fn(*args)` runs, each storage once, inputs and output left out.

    Inputs are the tensors among `args` (in lists and dicts too) and, where `fn` or an argument is a module, its
    parameters and buffers. A view saved of an input is the input. Works on any device, the simulated one included.

    What is hidden from autograd's hooks is not in it: a tensor that a custom Function keeps as an attribute of `ctx`,
    and what `torch.utils.checkpoint` holds. `kept_by_forward` finds both.
    """
    if hasattr(fn, "__measure__"):  # fn lives in another process, and is measured there
        return fn.__measure__("saved_for_backward", args, {})
    saved: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        saved[storage._cdata] = storage
        return tensor.detach()  # the output itself, kept by its own graph, would never be released

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = fn(*args)
    left_out = {tensor.untyped_storage()._cdata for tensor in _tensors((getattr(fn, "__self__", fn), args, output))}
    return sum(storage.nbytes() for key, storage in saved.items() if key not in left_out)


def kept_by_forward(fn: Callable[..., Any], *args: Any) -> int:
    """Bytes that `fn(*args)` allocates and that are still alive while its output is, the output itself left out.

    For a function that hides nothing this equals `saved_for_backward`. On the CPU and on meta tensors only.
    """
    if hasattr(fn, "__measure__"):
        return fn.__measure__("kept_by_forward", args, {})
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
