"""Attention by torch's own functions with a cache of keys and values: the reference for all others."""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention


class Cache:
    """The keys and values of one layer, (..., H_kv, length, d), in memory that doubles when it is full."""

    def __init__(self) -> None:
        self.length = 0
        self._held: tuple[torch.Tensor, torch.Tensor] | None = None

    def append(self, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Add the keys and values of n tokens; returns views of all so far."""
        start, self.length = self.length, self.length + k.shape[-2]
        if self._held is None or self.length > self._held[0].shape[-2]:
            room = 2 * self.length if start else self.length + 64
            fresh = tuple(x.new_empty(*x.shape[:-2], room, x.shape[-1]) for x in (k, v))
            if self._held is not None:
                for new, old in zip(fresh, self._held, strict=True):
                    new[..., :start, :] = old[..., :start, :]
            self._held = fresh[0], fresh[1]
        for held, x in zip(self._held, (k, v), strict=True):
            held[..., start : self.length, :] = x
        keys, values = (held[..., : self.length, :] for held in self._held)
        return keys, values


class CachedAttention:
    """Causal attention of new tokens over all tokens so far; grouped heads are never expanded for a single query."""

    def __init__(self) -> None:
        self._caches: dict[int, Cache] = {}

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """See `labkit.model.llama.Attend`."""
        keys, values = self._caches.setdefault(layer, Cache()).append(k, v)
        return grouped_attention(q, keys, values)

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        return self._caches[0].length if self._caches else 0


def grouped_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention of q (..., H, n, d), the last n tokens, over k and v (..., H_kv, N, d); causal, aligned at the end."""
    n, n_keys, group = q.shape[-2], k.shape[-2], q.shape[-3] // k.shape[-3]
    if n == 1:  # the queries of a group become the rows of one attention
        rows = q.squeeze(-2).unflatten(-2, (-1, group))
        return scaled_dot_product_attention(rows, k, v).flatten(-3, -2).unsqueeze(-2)
    k, v = (expanded(x, group) for x in (k, v))
    if n == n_keys:
        return scaled_dot_product_attention(q, k, v, is_causal=True)
    sees = torch.ones(n, n_keys, dtype=torch.bool).tril(n_keys - n)
    return scaled_dot_product_attention(q, k, v, attn_mask=sees)


def expanded(x: torch.Tensor, group: int) -> torch.Tensor:
    """Keys or values (..., H_kv, N, d) once for each query head, (..., H_kv · group, N, d)."""
    return x.repeat_interleave(group, -3)
