"""Lab 04 in the model: attention in tiles; a single query sees all keys, so no mask is needed for it."""

from __future__ import annotations

import torch

from labkit.chat.adapters.base import TILE, Adapter, square_or_rows
from labkit.chat.setting import checked


class TiledAttention(Adapter):
    """Lab 04: attention in tiles; a single query sees all keys, so no mask is needed for it."""

    attends = "tiled_attention"
    is_numpy = True

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """See `labkit.model.llama.Attend`."""
        rows, keys, values = square_or_rows(q, *self.so_far(layer, k, v))
        arrays = rows.numpy(), keys.numpy(), values.numpy()
        output = self.student.tiled_attention(*arrays, TILE, TILE, causal=q.shape[-2] > 1)
        return checked(output, rows, "tiled_attention").reshape(q.shape)


ADAPTER = TiledAttention
