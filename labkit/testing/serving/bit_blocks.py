"""Reference for a cache of few bits a number: the numbers as they are kept, and attention over them."""

from __future__ import annotations

import torch


def rounded(x: torch.Tensor, bits: int) -> torch.Tensor:
    """What `bits` bits a number keep of x (..., d): 2^bits steps from the least of each row to its largest.

    The least and the size of a step are rounded to float16 first.
    """
    scale, zero = scale_and_zero(x, bits)
    return steps_of(x, scale, zero).round().clamp(0, 2**bits - 1) * scale + zero


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, first: int | None = None, masked_from: int = 0
) -> torch.Tensor:
    """Attention of n tokens, q (n, H, d), over N, k and v (N, H_kv, d); the first at `first`, N − n if None.

    Keys before `masked_from` are seen by all queries.
    """
    n, heads, d = q.shape
    first = len(k) - n if first is None else first
    k, v = (x[:, :, None].expand(-1, -1, heads // x.shape[1], -1).flatten(1, 2).transpose(0, 1) for x in (k, v))
    key = torch.arange(k.shape[1])
    hidden = (key >= masked_from) & (key > first + torch.arange(n)[:, None])
    scores = (q.transpose(0, 1) @ k.mT * d**-0.5).masked_fill(hidden, -torch.inf)
    return (scores.softmax(-1) @ v).transpose(0, 1)


def scale_and_zero(x: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The size of a step and the least number of each row, rounded to float16."""
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    return ((high - low) / (2**bits - 1)).half().to(x.dtype), low.half().to(x.dtype)


def steps_of(x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    """Where each number lies, in steps; 0 where the scale is."""
    return torch.where(scale == 0, 0, (x - zero) / torch.where(scale == 0, 1, scale))
