"""The routes of causal linear attention against each other, and against the quadratic forms.

One head in float32 on one thread, forward only. Memory is the CPU allocator's own record (`torch.profiler`) of one
call: its peak over the inputs, the output included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch.nn import functional

from benchmarks.harness import Table, answer_module, rows, time_in_turn
from labkit.meters.profiler import profile_memory

QUADRATIC, TEXTBOOK, RECURRENT = "quadratic", "textbook", "recurrent"
Route = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def tables(*, n: int = 4096, d: int = 64, rounds: int = 9) -> Iterator[Table]:
    """One table: times, ratios to three references, peaks."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    inputs = tuple(torch.randn(n, d, generator=generator) for _ in range(3))
    routes = candidates()
    times = time_in_turn({name: partial(route, *inputs) for name, route in routes.items()}, rounds)

    def peak_mib(name: str) -> float:
        return round(profile_memory(routes[name], *inputs).peak_bytes / 2**20, 3)

    setting = f"N={n}, d={d}, float32, forward, one thread, {rounds} rounds, torch {torch.__version__}"
    made = rows(times, (QUADRATIC, TEXTBOOK, RECURRENT), peak_mib)
    yield Table("linear", "causal routes", setting, rows=made)


def candidates() -> dict[str, Route]:
    """The routes compared; the recurrent one is the faster of the two that the lab has."""
    plain, tuned = vars(answer_module("07")), vars(answer_module("07", "right/tuned"))
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


def _with_chunk(route: Callable[..., torch.Tensor], chunk: int) -> Route:
    return lambda q, k, v: route(q, k, v, chunk)
