"""FlashAttention in plain torch against the built-in attention.

A training step (forward and backward) of one head in float32 on one thread. Each "+" line is timed with all the steps
above it in place. Memory is the CPU allocator's own record (`torch.profiler`) of one step: its peak over the inputs,
gradients and output included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType

import torch
from torch.nn import functional

from benchmarks.harness import Table, answer_module, rows, time_in_turn
from labkit.meters.profiler import profile_memory

FORWARD_BLOCKS, BACKWARD_BLOCKS = (512, 256), (512, 256)
NAIVE, BUILT_IN = "naive, autograd", "built-in (SDPA)"
Attention = Callable[..., torch.Tensor]
Step = Callable[[], torch.Tensor]


def tables(*, n: int = 4096, d: int = 64, rounds: int = 9) -> Iterator[Table]:
    """One table for full and one for causal attention."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    Q, K, V, dO = (torch.randn(n, d, generator=generator) for _ in range(4))
    for leaf in (Q, K, V):
        leaf.requires_grad_()
    setting = f"N={n}, d={d}, float32, forward and backward, one thread, {rounds} rounds, torch {torch.__version__}"
    for causal in (False, True):
        steps = {name: _step(attention, Q, K, V, dO, causal) for name, attention in candidates().items()}
        times = time_in_turn(steps, rounds)
        made = rows(times, (BUILT_IN, NAIVE), partial(peak_mib, steps))
        yield Table("flash", "causal" if causal else "full", setting, rows=made)


def peak_mib(steps: dict[str, Step], name: str) -> float:
    """The peak of one step by the allocator's own record."""
    return round(profile_memory(steps[name]).peak_bytes / 2**20, 3)


def candidates() -> dict[str, Attention]:
    """The forms of attention compared, each called with `(N, d)` matrices and a flag for causal."""
    plain, tuned, in_steps = (answer_module("05", other) for other in ("", "right/tuned", "steps"))

    def stepped(*taken: str) -> Attention:
        return in_steps.stepped(in_steps.Steps(**dict.fromkeys(taken, True)), FORWARD_BLOCKS, BACKWARD_BLOCKS)

    means = ("add_in_product", "powers_of_2", "trim", "bound")
    return {
        NAIVE: naive,
        BUILT_IN: built_in,
        "plain, 64 × 64": plain.FlashAttention.apply,
        "plain, large tiles": _with_blocks(plain),
        "+ in place, in buffers": stepped(),
        "+ sums inside products": stepped(*means[:1]),
        "+ powers of 2": stepped(*means[:2]),
        "+ diagonal tiles trimmed": stepped(*means[:3]),
        "+ no maximum when safe": stepped(*means[:4]),
        "right/tuned.py": tuned.FlashAttention.apply,
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


def _with_blocks(answer: ModuleType) -> Attention:
    """The answer's class, its two functions called with the large tiles."""

    class LargeTiles(torch.autograd.Function):
        @staticmethod
        def forward(ctx, Q, K, V, causal):  # type: ignore[no-untyped-def]
            O, L = answer.flash_forward(Q, K, V, causal, *FORWARD_BLOCKS)
            ctx.save_for_backward(Q, K, V, O, L)
            ctx.causal = causal
            return O

        @staticmethod
        def backward(ctx, dO):  # type: ignore[no-untyped-def]
            return *answer.flash_backward(*ctx.saved_tensors, dO, ctx.causal, *BACKWARD_BLOCKS), None

    return LargeTiles.apply


def _step(
    attention: Attention, Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor, dO: torch.Tensor, causal: bool
) -> Step:
    def step() -> torch.Tensor:
        output = attention(Q, K, V, causal)
        torch.autograd.grad(output, (Q, K, V), dO)
        return output

    return step
