"""Decoding, one query a head: grouped against the built-in one, split against unsplit, paged against contiguous.

Float32 on one thread, where splitting can only cost: it stands here for honesty's sake. Memory is the CPU allocator's
own record of one call (`torch.profiler`), its peak over the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch.nn import functional

from benchmarks.harness import Table, answer_module, rows, time_in_turn
from labkit.meters.profiler import profile_memory

BUILT_IN, UNSPLIT, CONTIGUOUS = "built-in, enable_gqa", "1 split", "contiguous"
HEADS, KV_HEADS, BLOCK = 32, 8, 16
GATE, GOAL = 1.4, 1.85
"""How many times as fast as the built-in one grouped decoding must be, and is meant to be."""

Call = Callable[[], object]


def tables(*, n: int = 8192, d: int = 128, rounds: int = 15) -> Iterator[Table]:
    """Three tables: each form against its reference, and what it holds at its peak."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, HEADS, 1, d, generator=generator)
    k, v = (torch.randn(1, KV_HEADS, n, d, generator=generator) for _ in range(2))
    heads = f"{HEADS} heads on {KV_HEADS}, N={n}, d={d}, float32, one query, one thread"
    setting = f"{heads}, {rounds} rounds, torch {torch.__version__}"
    goal = f"; against {BUILT_IN}: gate {GATE}, goal {GOAL}"
    with torch.no_grad():
        yield _table("grouped", setting + goal, grouped(q, k, v), BUILT_IN, rounds)
        yield _table("split", setting, split(q, k, v), UNSPLIT, rounds)
        yield _table("paged", f"{setting}, blocks of {BLOCK}", paged(q, k, v), CONTIGUOUS, rounds)


def grouped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> dict[str, Call]:
    """One step of grouped attention: built in, with keys expanded beforehand in each call, and the solution's."""
    lab, group = answer_module("09"), q.shape[1] // k.shape[1]
    loops = answer_module("09", "right/loops")

    def expanded() -> torch.Tensor:
        keys, values = (x.repeat_interleave(group, 1) for x in (k, v))
        return functional.scaled_dot_product_attention(q, keys, values)

    return {
        BUILT_IN: lambda: functional.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        "built-in, keys expanded": expanded,
        "one product a key head": lambda: lab.grouped_query_attention(q, k, v),
        "a loop over key heads": lambda: loops.grouped_query_attention(q, k, v),
    }


def split(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> dict[str, Call]:
    """The keys in one part and in several."""
    lab, one = answer_module("09"), q[:, :, 0]
    counts = {UNSPLIT if count == 1 else f"{count} splits": count for count in (1, 2, 4, 8, 16, 32)}
    return {name: partial(lab.split_kv_decode, one, k, v, count) for name, count in counts.items()}


def paged(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> dict[str, Call]:
    """The same keys in one run, and scattered over blocks that a table names."""
    lab, loops = answer_module("09"), answer_module("09", "right/loops")
    n = k.shape[2] // BLOCK * BLOCK
    order = torch.randperm(n // BLOCK, generator=torch.Generator().manual_seed(1))
    caches = []
    for x in (k, v):
        cache = torch.empty(n // BLOCK, BLOCK, *(x.shape[1], x.shape[3]))
        cache[order] = x[0, :, :n].transpose(0, 1).unflatten(0, (-1, BLOCK))
        caches.append(cache)
    arguments = (q[:, :, 0], *caches, order[None], torch.tensor([n]))
    return {
        CONTIGUOUS: lambda: lab.grouped_query_attention(q, k[:, :, :n], v[:, :, :n]),
        "paged, a sequence gathered": lambda: lab.paged_attention(*arguments),
        "paged, block by block": lambda: loops.paged_attention(*arguments),
    }


def _table(title: str, setting: str, calls: dict[str, Call], reference: str, rounds: int) -> Table:
    times = time_in_turn(calls, rounds)
    made = rows(times, (reference,), lambda name: round(profile_memory(calls[name]).peak_bytes / 2**20, 3))
    return Table("decode", title, setting, rows=made)
