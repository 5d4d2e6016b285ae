"""Lab 09 in the model: the lab's own cache, and query heads that share key heads without copies of them."""

from __future__ import annotations

import torch

from labkit.chat.adapters.base import Adapter
from labkit.chat.setting import Setting, checked

BLOCK = 16
"""Tokens in a block of a paged cache."""


class CachedDecoding(Adapter):
    """Lab 09: the lab's own cache, and query heads that share key heads without copies of them."""

    attends = "grouped_query_attention"
    takes = ("paged",)
    has_own_cache = True

    @classmethod
    def chosen(cls, setting: Setting) -> type[Adapter]:
        """See `Adapter`."""
        return PagedDecoding if setting.paged else cls

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """See `labkit.model.llama.Attend`."""
        o, _ = self.student.grouped_query_attention(q, *self.so_far(layer, k, v), causal=q.shape[-2] > 1)
        return checked(o, q, "grouped_query_attention")

    def so_far(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Adapter`: from the lab's own cache."""
        if layer not in self.caches:
            sizes = self.setting.sizes
            self.caches[layer] = self.student.KVCache(self.setting.max_tokens, sizes.kv_heads, sizes.head_dim, k.dtype)
        cache = self.caches[layer]
        cache.append(k, v)
        return cache.keys, cache.values


class PagedDecoding(Adapter):
    """Lab 09 with `--paged`: blocks that a manager allocates, and attention that finds tokens by the table."""

    attends = "grouped_query_attention"
    has_own_cache = True

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """See `labkit.model.llama.Attend`."""
        n, n_blocks = q.shape[-2], -(-self.setting.max_tokens // BLOCK)
        if layer == 0:
            self._allocate(n, n_blocks)
        if layer not in self.caches:
            self.caches[layer] = torch.zeros(2, n_blocks, BLOCK, *k.transpose(0, 1).shape[1:])
        at = torch.arange(self.length - n, self.length)
        cache, blocks = self.caches[layer], self.table[at // BLOCK]
        for kept, new in zip(cache, (k, v), strict=True):
            kept[blocks, at % BLOCK] = new.transpose(0, 1)
        if n > 1:
            o, _ = self.student.grouped_query_attention(q, k, v, causal=True)
            return checked(o, q, "grouped_query_attention")
        o = self.student.paged_attention(q.transpose(0, 1), *cache, self.table[None], torch.tensor([self.length]))
        return checked(o, q.transpose(0, 1), "paged_attention").transpose(0, 1)

    def _allocate(self, n: int, n_blocks: int) -> None:
        """Get blocks for n more tokens of the one sequence."""
        if not hasattr(self, "manager"):
            self.manager, self.length = self.student.BlockManager(n_blocks, BLOCK), n
            self.manager.allocate("text", list(range(n)))
        else:
            self.length += n
            self.manager.append("text", self.length)
        table = self.manager.block_table("text")
        self.table = torch.tensor([*table, *[-1] * (n_blocks - len(table))])

    def cache_bytes(self, tokens: int) -> int:
        """See `Adapter`: whole blocks."""
        return super().cache_bytes(-(-tokens // BLOCK) * BLOCK)


ADAPTER = CachedDecoding
