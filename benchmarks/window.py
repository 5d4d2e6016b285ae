"""Times windowed attention against the masked built-in one: `python -m benchmarks.window`.

The forward pass of one head in float32 on one thread. Rounds of all candidates in turn, each right after a pass of the
masked built-in; its speed is the median over the rounds of the ratio of the two CPU times. Memory is the CPU
allocator's own record (`torch.profiler`) of one pass: its peak over the inputs, the mask, if any, included.
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

LAB = Path(__file__).parents[1] / "solutions" / "lab08_sliding_window"
MASKED = "built-in, masked"
Pass = Callable[[], torch.Tensor]


def main(arguments: list[str] | None = None) -> None:
    """Print a table of times, speeds and peaks."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.window", description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=8192, help="queries and keys")
    parser.add_argument("--d", type=int, default=64, help="width of q, k and v")
    parser.add_argument("--window", type=int, default=256, help="keys that a query sees")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, options.n, options.d, generator=generator) for _ in range(3))
    print(
        f"N={options.n}, d={options.d}, window {options.window}, float32, one thread, {options.rounds} rounds, "
        f"torch {torch.__version__}"
    )
    with torch.no_grad():
        _table(candidates(q, k, v, options.window), options.rounds)


def candidates(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int) -> dict[str, Pass]:
    """One forward pass of each form, `(1, 1, N, d)`."""
    lab = load_answer("src/sliding_window")
    seen = ~lab.window_mask(q.shape[-2], window)
    answers = {
        "tiles": lab,
        "strips": load_answer("right/strips"),
        "strips, one bias": load_answer("right/strips_one_bias"),
        "all blocks at once": load_answer("right/all_blocks_at_once"),
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


def load_answer(name: str) -> ModuleType:
    """The lab's solution as a module, or `name` executed in its namespace."""
    files = dict.fromkeys([LAB / "src" / "sliding_window.py", LAB / f"{name}.py"])
    spec = importlib.util.spec_from_file_location(f"window_{Path(name).stem}", LAB / f"{name}.py")
    assert spec
    module = importlib.util.module_from_spec(spec)
    for file in files:
        exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"), module.__dict__)
    return module


def _table(passes: dict[str, Pass], rounds: int) -> None:
    seconds: dict[str, list[float]] = {name: [] for name in passes}
    speeds: dict[str, list[float]] = {name: [] for name in passes}
    for lap in range(rounds + 1):
        for name, run in passes.items():
            reference, own = _seconds(passes[MASKED]), _seconds(run)
            if lap:  # the first one warms up
                seconds[name].append(own)
                speeds[name].append(reference / own)
    print(f"  {'':29s} {'ms':>8} {'× masked':>9} {'peak MiB':>9}")
    for name, run in passes.items():
        peak = profile_memory(run).peak_bytes / 2**20
        print(f"  {name:29s} {1e3 * median(seconds[name]):8.1f} {median(speeds[name]):9.2f} {peak:9.2f}", flush=True)


def _seconds(run: Pass) -> float:
    started = time.process_time()
    run()
    return time.process_time() - started


if __name__ == "__main__":
    main()
