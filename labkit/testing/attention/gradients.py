"""Gradients of a function whose two passes are two calls, which may run in another process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class ByStep(torch.autograd.Function):
    """`ByStep.apply(forward, step, *inputs)`: the output by one call, the gradients by another, for torch's gradcheck.

    `step(*inputs, d_out)` gives the inputs' gradients. Either may run in another process.
    """

    @staticmethod
    def forward(ctx: Any, forward: Callable[..., Any], step: Callable[..., Any], *inputs: torch.Tensor) -> Any:
        """See `torch.autograd.Function`."""
        ctx.step = step
        ctx.save_for_backward(*inputs)
        return forward(*inputs).detach()

    @staticmethod
    def backward(ctx: Any, d_out: torch.Tensor) -> Any:  # type: ignore[override]
        """See `torch.autograd.Function`."""
        with torch.enable_grad():
            return None, None, *ctx.step(*ctx.saved_tensors, d_out)
