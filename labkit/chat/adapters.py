"""How the functions of each lab serve as the model's attention or cache: one adapter per lab, called as the lab says.

An adapter is an attention of `labkit.model`: `adapter(layer, q, k, v)`, with q (H, n, d) and k, v (H_kv, n, d) of the
new tokens. `student` is the lab's module with its calls counted.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar

import torch

from labkit.chat.calls import Counted
from labkit.chat.places import ADAPTERS
from labkit.chat.setting import Setting, checked
from labkit.model.attention import Cache, expanded, grouped_attention

TILE = 256
"""Rows and columns of a tile of scores."""
BLOCK = 16
"""Tokens in a block of a paged cache."""
RANKS = 4
GROUP = 32
"""Numbers that share a scale in Lab 12."""


class Adapter(ABC):
    """What adapters have in common: options they take, and a cache of the course's own for those that have none."""

    takes: ClassVar[tuple[str, ...]] = ()
    """Options of `lab chat` that mean something here."""
    attends: ClassVar[str]
    """The function whose memory is measured."""
    is_numpy = False
    asks_one_by_one = False
    """Whether each query is a call of its own: its memory is then measured for the last one alone."""
    has_own_cache = False
    sees_less = False
    """Whether the result may differ from that of full attention: perplexity then says how much is lost."""

    def __init__(self, student: Any, setting: Setting) -> None:
        self.student, self.setting = student, setting
        self.caches: dict[int, Any] = {}

    @abstractmethod
    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """See `labkit.model.llama.Attend`."""

    def so_far(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """All keys and values of a layer, from the course's cache, after these are added."""
        return self.caches.setdefault(layer, Cache()).append(k, v)

    def cache_bytes(self, tokens: int) -> int:
        """The bytes of a cache of `tokens` tokens in all layers, by the lab's formula."""
        return self.setting.sizes.cache_bytes(tokens)

    def notes(self) -> list[str]:
        """What else there is to say after the answer."""
        return []


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


class FlashAttention(Adapter):
    """Lab 05: FlashAttention for the prompt and for each token after it."""

    attends = "flash_forward"

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """See `labkit.model.llama.Attend`."""
        rows, keys, values = square_or_rows(q, *self.so_far(layer, k, v))
        O, _ = self.student.flash_forward(rows, keys, values, causal=q.shape[-2] > 1, block_q=TILE, block_k=TILE)
        return checked(O, rows, "flash_forward").reshape(q.shape)


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


class CachedDecoding(Adapter):
    """Lab 09: the lab's own cache, and query heads that share key heads without copies of them."""

    attends = "grouped_query_attention"
    takes = ("paged",)
    has_own_cache = True

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """See `labkit.model.llama.Attend`."""
        if layer not in self.caches:
            sizes = self.setting.sizes
            self.caches[layer] = self.student.KVCache(self.setting.max_tokens, sizes.kv_heads, sizes.head_dim, k.dtype)
        cache = self.caches[layer]
        cache.append(k, v)
        o, _ = self.student.grouped_query_attention(q, cache.keys, cache.values, causal=q.shape[-2] > 1)
        return checked(o, q, "grouped_query_attention")


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


class RingAttention(Adapter):
    """Lab 11: four ranks share the prompt, filled up to a multiple of 8; one more token is computed by torch."""

    attends = "ring_attention_forward"

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """See `labkit.model.llama.Attend`."""
        from labkit.ranks.threads import run_ranks

        keys, values = self.so_far(layer, k, v)
        n = q.shape[-2]
        if n == 1:
            return grouped_attention(q, keys, values)
        more = -n % (2 * RANKS)
        shards = [self.student.shard(torch.nn.functional.pad(x, (0, 0, 0, more)), RANKS, "zigzag") for x in (q, k, v)]
        ring = partial(self.student.ring_attention_forward, causal=True, layout="zigzag")
        ran = run_ranks(ring, list(zip(*shards, strict=True)))
        self.sent_bytes, self.seq_len = [each.sent_bytes for each in ran.traffic], n + more
        output = self.student.unshard([o for o, _ in ran.results], "zigzag")[..., :n, :]
        return checked(output, q, "ring_attention_forward")

    def notes(self) -> list[str]:
        """See `Adapter`."""
        from labkit.testing.rings import Sizes, sent_bytes

        sizes = self.setting.sizes
        formula = sent_bytes(
            Sizes("ring", RANKS, self.seq_len, sizes.heads, sizes.kv_heads, sizes.head_dim, 4), backward=False
        )
        counted = f"{max(self.sent_bytes):,}"
        return [
            f"{RANKS} ranks with {self.seq_len // RANKS} tokens each: a rank sent {counted} bytes per layer; "
            f"by the formula {formula:,}"
        ]


class FewBits(Adapter):
    """Lab 12: keys and values in a few bits; the newest tokens, up to a group of 32, wait as they are."""

    attends = "dequantize_kv"
    takes = ("bits", "window", "sinks")
    has_own_cache = sees_less = True
    default_bits = 4

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """See `labkit.model.llama.Attend`."""
        packed, *rest = self.caches.get(layer, (None, k[:, :0], v[:, :0]))
        k, v = (torch.cat([old, new], -2) for old, new in zip(rest, (k, v), strict=True))
        whole = k.shape[-2] // GROUP * GROUP
        if whole:
            group = math.gcd(GROUP, v.shape[-1])
            new = self.student.quantize_kv(k[:, :whole], v[:, :whole], self.setting.bits or self.default_bits, group)
            packed = joined(packed, new)
            k, v = k[:, whole:].clone(), v[:, whole:].clone()
        self.caches[layer] = packed, k, v
        if packed is not None:
            restored = self.student.dequantize_kv(packed)
            k, v = (torch.cat([old, new], -2) for old, new in zip(restored, (k, v), strict=True))
        return checked(grouped_attention(q, k, v), q, "dequantize_kv, with what follows from it,")

    def cache_bytes(self, tokens: int) -> int:
        """See `Adapter`: bits + 32 / group bits per number, and 32 for those that wait."""
        bits = self.setting.bits or self.default_bits
        whole, group = tokens // GROUP * GROUP, math.gcd(GROUP, self.setting.sizes.head_dim)
        return super().cache_bytes(whole) * (bits + 32 // group) // 32 + super().cache_bytes(tokens - whole)


class WindowWithSinks(Adapter):
    """Lab 12 with `--window` or `--sinks`: only the first and the last tokens, rotated to their places in the cache."""

    attends = "attention_with_sinks"
    has_own_cache = sees_less = True
    rotates = True
    default_window, default_sinks = 64, 4

    def __init__(self, student: Any, setting: Setting) -> None:
        super().__init__(student, setting)
        self.window = setting.window or self.default_window
        self.sinks = self.default_sinks if setting.sinks is None else setting.sinks
        module = getattr(student, "counted", student)
        if hasattr(module, "rotate"):  # it is given to students, with another model's base
            module.rotate = partial(module.rotate, base=setting.sizes.rotary_base)

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """See `labkit.model.llama.Attend`."""
        held = self.caches.get(layer, (k[:, :0], v[:, :0]))
        k, v = (torch.cat([old, new], -2) for old, new in zip(held, (halves(k), v), strict=True))
        o, _ = self.student.attention_with_sinks(halves(q), *per_query_head(q, k, v), self.window, self.sinks)
        if k.shape[-2] > self.window + self.sinks:
            k, v = (torch.cat([x[:, : self.sinks], x[:, -self.window :]], -2) for x in (k, v))
        self.caches[layer] = k, v
        return checked(o, q, "attention_with_sinks")

    def cache_bytes(self, tokens: int) -> int:
        """See `Adapter`."""
        return super().cache_bytes(min(tokens, self.window + self.sinks))


def adapter_of(number: str, setting: Setting, *, paged: bool = False) -> type[Adapter]:
    """The adapter for a lab and the options given."""
    if number == "09" and paged:
        return PagedDecoding
    if number == "12" and (setting.window is not None or setting.sinks is not None):
        return WindowWithSinks
    found: type[Adapter] = globals()[ADAPTERS[number]]
    return found


def per_query_head(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values once for each query head, for the labs whose heads do not share them."""
    group = q.shape[-3] // k.shape[-3]
    return expanded(k, group), expanded(v, group)


def square_or_rows(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A whole text for causal attention (H, n, d); or a single query's group of heads as rows (H_kv, H / H_kv, d)."""
    if q.shape[-2] == 1:
        return q.reshape(len(k), -1, q.shape[-1]), k, v
    return q, *per_query_head(q, k, v)


def halves(x: torch.Tensor) -> torch.Tensor:
    """Lab 12 turns number i with number i + d/2, the model neighbours: the same numbers in another order."""
    return torch.cat([x[..., 0::2], x[..., 1::2]], -1)


def joined(old: dict[str, Any] | None, new: dict[str, Any]) -> dict[str, Any]:
    """Two quantized caches, one after the other: tokens are the axis before the last in each of their tensors."""
    if old is None:
        return new
    return {name: torch.cat([old[name], x], -2) if isinstance(x, torch.Tensor) else x for name, x in new.items()}


def tensors_in(tree: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested tuples, lists and dicts, and in a cache's attributes `keys` and `values`."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, Counted):
        yield from (tree.keys, tree.values)
    elif isinstance(tree, dict):
        yield from (x for each in tree.values() for x in tensors_in(each))
    elif isinstance(tree, tuple | list):
        yield from (x for each in tree for x in tensors_in(each))
