"""Times FlashAttention in plain torch against the built-in attention: `python -m benchmarks.flash`.

A training step (forward and backward) of one head in float32 on one thread. Rounds of all candidates in turn, each
right after a step of the built-in; its speed is the median over the rounds of the ratio of the two CPU times (what
other programs take from the core is not counted). Each "+" line is timed with all the steps above it in place. Memory
is the CPU allocator's own record (`torch.profiler`) of one step: its peak over the inputs, gradients and output
included.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import time

if "torch" not in sys.modules:
    for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[_variable] = "1"

from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import ModuleType

import torch
from torch.nn import functional

from labkit.meters.profiler import profile_memory

LAB = Path(__file__).parents[1] / "solutions" / "lab05_flash_attention"
FORWARD_BLOCKS, BACKWARD_BLOCKS = (512, 256), (512, 256)
NAIVE, BUILT_IN = "naive, autograd", "built-in (SDPA)"
Attention = Callable[..., torch.Tensor]
Step = Callable[[], torch.Tensor]


def main(arguments: list[str] | None = None) -> None:
    """Print a table for full and one for causal attention."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flash", description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=4096, help="queries and keys")
    parser.add_argument("--d", type=int, default=64, help="width of Q, K and V")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    Q, K, V, dO = (torch.randn(options.n, options.d, generator=generator) for _ in range(4))
    for leaf in (Q, K, V):
        leaf.requires_grad_()
    print(f"N={options.n}, d={options.d}, float32, one thread, {options.rounds} rounds, torch {torch.__version__}")
    for causal in (False, True):
        print("\ncausal" if causal else "\nfull")
        named = candidates()
        steps = {name: _step(attention, Q, K, V, dO, causal) for name, attention in named.items()}
        _table(steps, options.rounds)


def candidates() -> dict[str, Attention]:
    """The forms of attention compared, each called with `(N, d)` matrices and a flag for causal."""
    plain, tuned, in_steps = (load_answer(name) for name in ("src/flash_attention", "right/tuned", "steps"))

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


def load_answer(name: str) -> ModuleType:
    """The lab's solution as a module, or `name` executed in its namespace."""
    files = dict.fromkeys([LAB / "src" / "flash_attention.py", LAB / f"{name}.py"])
    spec = importlib.util.spec_from_file_location(f"flash_{Path(name).stem}", LAB / f"{name}.py")
    assert spec
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    for file in files:
        exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"), module.__dict__)
    return module


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


def _table(steps: dict[str, Step], rounds: int) -> None:
    """Time the steps in turn and print them; each "+" line says its gain over the line above it."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    speeds: dict[str, list[float]] = {name: [] for name in steps}
    for lap in range(rounds + 1):
        for name, step in steps.items():
            reference, own = _seconds(steps[BUILT_IN]), _seconds(step)
            if lap:  # the first one warms up
                seconds[name].append(own)
                speeds[name].append(reference / own)
    speed = {name: median(ratios) for name, ratios in speeds.items()}
    print(f"  {'':28s} {'ms':>7} {'× built-in':>10} {'× naive':>8} {'gain':>6} {'peak MiB':>9}")
    before = ""
    for name, step in steps.items():
        gain = f"{speed[name] / speed[before]:.2f}" if name.startswith("+") else ""
        peak = profile_memory(step).peak_bytes / 2**20
        row = f"{1e3 * median(seconds[name]):7.1f} {speed[name]:10.2f} {speed[name] / speed[NAIVE]:8.2f}"
        print(f"  {name:28s} {row} {gain:>6} {peak:9.2f}", flush=True)
        before = name


def _seconds(step: Step) -> float:
    started = time.process_time()
    step()
    return time.process_time() - started


if __name__ == "__main__":
    main()
