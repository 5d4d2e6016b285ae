"""Lab 03 in the model: one query at a time over blocks of keys and values, each block seen once."""

from __future__ import annotations

import torch

from labkit.chat.adapters.base import TILE, Adapter, per_query_head
from labkit.chat.setting import checked


class OnlineAttention(Adapter):
    """Lab 03: one query at a time over blocks of keys and values, each block seen once."""

    attends = "online_attention"
    is_numpy = asks_one_by_one = True

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """See `labkit.model.llama.Attend`."""
        keys, values = (x.numpy() for x in per_query_head(q, *self.so_far(layer, k, v)))
        n, n_keys = q.shape[-2], keys.shape[-2]
        rows = []
        for i in range(n):
            seen = n_keys - n + i + 1
            blocks = [slice(at, min(at + TILE, seen)) for at in range(0, seen, TILE)]
            K_blocks, V_blocks = ([x[:, block] for block in blocks] for x in (keys, values))
            row = self.student.online_attention(q[:, i].numpy(), K_blocks, V_blocks)
            rows.append(checked(row, q[:, i], "online_attention"))
        return torch.stack(rows, -2)


ADAPTER = OnlineAttention
