"""Chapter 7: routes of causal linear attention against quadratic ones. One head, forward, float32, one thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch.nn import functional

from benchmarks.harness import Table, made, peak_mib, solution_module, time_in_turn

QUADRATIC, TEXTBOOK, RECURRENCE = "quadratic, masked in place", "quadratic, textbook", "recurrence"


def tables(*, n: int = 4096, d: int = 64, rounds: int = 9) -> Iterator[Table]:
    """One table: times, ratios to three references, peaks (the output included)."""
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(n, d, generator=generator) for _ in range(3)]
    calls = {name: partial(route, *inputs) for name, route in candidates().items()}
    times = time_in_turn(calls, rounds)
    columns = {
        "ms": times.ms,
        "× quadratic": times.times_as_fast(QUADRATIC),
        "× textbook": times.times_as_fast(TEXTBOOK),
        "× recurrence": times.times_as_fast(RECURRENCE),
        "peak, MiB": peak_mib(calls),
    }
    setting = f"N={n}, d={d}, float32, forward, one thread, {rounds} rounds, torch {torch.__version__}"
    yield made("linear", "docs/07_linear_attention.md", setting, "route", calls, columns)


def candidates() -> dict[str, Callable[..., torch.Tensor]]:
    """The routes compared, each called with q, k and v."""
    plain, tuned = solution_module("07"), solution_module("07", "alternatives/tuned")
    return {
        QUADRATIC: quadratic,
        TEXTBOOK: textbook,
        RECURRENCE: plain.causal_linear_attention_recurrent,
        "cumulative sum": plain.causal_linear_attention_cumsum,
        "scan, chunks of 64": plain.causal_linear_attention_scan,
        "chunks of 64": plain.causal_linear_attention_chunked,
        "chunks of 64, in place": partial(tuned.causal_linear_attention_chunked, chunk=64),
        "chunks of 128, in place": partial(tuned.causal_linear_attention_chunked, chunk=128),
        "chunks of 256, in place": partial(tuned.causal_linear_attention_chunked, chunk=256),
    }


def quadratic(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """All N × N weights, masked in place."""
    weights = (functional.elu(q).add_(1) @ functional.elu(k).add_(1).mT).tril_()
    return (weights @ v).div_(weights.sum(-1, keepdim=True).add_(1e-6))


def textbook(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """All N × N weights, masked by a product and normalised before the product with the values."""
    weights = (functional.elu(q) + 1) @ (functional.elu(k) + 1).mT
    weights = weights * torch.ones_like(weights).tril()
    return weights / (weights.sum(-1, keepdim=True) + 1e-6) @ v
