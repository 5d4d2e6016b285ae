"""Lab 12 in the model: keys and values in a few bits; the newest tokens, up to a group of 32, wait as they are."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch

from labkit.chat.adapters.base import Adapter, per_query_head
from labkit.chat.setting import Setting, checked
from labkit.model.attention import grouped_attention

GROUP = 32
"""Numbers that share a scale."""


class FewBits(Adapter):
    """Lab 12: keys and values in a few bits; the newest tokens, up to a group of 32, wait as they are."""

    attends = "dequantize_kv"
    takes = ("bits", "window", "sinks")
    has_own_cache = sees_less = True
    default_bits = 4

    @classmethod
    def chosen(cls, setting: Setting) -> type[Adapter]:
        """See `Adapter`."""
        return cls if setting.window is None and setting.sinks is None else WindowWithSinks

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """See `labkit.model.llama.Attend`."""
        found = grouped_attention(q, *self.so_far(layer, k, v))
        return checked(found, q, "dequantize_kv, with what follows from it,")

    def so_far(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Adapter`: what the lab's few bits keep."""
        packed, *rest = self.caches.get(layer, (None, k[:, :0], v[:, :0]))
        k, v = (torch.cat([old, new], -2) for old, new in zip(rest, (k, v), strict=True))
        whole = k.shape[-2] // GROUP * GROUP
        if whole:
            group = math.gcd(GROUP, v.shape[-1])
            new = self.student.quantize_kv(k[:, :whole], v[:, :whole], self.setting.bits or self.default_bits, group)
            packed = joined(packed, new)
            k, v = k[:, whole:].clone(), v[:, whole:].clone()
        self.caches[layer] = packed, k, v
        if packed is None:
            return k, v
        restored_k, restored_v = self.student.dequantize_kv(packed)
        return torch.cat([restored_k, k], -2), torch.cat([restored_v, v], -2)

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


def halves(x: torch.Tensor) -> torch.Tensor:
    """Lab 12 turns number i with number i + d/2, the model neighbours: the same numbers in another order."""
    return torch.cat([x[..., 0::2], x[..., 1::2]], -1)


def joined(old: dict[str, Any] | None, new: dict[str, Any]) -> dict[str, Any]:
    """Two quantized caches, one after the other: tokens are the axis before the last in each of their tensors."""
    if old is None:
        return new
    return {name: torch.cat([old[name], x], -2) if isinstance(x, torch.Tensor) else x for name, x in new.items()}


ADAPTER = FewBits
