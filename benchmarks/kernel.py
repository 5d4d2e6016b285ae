"""Chapter 10: Lab 10's kernels, compiled, against the built-in attention on a CUDA device.

Float16, causal and not. A time is the wall-clock time of ten calls with one wait for the device; memory is CUDA's own
peak over the inputs of one call. The forward pass is also timed against each of PyTorch's kernels by name, and given in
TFLOP/s. Run it without TRITON_INTERPRET in the environment.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from statistics import median
from types import ModuleType

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.harness import Column, Table, made, solution_module, time_in_turn

BUILT_IN = "built-in"
BACKENDS = {
    "built-in, flash": SDPBackend.FLASH_ATTENTION,
    "built-in, cuDNN": SDPBackend.CUDNN_ATTENTION,
    "built-in, memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
}
IN_A_ROW = 10
"""Calls for one wait, as in a model: the device works on one call while Python launches the next."""

Call = Callable[[], object]


def tables(*, n: int = 4096, d: int = 64, rounds: int = 30) -> Iterator[Table]:
    """The forward pass, causal and not, the backward pass, and decoding; empty without a device."""
    if not torch.cuda.is_available():
        print("kernel: not run, since it needs a CUDA device", file=sys.stderr)
        return
    if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
        print("kernel: not run, since TRITON_INTERPRET is set", file=sys.stderr)
        return
    lab, two_loops = solution_module("10"), solution_module("10", "alternatives/two_loops")
    arch = 90 if torch.cuda.get_device_capability()[0] >= 9 else 80
    generator = torch.Generator("cuda").manual_seed(0)
    Q, K, V, dO = (torch.randn(4, 16, n, d, generator=generator, device="cuda").half() for _ in range(4))
    setting = f"4 × 16 heads, N={n}, d={d}, float16, {torch.cuda.get_device_name()}, torch {torch.__version__}"
    for causal in (False, True):
        calls = forward({"kernel": lab, "no masks inside": two_loops}, Q, K, V, causal, arch)
        kind = "causal" if causal else "full"
        yield _table(f"kernel_forward_{kind}", setting, calls, rounds, forward_flops(Q, causal))
        yield _table(f"kernel_backward_{kind}", setting, backward(lab, Q, K, V, dO, causal), rounds, None)


def forward(
    labs: Mapping[str, ModuleType], Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor, causal: bool, arch: int
) -> dict[str, Call]:
    """The built-in attention, and kernels with the blocks that they choose; all results must agree."""
    calls = built_in(Q, K, V, causal)
    for name, lab in labs.items():
        block_q, block_k, _, _ = lab.choose_config(Q.shape[-1], 2, arch)
        kernel = partial(lab.flash_forward, Q, K, V, causal, block_q, block_k)
        torch.testing.assert_close(kernel()[0], calls[BUILT_IN](), rtol=0, atol=4e-3)
        calls[name] = kernel
    return calls


def built_in(Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor, causal: bool) -> dict[str, Call]:
    """The built-in attention as PyTorch chooses its kernel, and with each named kernel that takes these inputs."""
    attention = partial(functional.scaled_dot_product_attention, Q, K, V, is_causal=causal)

    def by(backend: SDPBackend) -> object:
        with sdpa_kernel(backend):
            return attention()

    calls: dict[str, Call] = {BUILT_IN: attention}
    for name, backend in BACKENDS.items():
        try:
            by(backend)
        except RuntimeError:  # PyTorch's word for "no such kernel for these inputs, or here"
            continue
        calls[name] = partial(by, backend)
    return calls


def forward_flops(Q: torch.Tensor, causal: bool) -> int:
    """FLOPs of the two products of a forward pass, as many keys as queries; with a mask only those of visible pairs."""
    *batch, n, d = Q.shape
    pairs = n * (n + 1) // 2 if causal else n * n
    return 4 * d * pairs * torch.Size(batch).numel()


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


def _table(name: str, setting: str, calls: dict[str, Call], rounds: int, flops: int | None) -> Table:
    waited = {call_name: partial(awaited, call) for call_name, call in calls.items()}
    times = time_in_turn(waited, rounds, clock=time.perf_counter, warm=5)
    columns: dict[str, Column] = {
        "ms": times.ms,
        "× built-in": times.times_as_fast(BUILT_IN),
        "peak, MiB": partial(_peak_mib, calls),
    }
    if flops is not None:
        columns["TFLOP/s"] = lambda name: round(IN_A_ROW * flops / median(times.seconds[name]) / 1e12, 1)
    return made(name, "", f"{setting}, {rounds} rounds", name, calls, columns)


def awaited(call: Call, device: str = "cuda") -> None:
    """Make IN_A_ROW calls, and wait for the device once."""
    for _ in range(IN_A_ROW):
        call()
    if device == "cuda":
        torch.cuda.synchronize()


def _peak_mib(calls: dict[str, Call], name: str) -> float:
    """Peak MiB, minus the bytes allocated before the call."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = calls[name]()
    torch.cuda.synchronize()
    del result
    return round((torch.cuda.max_memory_allocated() - before) / 2**20, 3)
