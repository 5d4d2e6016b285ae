"""Decoding, one query a head: grouped against the built-in one, split against unsplit, paged against contiguous.

Float32 on one thread, so that splitting wins no hands: what it wins there is that its pieces are small. A step of a
model meets the caches of its layers one after the other and finds none of them in the caches of the CPU; so every
candidate goes through those of several layers in turn. Memory is the CPU allocator's own record of one call
(`torch.profiler`), its peak over the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import cycle

import torch
from torch.nn import functional

from benchmarks.harness import Table, answer_module, rows, time_in_turn
from labkit.meters.profiler import profile_memory

BUILT_IN, UNSPLIT, CONTIGUOUS = "built-in, enable_gqa", "1 split", "contiguous"
MODELS = {"Llama-3-8B": (32, 8), "Llama-3.1-405B": (128, 8), "Llama-2-7B": (32, 32)}
"""Query heads and key heads. The last has no groups: what is left of the ratio there, grouping has no part in."""
BLOCK = 16
LAYERS_BYTES = 512 * 2**20
"""What the layers' caches have together: more than a CPU keeps at hand."""
GATE, GOAL = 1.4, 1.85
"""How many times as fast as the built-in one grouped decoding must be, and is meant to be, in Llama-3-8B's shape."""

Call = Callable[[], object]
Layer = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""One query a head, (1, H_q, 1, d), and the keys and values of a layer's cache, (1, H_kv, N, d)."""


def tables(*, n: int = 8192, d: int = 128, rounds: int = 15) -> Iterator[Table]:
    """A table for each model, grouped against the built-in one; then splits and pages in the first one's shape."""
    torch.set_num_threads(1)
    with torch.no_grad():
        for model, (heads, kv_heads) in MODELS.items():
            layers = some_layers(heads, kv_heads, n, d)
            goal = f"; against {BUILT_IN}: gate {GATE}, goal {GOAL}" if model == next(iter(MODELS)) else ""
            yield _table(f"grouped, {model}", _setting(layers, rounds) + goal, grouped(layers), BUILT_IN, rounds)
        layers = some_layers(*MODELS["Llama-3-8B"], n, d)
        setting = _setting(layers, rounds)
        yield _table("split", setting, split(layers), UNSPLIT, rounds)
        yield _table("paged", f"{setting}, blocks of {BLOCK}", paged(layers), CONTIGUOUS, rounds)


def some_layers(heads: int, kv_heads: int, n: int, d: int) -> list[Layer]:
    """Queries, keys and values of as many layers as have LAYERS_BYTES, and of one at least."""
    generator = torch.Generator().manual_seed(0)
    shapes = (1, heads, 1, d), (1, kv_heads, n, d), (1, kv_heads, n, d)
    count = max(1, LAYERS_BYTES // (2 * kv_heads * n * d * torch.float32.itemsize))
    return [tuple(torch.randn(shape, generator=generator) for shape in shapes) for _ in range(count)]  # type: ignore[misc]


def grouped(layers: Sequence[Layer]) -> dict[str, Call]:
    """Grouped attention: built in, with keys expanded in each call, and the solution's and another right answer's."""
    lab, loops = answer_module("09"), answer_module("09", "right/loops")
    q, k, _ = layers[0]
    group = q.shape[1] // k.shape[1]

    def expanded(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        keys, values = (x.repeat_interleave(group, 1) for x in (k, v))
        return functional.scaled_dot_product_attention(q, keys, values)

    steps = {
        BUILT_IN: partial(functional.scaled_dot_product_attention, enable_gqa=True),
        "one product a key head": lab.grouped_query_attention,
        "a loop over key heads": loops.grouped_query_attention,
    }
    if group > 1 and 2 * group * k.nbytes <= LAYERS_BYTES:
        steps["built-in, keys expanded"] = expanded
    return {name: in_turn([partial(step, *layer) for layer in layers]) for name, step in steps.items()}


def split(layers: Sequence[Layer]) -> dict[str, Call]:
    """The keys in one part and in several."""
    decode = answer_module("09").split_kv_decode
    counts = {UNSPLIT if count == 1 else f"{count} splits": count for count in (1, 2, 4, 8, 16, 32)}
    return {
        name: in_turn([partial(decode, q[:, :, 0], k, v, count) for q, k, v in layers])
        for name, count in counts.items()
    }


def paged(layers: Sequence[Layer]) -> dict[str, Call]:
    """The same keys in one run, and scattered over blocks that a table names."""
    lab, loops = answer_module("09"), answer_module("09", "right/loops")
    n = layers[0][1].shape[2] // BLOCK * BLOCK
    order = torch.randperm(n // BLOCK, generator=torch.Generator().manual_seed(1))
    given = [(q[:, :, 0], *(_scattered(x[0, :, :n], order) for x in (k, v))) for q, k, v in layers]
    table, lengths = order[None], torch.tensor([n])
    return {
        CONTIGUOUS: in_turn([partial(lab.grouped_query_attention, q, k[:, :, :n], v[:, :, :n]) for q, k, v in layers]),
        "paged, a sequence gathered": in_turn([partial(lab.paged_attention, *each, table, lengths) for each in given]),
        "paged, block by block": in_turn([partial(loops.paged_attention, *each, table, lengths) for each in given]),
    }


def in_turn(calls: Sequence[Call]) -> Call:
    """A function that makes the next one of `calls`, round and round."""
    following = cycle(calls)
    return lambda: next(following)()


def _scattered(x: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Keys or values (H_kv, n, d) as a cache of blocks, block `order[i]` with the i-th BLOCK tokens."""
    cache = torch.empty(len(order), BLOCK, x.shape[0], x.shape[2])
    cache[order] = x.transpose(0, 1).unflatten(0, (-1, BLOCK))
    return cache


def _setting(layers: Sequence[Layer], rounds: int) -> str:
    (_, heads, _, d), (_, kv_heads, n, _) = layers[0][0].shape, layers[0][1].shape
    shape = f"{heads} heads on {kv_heads}, N={n}, d={d}, float32, one query, one thread"
    return f"{shape}, {len(layers)} layers in turn, {rounds} rounds, torch {torch.__version__}"


def _table(title: str, setting: str, calls: dict[str, Call], reference: str, rounds: int) -> Table:
    times = time_in_turn(calls, rounds)
    made = rows(times, (reference,), lambda name: round(profile_memory(calls[name]).peak_bytes / 2**20, 3))
    return Table("decode", title, setting, rows=made)
