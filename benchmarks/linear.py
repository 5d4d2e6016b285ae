"""Times the routes of causal linear attention against each other: `python -m benchmarks.linear`.

One head in float32 on one thread, forward only. Rounds of all candidates in turn; times are CPU times (what other
programs take from the core is not counted), medians over the rounds. The speed of a candidate is the median of the
ratios to the quadratic route and to the recurrent one in the same round. Memory is the CPU allocator's own record
(`torch.profiler`) of one call: its peak over the inputs, the output included.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

if "torch" not in sys.modules:
    for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[_variable] = "1"

from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.nn import functional

from labkit.meters.profiler import profile_memory

LAB = Path(__file__).parents[1] / "solutions" / "lab07_linear_attention"
QUADRATIC, TEXTBOOK, RECURRENT = "quadratic", "textbook", "recurrent"
Route = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def main(arguments: list[str] | None = None) -> None:
    """Print a table of times, ratios and peaks."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.linear", description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=4096, help="positions")
    parser.add_argument("--d", type=int, default=64, help="width of q, k and v")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    inputs = tuple(torch.randn(options.n, options.d, generator=generator) for _ in range(3))
    print(f"N={options.n}, d={options.d}, float32, one thread, {options.rounds} rounds, torch {torch.__version__}")
    seconds = _timed(candidates(), inputs, options.rounds)
    references = (QUADRATIC, TEXTBOOK, RECURRENT)
    heads = "".join(f" {f'× {reference}':>12}" for reference in references)
    print(f"  {'':24s} {'ms':>8}{heads} {'peak MiB':>9}")
    for name, route in candidates().items():
        ratios = "".join(f" {_ratio(seconds[reference], seconds[name]):12.2f}" for reference in references)
        peak = profile_memory(route, *inputs).peak_bytes / 2**20
        print(f"  {name:24s} {1e3 * median(seconds[name]):8.1f}{ratios} {peak:9.2f}")


def candidates() -> dict[str, Route]:
    """The routes compared; the recurrent one is the faster of the two that the lab has."""
    plain, tuned = load_answer("src/linear_attention"), load_answer("right/tuned")
    name = "causal_linear_attention_"
    chunked = tuned[f"{name}chunked"]
    return {
        QUADRATIC: quadratic,
        TEXTBOOK: textbook,
        RECURRENT: plain[f"{name}recurrent"],
        "cumsum": plain[f"{name}cumsum"],
        "scan, chunk 64": plain[f"{name}scan"],
        "chunked, chunk 64": plain[f"{name}chunked"],
        **{f"tuned, chunk {chunk}": _with_chunk(chunked, chunk) for chunk in (32, 64, 128, 256)},
    }


def quadratic(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """All N × N weights, masked in place."""
    weights = (functional.elu(q).add_(1) @ functional.elu(k).add_(1).mT).tril_()
    return (weights @ v).div_(weights.sum(-1, keepdim=True).add_(1e-6))


def textbook(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """All N × N weights, masked by a product and normalised before they meet the values."""
    weights = (functional.elu(q) + 1) @ (functional.elu(k) + 1).mT
    weights = weights * torch.ones_like(weights).tril()
    return weights / (weights.sum(-1, keepdim=True) + 1e-6) @ v


def load_answer(name: str) -> dict[str, Any]:
    """The names of the lab's solution, with those of `name` executed over them."""
    names: dict[str, Any] = {"__name__": f"linear_{Path(name).stem}"}
    for file in dict.fromkeys([LAB / "src" / "linear_attention.py", LAB / f"{name}.py"]):
        exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"), names)
    return names


def _with_chunk(route: Callable[..., torch.Tensor], chunk: int) -> Route:
    return lambda q, k, v: route(q, k, v, chunk)


def _timed(routes: dict[str, Route], inputs: tuple[torch.Tensor, ...], rounds: int) -> dict[str, list[float]]:
    """CPU seconds of each route in each round; a first round warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in routes}
    for lap in range(rounds + 1):
        for name, route in routes.items():
            started = time.process_time()
            route(*inputs)
            if lap:
                seconds[name].append(time.process_time() - started)
    return seconds


def _ratio(reference: list[float], own: list[float]) -> float:
    return median(slow / fast for slow, fast in zip(reference, own, strict=True))


if __name__ == "__main__":
    main()
