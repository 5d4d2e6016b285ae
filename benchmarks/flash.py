"""Chapter 5: FlashAttention in plain torch against the built-in attention.

A training step (forward and backward) of one head in float32 on one thread. Each "+" row has all the steps above it.
Peaks are over the inputs, gradients and output included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType

import torch
from torch.nn import functional

from benchmarks.harness import Column, Table, made, peak_mib, solution_module, time_in_turn

BLOCKS = (512, 256)
NAIVE, BUILT_IN = "naive, autograd", "built-in (SDPA)"
Attention = Callable[..., torch.Tensor]


def tables(*, n: int = 4096, d: int = 64, rounds: int = 9) -> Iterator[Table]:
    """One table, full and causal attention side by side."""
    generator = torch.Generator().manual_seed(0)
    Q, K, V, dO = (torch.randn(n, d, generator=generator) for _ in range(4))
    for leaf in (Q, K, V):
        leaf.requires_grad_()

    def step(attention: Attention, causal: bool) -> None:
        torch.autograd.grad(attention(Q, K, V, causal), (Q, K, V), dO)

    columns: dict[str, Column] = {}
    for kind, causal in (("full", False), ("causal", True)):
        steps = {name: partial(step, attention, causal) for name, attention in candidates().items()}
        times = time_in_turn(steps, rounds)
        columns[f"{kind}: × built-in"] = times.times_as_fast(BUILT_IN)
        columns[f"{kind}: × naive"] = times.times_as_fast(NAIVE)
        columns[f"{kind}: peak, MiB"] = peak_mib(steps)
    setting = f"N={n}, d={d}, float32, forward and backward, one thread, {rounds} rounds, torch {torch.__version__}"
    yield made("flash", "labs/lab05_flash_attention/README.md", setting, "", steps, columns)


def candidates() -> dict[str, Attention]:
    """The forms of attention compared, each called with `(N, d)` matrices and a flag for causal."""
    plain, tuned, in_steps = (solution_module("05", other) for other in ("", "alternatives/tuned", "steps"))
    steps = ("add_in_product", "powers_of_2", "trim", "bound")

    def with_steps(count: int) -> Attention:
        return in_steps.stepped(in_steps.Steps(**dict.fromkeys(steps[:count], True)), BLOCKS, BLOCKS)

    return {
        NAIVE: naive,
        BUILT_IN: built_in,
        "plain, 64 × 64": plain.FlashAttention.apply,
        "plain, 512 × 256": _with_blocks(plain),
        "+ in place, in buffers": with_steps(0),
        "+ sums inside products": with_steps(1),
        "+ powers of 2": with_steps(2),
        "+ diagonal tiles trimmed": with_steps(3),
        "+ no maximum when safe": with_steps(4),
        "alternatives/tuned.py": tuned.FlashAttention.apply,
    }


def naive(Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor, causal: bool) -> torch.Tensor:
    """Standard attention that autograd differentiates, `(N, d)` each; it makes and masks all scores."""
    S = Q @ K.T * Q.shape[-1] ** -0.5
    if causal:
        S = S.masked_fill(torch.ones(S.shape, dtype=torch.bool).triu(1), -torch.inf)
    return S.softmax(-1) @ V


def built_in(Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor, causal: bool) -> torch.Tensor:
    """torch's fused attention; with batch and head axes, without which it falls back to its plain form."""
    q, k, v = (x[None, None] for x in (Q, K, V))
    return functional.scaled_dot_product_attention(q, k, v, is_causal=causal)[0, 0]


def _with_blocks(solution: ModuleType) -> Attention:
    """The solution's two passes with large tiles, as one differentiable function."""

    class LargeTiles(torch.autograd.Function):
        @staticmethod
        def forward(ctx, Q, K, V, causal):  # type: ignore[no-untyped-def]
            O, L = solution.flash_forward(Q, K, V, causal, *BLOCKS)
            ctx.save_for_backward(Q, K, V, O, L)
            ctx.causal = causal
            return O

        @staticmethod
        def backward(ctx, dO):  # type: ignore[no-untyped-def]
            return *solution.flash_backward(*ctx.saved_tensors, dO, ctx.causal, *BLOCKS), None

    return LargeTiles.apply
