"""What the adapters of all labs share: options, the course's cache, and how heads are handed over.

An adapter is an attention of `labkit.model`: `adapter(layer, q, k, v)`, with q (H, n, d) and k, v (H_kv, n, d) of the
new tokens. `student` is the lab's module with its calls counted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from importlib import import_module
from typing import Any, ClassVar

import torch

from labkit.chat.calls import Counted
from labkit.chat.setting import Setting
from labkit.model.attention import Cache, CachedAttention, expanded
from labkit.model.llama import Attend

TILE = 256
"""Rows and columns of a tile of scores."""


def adapter_of(number: str) -> type[Adapter]:
    """The `ADAPTER` of the lab's file in this folder; a lab with several chooses by the setting: `Adapter.chosen`."""
    found: type[Adapter] = import_module(f"labkit.chat.adapters.lab{number}").ADAPTER
    return found


class Adapter(ABC):
    """What adapters have in common: options they take, and a cache of the course's own for those that have none."""

    takes: ClassVar[tuple[str, ...]] = ()
    """Options of `lab chat` that mean something here."""
    attends: ClassVar[str] = ""
    """The function whose memory is measured; "" for an adapter that leaves attention to the course."""
    is_numpy = False
    asks_one_by_one = False
    """Whether each query is a call of its own: its memory is then measured for the last one alone."""
    has_own_cache = False
    sees_less = False
    """Whether the result may differ from that of full attention: perplexity then says how much is lost."""

    compared_with = "torch's own attention"
    """What computes the answer's text once more, to compare."""
    cache_note = ""
    """Whose cache it is, where it is neither the course's nor found by `tensors_in`."""

    def __init__(self, student: Any, setting: Setting) -> None:
        self.student, self.setting = student, setting
        self.caches: dict[int, Any] = {}

    @classmethod
    def chosen(cls, setting: Setting) -> type[Adapter]:
        """The class for these options; another one than this where an option asks for it."""
        return cls

    @abstractmethod
    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """See `labkit.model.llama.Attend`."""

    def so_far(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """All keys and values of a layer, from the course's cache, after these are added."""
        return self.caches.setdefault(layer, Cache()).append(k, v)

    def cache_bytes(self, tokens: int) -> int:
        """The bytes of a cache of `tokens` tokens in all layers, by the lab's formula."""
        return self.setting.sizes.cache_bytes(tokens)

    def reference(self) -> Attend:
        """The attention with which an answer is compared."""
        return CachedAttention()

    def notes(self) -> list[str]:
        """What else there is to say after the answer."""
        return []


def per_query_head(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values once for each query head, for the labs whose heads do not share them."""
    group = q.shape[-3] // k.shape[-3]
    return expanded(k, group), expanded(v, group)


def square_or_rows(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A whole text for causal attention (H, n, d); or a single query's group of heads as rows (H_kv, H / H_kv, d)."""
    if q.shape[-2] == 1:
        return q.reshape(len(k), -1, q.shape[-1]), k, v
    return q, *per_query_head(q, k, v)


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
