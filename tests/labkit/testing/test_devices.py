"""The solutions compute where their arguments lie: on a GPU what they compute on the CPU, and on meta no other device.

A mask or positions made on the CPU meet tensors of a GPU only where there is one. On meta most of such meetings are
refused as well, so that they are found on a laptop.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from benchmarks.harness import solution_module

Q, K, V = (2, 6, 40, 16), (2, 2, 40, 16), (2, 2, 40, 24)
"""Six heads in two groups; 40 tokens."""


def same_heads(lab: ModuleType, name: str, **how: Any) -> Callable[..., Any]:
    """`name` of a lab, called with q, k and v of as many heads."""
    return lambda q, k, v: getattr(lab, name)(q, k.repeat_interleave(3, 1), v.repeat_interleave(3, 1), **how)


def calls() -> dict[str, Callable[..., Any]]:
    flash, linear, sliding, decoding, compressed = map(solution_module, ("05", "07", "08", "09", "12"))
    return {
        "05 flash_forward": same_heads(flash, "flash_forward", causal=True, block_q=16, block_k=16),
        "05 FlashAttention": lambda q, k, v: flash.FlashAttention.apply(q, q, q, True),
        "07 linear_attention": same_heads(linear, "linear_attention"),
        "07 cumsum": same_heads(linear, "causal_linear_attention_cumsum"),
        "07 recurrent": same_heads(linear, "causal_linear_attention_recurrent"),
        "07 chunked": same_heads(linear, "causal_linear_attention_chunked"),
        "07 scan": same_heads(linear, "causal_linear_attention_scan"),
        "08 sliding_window_attention": same_heads(sliding, "sliding_window_attention", window=7, block=16),
        "09 grouped_query_attention": lambda q, k, v: decoding.grouped_query_attention(q, k, v, causal=True),
        "09 split_kv_decode": lambda q, k, v: decoding.split_kv_decode(q[..., 0, :], k, v, num_splits=3),
        "09 paged_attention": lambda q, k, v: decoding.paged_attention(
            q[..., 0, :], *(x.mT.reshape(20, 4, 2, -1) for x in (k, v)), *table_and_lengths(q.device)
        ),
        "12 rotate": lambda q, k, v: compressed.rotate(q, torch.arange(40, device=q.device)),
        "12 attention_with_sinks": same_heads(compressed, "attention_with_sinks", window=9, num_sinks=2),
        "12 attention_sink_logit": lambda q, k, v: compressed.attention_sink_logit(q, q, q, q[0, :, 0, 0]),
        "12 mla_decode": lambda q, k, v: compressed.mla_decode(
            q[0, :, 0], q[0, :, 1], k[0, 0], k[0, 1], q[0, :, :16], q[1, :, :8]
        ),
        "12 quantized": lambda q, k, v: compressed.dequantize_kv(compressed.quantize_kv(k, v, bits=4, group=8)),
    }


def table_and_lengths(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(20, device=device).reshape(2, 10), torch.tensor([40, 37], device=device)


READS_NUMBERS = {"09 paged_attention", "12 quantized"}
"""A length, and whether a scale is finite: nothing on meta can say."""


def arguments(device: str) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).to(device) for shape in (Q, K, V)]


@pytest.mark.parametrize("name", sorted(calls().keys() - READS_NUMBERS))
def test_on_meta(name: str) -> None:
    results = pytree.tree_leaves(calls()[name](*arguments("meta")))
    assert results
    assert {x.device.type for x in results if isinstance(x, torch.Tensor)} == {"meta"}


@pytest.mark.gpu
@pytest.mark.parametrize("name", calls())
def test_on_a_gpu(name: str) -> None:
    want, got = (calls()[name](*arguments(device)) for device in ("cpu", "cuda"))
    assert {x.device.type for x in pytree.tree_leaves(got) if isinstance(x, torch.Tensor)} == {"cuda"}
    torch.testing.assert_close(pytree.tree_map_only(torch.Tensor, torch.Tensor.cpu, got), want, rtol=1e-4, atol=1e-5)
