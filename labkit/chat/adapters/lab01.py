"""Lab 01 in the model: standard attention with its whole weight matrix, for the whole text again with each token."""

from __future__ import annotations

import torch

from labkit.chat.adapters.base import Adapter, per_query_head
from labkit.chat.setting import checked


class TextbookAttention(Adapter):
    """Lab 01: standard attention with its whole weight matrix, for the whole text again with each token."""

    attends = "standard_attention"
    takes = ("show",)
    is_numpy = True
    sees_whole_text = True

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """See `labkit.model.llama.Attend`."""
        k, v = per_query_head(q, k, v)
        hidden = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).triu(1).numpy()
        output, _ = self.student.standard_attention(q.numpy(), k.numpy(), v.numpy(), mask=hidden)
        return checked(output, q, "standard_attention")


ADAPTER = TextbookAttention
