"""Queries, keys and values drawn to resemble those of a layer, where no model is at hand."""

from __future__ import annotations

import math

import torch


def layer_sample(
    *, heads: int = 4, n_tokens: int = 256, n_queries: int = 16, d: int = 32, seed: int = 12
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q (heads, n_queries, d), k and v (heads, n_tokens, d), float32, all queries after all keys.

    What is said of trained models, each by one line: heads resemble one another and lie in few directions; three
    channels of K, and none of V, lie far from 0; queries look at what is near; and where they look for nothing they
    look at the first token, whose value is small. With another mixture the order of schemes is another.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    k, v = (normal(n_tokens, 10) @ normal(10, d) / 3 + 0.25 * normal(heads, n_tokens, d) for _ in range(2))
    q = normal(heads, n_queries, d)
    k[..., :3] += torch.tensor([12.0, -9.0, 7.0])
    angles = math.pi * (torch.arange(n_tokens) + 1) / n_tokens
    k[..., 3], k[..., 4], q[..., 3], q[..., 4] = 5 * angles.cos(), 5 * angles.sin(), -4, 0
    k[..., 5], q[..., 5], k[:, 0, 5] = 0, 6, 10
    v[:, 0] *= 0.1
    return q, k, v
