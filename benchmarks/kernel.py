"""Lab 10's kernels on a CUDA device, compiled, against the built-in attention: the only benchmark that needs a GPU.

Float16, causal and not. Times are of ten calls in a row by the clock, with the device's work awaited on both sides;
memory is CUDA's own peak over the inputs of one. Run it without TRITON_INTERPRET in the environment.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import ModuleType

import torch
import typer
from torch.nn import functional

from benchmarks.harness import Table, answer_module, rows, time_in_turn

BUILT_IN = "built-in"
GOAL = 0.8
"""How many times as fast as the built-in attention the forward kernel is meant to be on an H100 or H200."""
IN_A_ROW = 10
"""Calls between two waits, as a model makes them: the device works on one while Python launches the next."""

Call = Callable[[], object]


def tables(*, n: int = 4096, d: int = 64, rounds: int = 30) -> Iterator[Table]:
    """The forward pass, causal and not, the backward pass, and decoding; nothing where there is no device."""
    if not torch.cuda.is_available():
        typer.echo("kernel: needs a CUDA device, and there is none: not run", err=True)
        return
    if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
        typer.echo("kernel: TRITON_INTERPRET is set, and the interpreter is no kernel: not run", err=True)
        return
    lab, two_loops = answer_module("10"), answer_module("10", "right/two_loops")
    arch = 90 if torch.cuda.get_device_capability()[0] >= 9 else 80
    generator = torch.Generator("cuda").manual_seed(0)
    Q, K, V, dO = (torch.randn(4, 16, n, d, generator=generator, device="cuda").half() for _ in range(4))
    setting = f"4 × 16 heads, N={n}, d={d}, float16, {torch.cuda.get_device_name()}, torch {torch.__version__}"
    for causal in (False, True):
        calls = forward({"kernel": lab, "no masks inside": two_loops}, Q, K, V, causal, arch)
        told = f"{setting}, blocks as chosen; goal {GOAL} of {BUILT_IN}"
        yield _table("forward, causal" if causal else "forward", told, calls, rounds)
        yield _table("backward, causal" if causal else "backward", setting, backward(lab, Q, K, V, dO, causal), rounds)


def forward(
    labs: Mapping[str, ModuleType], Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor, causal: bool, arch: int
) -> dict[str, Call]:
    """The built-in attention and answers' kernels with the blocks that they choose; all results must agree."""
    calls: dict[str, Call] = {BUILT_IN: partial(functional.scaled_dot_product_attention, Q, K, V, is_causal=causal)}
    for name, lab in labs.items():
        block_q, block_k, _, _ = lab.choose_config(Q.shape[-1], 2, arch)
        kernel = partial(lab.flash_forward, Q, K, V, causal, block_q, block_k)
        torch.testing.assert_close(kernel()[0], calls[BUILT_IN](), rtol=0, atol=4e-3)
        calls[name] = kernel
    return calls


def backward(
    lab: ModuleType, Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor, dO: torch.Tensor, causal: bool
) -> dict[str, Call]:
    """The built-in attention's backward pass and the two kernels, whose results must agree."""
    leaves = q, k, v = [x.detach().requires_grad_() for x in (Q, K, V)]
    out = functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    O, L = lab.flash_forward(Q, K, V, causal)
    built_in = partial(torch.autograd.grad, out, leaves, dO, retain_graph=True)
    kernels = partial(lab.flash_backward, Q, K, V, O, L, dO, causal, 64, 32)
    for got, want in zip(kernels(), built_in(), strict=True):
        torch.testing.assert_close(got, want, rtol=2e-2, atol=1e-2)
    return {BUILT_IN: built_in, "kernels": kernels}


def _table(title: str, setting: str, calls: dict[str, Call], rounds: int) -> Table:
    awaited = {name: partial(_awaited, call) for name, call in calls.items()}
    times = time_in_turn(awaited, rounds, clock=time.perf_counter, warm=5)
    return Table(
        "kernel", title, f"{setting}, {rounds} rounds", rows=rows(times, (BUILT_IN,), lambda name: _peak(calls[name]))
    )


def _awaited(call: Call) -> None:
    for _ in range(IN_A_ROW):
        call()
    torch.cuda.synchronize()


def _peak(call: Call) -> float:
    """MiB over what was there before."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = call()
    torch.cuda.synchronize()
    del result
    return round((torch.cuda.max_memory_allocated() - before) / 2**20, 3)
