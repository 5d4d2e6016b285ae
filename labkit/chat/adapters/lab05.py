"""Lab 05 in the model: FlashAttention for the prompt and for each token after it."""

from __future__ import annotations

import torch

from labkit.chat.adapters.base import TILE, Adapter, square_or_rows
from labkit.chat.setting import checked


class FlashAttention(Adapter):
    """Lab 05: FlashAttention for the prompt and for each token after it."""

    attends = "flash_forward"

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """See `labkit.model.llama.Attend`."""
        rows, keys, values = square_or_rows(q, *self.so_far(layer, k, v))
        O, _ = self.student.flash_forward(rows, keys, values, causal=q.shape[-2] > 1, block_q=TILE, block_k=TILE)
        return checked(O, rows, "flash_forward").reshape(q.shape)


ADAPTER = FlashAttention
