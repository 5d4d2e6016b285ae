"""Windowed attention against the masked built-in one.

The forward pass of one head in float32 on one thread. Memory is the CPU allocator's own record (`torch.profiler`) of
one pass: its peak over the inputs, the mask, if any, included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch.nn import functional

from benchmarks.harness import Table, answer_module, rows, time_in_turn
from labkit.meters.profiler import profile_memory

MASKED = "built-in, masked"
Pass = Callable[[], torch.Tensor]


def tables(*, n: int = 8192, d: int = 64, window: int = 256, rounds: int = 5) -> Iterator[Table]:
    """One table: times, speed against the masked built-in form, peaks."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, n, d, generator=generator) for _ in range(3))
    setting = f"N={n}, d={d}, window {window}, float32, forward, one thread, {rounds} rounds, torch {torch.__version__}"
    with torch.no_grad():
        passes = candidates(q, k, v, window)
        times = time_in_turn(passes, rounds)
        made = rows(times, (MASKED,), lambda name: round(profile_memory(passes[name]).peak_bytes / 2**20, 3))
    yield Table("window", "forward", setting, rows=made)


def candidates(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int) -> dict[str, Pass]:
    """One forward pass of each form, `(1, 1, N, d)`."""
    lab = answer_module("08")
    seen = ~lab.window_mask(q.shape[-2], window)
    answers = {
        "tiles": lab,
        "strips": answer_module("08", "right/strips"),
        "strips, one bias": answer_module("08", "right/strips_one_bias"),
        "all blocks at once": answer_module("08", "right/all_blocks_at_once"),
    }
    tiled = {
        f"{name}, block {block}": lambda answer=answer, block=block: answer.sliding_window_attention(
            q, k, v, window, block
        )
        for name, answer in answers.items()
        for block in (64, 128, 256)
    }
    return {
        MASKED: lambda: functional.scaled_dot_product_attention(q, k, v, attn_mask=seen),
        "+ mask made each time": lambda: functional.scaled_dot_product_attention(
            q, k, v, attn_mask=~lab.window_mask(q.shape[-2], window)
        ),
        "built-in, causal": lambda: functional.scaled_dot_product_attention(q, k, v, is_causal=True),
        **tiled,
    }
