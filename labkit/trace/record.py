"""Runs a function under the meter that follows every block of memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from labkit.meters.tracing import Trace, TracingMeter


def record(function: Callable[..., Any], arguments: Sequence[Any], *, backward: bool = True) -> Trace:
    """Call `function(*arguments)`, then its backward pass where results require grad, and follow what is allocated.

    The gradients of the results are ones, made when the forward pass is over. Arguments are there before and do not
    count; what the backward pass leaves behind are their gradients.
    """
    meter = TracingMeter()
    with meter:
        results = function(*arguments)
        meter.mark_forward_done()
        leading = [leaf for leaf in tree_leaves(results) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        if backward and leading:
            torch.autograd.backward(leading, [torch.ones_like(leaf) for leaf in leading])
    return meter.finish()
