"""Lab 08 in the model: each token sees the last `window` tokens, in every layer."""

from __future__ import annotations

import torch

from labkit.chat.adapters.base import TILE, Adapter, per_query_head
from labkit.chat.setting import checked


class SlidingWindow(Adapter):
    """Lab 08: each token sees the last `window` tokens, in every layer.

    For one new token the lab's function gets the window's keys; of its queries only the last one is not 0.
    """

    attends = "sliding_window_attention"
    takes = ("window",)
    sees_less = True
    default_window = 64

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """See `labkit.model.llama.Attend`."""
        window = self.setting.window or self.default_window
        keys, values = self.so_far(layer, k, v)
        if q.shape[-2] == 1:
            keys, values = (x[..., -window:, :] for x in (keys, values))
        keys, values = per_query_head(q, keys, values)
        queries = torch.zeros_like(keys)
        queries[..., -q.shape[-2] :, :] = q
        output = self.student.sliding_window_attention(queries, keys, values, window, min(TILE, window))
        return checked(output, queries, "sliding_window_attention")[..., -q.shape[-2] :, :]

    def cache_bytes(self, tokens: int) -> int:
        """See `Adapter`: a cache needs no more than the window, and the course's own keeps everything."""
        return super().cache_bytes(min(tokens, self.setting.window or self.default_window))


ADAPTER = SlidingWindow
