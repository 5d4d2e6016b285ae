"""Small functions whose memory is known to the byte: what meters, and tests of meters, are tried on."""

from __future__ import annotations

import math
from typing import Any

import torch


def softmax(scores: torch.Tensor) -> torch.Tensor:
    """The softmax along the last axis, written out."""
    shifted = scores - scores.max(-1, keepdim=True)[0]
    exponentials = shifted.exp()
    return exponentials / exponentials.sum(-1, keepdim=True)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention of `(..., N, d)` with every intermediate in memory, its softmax written out."""
    return softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])) @ v


def attention_built_in(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention of `(..., N, d)`, its softmax one operator."""
    return (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).softmax(-1) @ v


def leaf(*shape: int, **options: Any) -> torch.Tensor:
    """Ones that require a gradient."""
    return torch.ones(shape, requires_grad=True, **options)


class Doubled(torch.autograd.Function):
    """2x, with a factor saved that it made itself."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """As autograd asks for it."""
        factor = torch.full_like(x, 2.0)
        ctx.save_for_backward(factor)
        return x * factor

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        """As autograd asks for it."""
        return gradient * ctx.saved_tensors[0]
