"""Chapter 8: windowed attention against the built-in one with a mask. One head, forward, float32, one thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch.nn import functional

from benchmarks.harness import Table, made, peak_mib, solution_module, time_in_turn

MASKED = "built-in (SDPA), the window as its mask"


def tables(*, n: int = 8192, d: int = 64, window: int = 256, rounds: int = 5) -> Iterator[Table]:
    """One table: times, ratios to the masked built-in form, peaks (the mask included)."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, n, d, generator=generator) for _ in range(3))
    with torch.no_grad():
        calls = candidates(q, k, v, window)
        times = time_in_turn(calls, rounds)
        columns = {"ms": times.ms, "× masked": times.times_as_fast(MASKED), "peak, MiB": peak_mib(calls)}
        setting = f"N={n}, d={d}, window {window}, float32, forward, one thread, {rounds} rounds"
        setting = f"{setting}, torch {torch.__version__}"
        yield made("window", "docs/08_sliding_windows.md", setting, "form", calls, columns)


def candidates(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int) -> dict[str, Callable[[], object]]:
    """One forward pass of each form, `(1, 1, N, d)`."""
    lab = solution_module("08")
    seen = ~lab.window_mask(q.shape[-2], window)
    built_in = partial(functional.scaled_dot_product_attention, q, k, v)

    def with_new_mask() -> torch.Tensor:
        return built_in(attn_mask=~lab.window_mask(q.shape[-2], window))

    def blocked(other: str, block: int) -> Callable[[], object]:
        return partial(solution_module("08", other).sliding_window_attention, q, k, v, window, block)

    return {
        MASKED: partial(built_in, attn_mask=seen),
        "the same, the mask made in each call": with_new_mask,
        "built-in, causal, no window": partial(built_in, is_causal=True),
        "tiles, blocks of 64": blocked("", 64),
        "tiles, blocks of 128": blocked("", 128),
        "strips, blocks of 128": blocked("alternatives/strips", 128),
        "strips, one bias, blocks of 64": blocked("alternatives/strips_one_bias", 64),
        "all blocks at once, blocks of 128": blocked("alternatives/all_blocks_at_once", 128),
    }
