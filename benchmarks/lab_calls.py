"""The labs' functions of tensors, each as a call with q, k and v, for any device; the solutions compute where q is."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from benchmarks.harness import solution_module

BLOCK = 4
"""Tokens of a block of the paged cache."""
READS_NUMBERS = {"09 paged_attention", "12 quantized", "14 selected_decode", "14 block_sparse_attention"}
"""A length, whether a scale is finite, which pages are chosen: nothing on meta can say."""


def shapes(n: int, d: int) -> tuple[tuple[int, ...], ...]:
    """Of q, k and v: two sequences of n tokens, six heads in two groups; the values are wider than the keys."""
    return (2, 6, n, d), (2, 2, n, d), (2, 2, n, d + d // 2)


def arguments(device: str, n: int, d: int) -> list[torch.Tensor]:
    """q, k and v, float32, the same on every device."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).to(device) for shape in shapes(n, d)]


def calls(n: int, d: int, block: int) -> dict[str, Callable[..., Any]]:
    """By lab and name, functions of `arguments(device, n, d)`; tiles are `block` tokens wide, n at least 2d."""
    flash, checkpointing, linear, sliding, decoding, compressed, selected = map(
        solution_module, ("05", "06", "07", "08", "09", "12", "14")
    )

    def paged(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        blocks = (x.mT.reshape(2 * n // BLOCK, BLOCK, 2, -1) for x in (k, v))
        table = torch.arange(2 * n // BLOCK, device=q.device).reshape(2, -1)
        return decoding.paged_attention(q[..., 0, :], *blocks, table, torch.tensor([n, n - 3], device=q.device))

    def latent(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        up = q[0, :, :d], q[1, :, : d // 2]
        return compressed.mla_decode(q[0, :, 0], q[0, :, 1], k[0, 0], k[0, 1], *up)

    def few_pages(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        pages = torch.arange(0, n // block, 2, device=q.device).expand(2, 2, -1)
        return selected.selected_decode(q[..., 0, :], k, v, pages, block)

    def checkpointed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        x = q.detach().requires_grad_()
        checkpointing.checkpoint_sequential([torch.sin] * 16, 4, x).sum().backward()
        return x

    return {
        "05 flash_forward": _same_heads(flash, "flash_forward", causal=True, block_q=block, block_k=block),
        "05 FlashAttention": lambda q, k, v: flash.FlashAttention.apply(q, q, q, True),
        "06 checkpoint_sequential": checkpointed,
        "07 linear_attention": _same_heads(linear, "linear_attention"),
        "07 cumsum": _same_heads(linear, "causal_linear_attention_cumsum"),
        "07 recurrent": _same_heads(linear, "causal_linear_attention_recurrent"),
        "07 chunked": _same_heads(linear, "causal_linear_attention_chunked"),
        "07 scan": _same_heads(linear, "causal_linear_attention_scan"),
        "08 sliding_window_attention": _same_heads(sliding, "sliding_window_attention", window=block // 2, block=block),
        "09 grouped_query_attention": lambda q, k, v: decoding.grouped_query_attention(q, k, v, causal=True),
        "09 split_kv_decode": lambda q, k, v: decoding.split_kv_decode(q[..., 0, :], k, v, num_splits=3),
        "09 paged_attention": paged,
        "12 rotate": lambda q, k, v: compressed.rotate(q, torch.arange(n, device=q.device)),
        "12 attention_with_sinks": _same_heads(compressed, "attention_with_sinks", window=block // 2, num_sinks=2),
        "12 attention_sink_logit": lambda q, k, v: compressed.attention_sink_logit(q, q, q, q[0, :, 0, 0]),
        "12 mla_decode": latent,
        "12 quantized": lambda q, k, v: compressed.dequantize_kv(compressed.quantize_kv(k, v, bits=4, group=8)),
        "14 selected_decode": few_pages,
        "14 block_sparse_attention": _same_heads(selected, "block_sparse_attention", block=block, top=2),
    }


def _same_heads(lab: ModuleType, name: str, **how: Any) -> Callable[..., Any]:
    """`name` of a lab, called with q, k and v of as many heads."""
    return lambda q, k, v: getattr(lab, name)(q, k.repeat_interleave(3, 1), v.repeat_interleave(3, 1), **how)
