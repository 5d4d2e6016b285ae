"""Chapter 9: decoding, one query per head: grouped against built-in, split against unsplit, paged against contiguous.

Float32 on one thread. A model's step reads the caches of its layers one after the other and finds none of them in the
processor's cache, so every candidate goes through several layers in turn. Peaks are of one call, over the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import cycle

import torch
from torch.nn import functional

from benchmarks.harness import Column, Table, made, peak_mib, solution_module, time_in_turn

PAGE = "labs/lab09_decoding/README.md"
BUILT_IN, UNSPLIT, CONTIGUOUS = "built-in, `enable_gqa=True`", "1 split", "contiguous"
MODELS = {"Llama-3.1-8B": (32, 8), "Llama-3.1-405B": (128, 8), "Llama-2-7B": (32, 32)}
"""Query heads and key heads. The last has no groups, so its ratio shows what is not due to grouping."""
BLOCK = 16
LAYERS_BYTES = 512 * 2**20
"""Size of all the layers' caches together: more than a CPU's cache."""

Call = Callable[[], object]
Layer = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""One query a head, (1, H_q, 1, d), and the keys and values of a layer's cache, (1, H_kv, N, d)."""


def tables(*, n: int = 8192, d: int = 128, rounds: int = 15) -> Iterator[Table]:
    """Grouped against the built-in function in three models' shapes; splits and pages in the first one's shape."""
    setting = f"N={n}, d={d}, float32, one query, one thread, {rounds} rounds, torch {torch.__version__}"
    with torch.no_grad():
        columns: dict[str, Column] = {}
        for model, (heads, kv_heads) in MODELS.items():
            calls = grouped(random_layers(heads, kv_heads, n, d))
            columns[model] = time_in_turn(calls, rounds).times_as_fast(BUILT_IN)
        heading = "times as fast as the built-in one"
        yield made("decode", PAGE, setting, heading, calls, columns)
        layers = random_layers(*MODELS["Llama-3.1-8B"], n, d)
        for name, calls, reference, column in (
            ("split", split(layers), UNSPLIT, "× one split"),
            ("paged", paged(layers), CONTIGUOUS, "× contiguous"),
        ):
            columns = {column: time_in_turn(calls, rounds).times_as_fast(reference), "peak, MiB": peak_mib(calls)}
            shape = f"32 heads on 8, blocks of {BLOCK}, {setting}"
            yield made(name, PAGE, shape, "", calls, columns)


def random_layers(heads: int, kv_heads: int, n: int, d: int) -> list[Layer]:
    """Queries, keys and values of as many layers as have LAYERS_BYTES together, at least one."""
    generator = torch.Generator().manual_seed(0)
    layers = []
    for _ in range(max(1, LAYERS_BYTES // (2 * kv_heads * n * d * torch.float32.itemsize))):
        query = torch.randn(1, heads, 1, d, generator=generator)
        keys, values = (torch.randn(1, kv_heads, n, d, generator=generator) for _ in range(2))
        layers.append((query, keys, values))
    return layers


def grouped(layers: Sequence[Layer]) -> dict[str, Call]:
    """Grouped attention: built in, the solution's, and an alternative solution's."""
    steps = {
        BUILT_IN: partial(functional.scaled_dot_product_attention, enable_gqa=True),
        "one product a key head": solution_module("09").grouped_query_attention,
        "a loop over key heads": solution_module("09", "alternatives/loops").grouped_query_attention,
    }
    return {name: in_turn([partial(step, *layer) for layer in layers]) for name, step in steps.items()}


def split(layers: Sequence[Layer]) -> dict[str, Call]:
    """The keys in one part and in several."""
    decode = solution_module("09").split_kv_decode
    counts = {UNSPLIT if count == 1 else f"{count} splits": count for count in (1, 2, 8, 32)}
    return {
        name: in_turn([partial(decode, q[:, :, 0], k, v, count) for q, k, v in layers])
        for name, count in counts.items()
    }


def paged(layers: Sequence[Layer]) -> dict[str, Call]:
    """The same keys contiguous, and scattered over blocks with a block table."""
    lab, loops = solution_module("09"), solution_module("09", "alternatives/loops")
    n = layers[0][1].shape[2] // BLOCK * BLOCK
    order = torch.randperm(n // BLOCK, generator=torch.Generator().manual_seed(1))
    arguments = [(q[:, :, 0], *(_scattered(x[0, :, :n], order) for x in (k, v))) for q, k, v in layers]
    table, lengths = order[None], torch.tensor([n])
    contiguous = [partial(lab.grouped_query_attention, q, k[:, :, :n], v[:, :, :n]) for q, k, v in layers]
    gathered = [partial(lab.paged_attention, *of_layer, table, lengths) for of_layer in arguments]
    looped = [partial(loops.paged_attention, *of_layer, table, lengths) for of_layer in arguments]
    return {
        CONTIGUOUS: in_turn(contiguous),
        "a sequence's blocks gathered, then one product a key head": in_turn(gathered),
        "block by block": in_turn(looped),
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
