"""Lab 14 in the model: each token reads the pages of the cache that its bounds rank best."""

from __future__ import annotations

import torch

from labkit.chat.adapters.base import Adapter
from labkit.chat.setting import checked
from labkit.model.attention import grouped_attention


class SelectedPages(Adapter):
    """Lab 14: each token reads the pages of the cache that its bounds rank best; the first two layers read all.

    Quest reads the first two layers whole (Tang et al. 2024): there attention is spread out.
    """

    attends = "selected_decode"
    asks_one_by_one = sees_less = True
    page, budget, whole_layers = 16, 8, 2

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """See `labkit.model.llama.Attend`."""
        keys, values = self.so_far(layer, k, v)
        if layer < self.whole_layers and self.setting.sizes.layers > self.whole_layers:
            return grouped_attention(q, keys, values)
        n, n_keys, kv_heads = q.shape[-2], keys.shape[-2], keys.shape[-3]
        rows = []
        for i in range(n):
            seen = n_keys - n + i + 1
            lows, highs = self.student.page_bounds(keys[:, :seen], self.page)
            scores = self.student.page_scores(q[:, i], lows, highs)
            pages = self.student.select_pages(scores, kv_heads, self.budget, (seen - 1) // self.page)
            o, _ = self.student.selected_decode(q[:, i], keys[:, :seen], values[:, :seen], pages, self.page)
            rows.append(checked(o, q[:, i], "selected_decode"))
        return torch.stack(rows, -2)


ADAPTER = SelectedPages
