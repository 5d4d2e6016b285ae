"""What runs next to the submission: caches and servers, and the bytes that they hold and read."""

import torch
from serving import BlockManager, QuantizedBlocks, Scheduler, Server
from torch.utils._pytree import tree_leaves

from labkit.meters.blocks import record_random_operations
from labkit.meters.modes import OperatorMode
from labkit.meters.moved import MovedBytes
from labkit.meters.products import ProductMeter
from labkit.meters.sessions import run_calls
from labkit.meters.tensors import AllocationMeter
from labkit.serving.records import held_while_serving, record_plans, record_serving
from labkit.testing.probes import probe


@probe
def manager_calls(num_blocks, block_size, calls):
    """What the last of these calls of a new manager's methods gives."""
    return run_calls(BlockManager(num_blocks, block_size), calls)


@probe
def random_operations(seed):
    """What a new manager gives, call by call."""
    return record_random_operations(BlockManager, seed)


@probe
def cache_calls(sizes, calls):
    """What the last of these calls of a new cache's methods gives."""
    return run_calls(QuantizedBlocks(*sizes), calls)


@probe
def scheduler_calls(sizes, calls):
    """What the last of these calls of a new scheduler's methods gives."""
    return run_calls(Scheduler(*sizes), calls)


@probe
def server_calls(sizes, calls):
    """What the last of these calls of a new server's methods gives."""
    return run_calls(Server(*sizes), calls)


@probe
def bytes_of_blocks(sizes, k, v):
    """The bytes alive when such a cache is made, and when it is full."""
    with AllocationMeter() as life:
        cache = QuantizedBlocks(*sizes)
        when_made = life.live_bytes
        fill(cache, sizes, k, v)
        return {"made": when_made, "full": life.live_bytes}


@probe
def bytes_of_attention(sizes, k, v, q):
    """Attention's result over such a cache, full of k and v; its peak over half of it and all, and what it reads."""
    with MadeTensors() as made:
        cache = QuantizedBlocks(*sizes)
    fill(cache, sizes, k, v)
    table = list(range(sizes[0]))

    def attend(n_tokens):
        return cache.attend(sizes[2] - 1, q, table, n_tokens - len(q))

    peaks = []
    for n_tokens in (len(k) // 2, len(k)):
        with AllocationMeter() as memory:
            attend(n_tokens)
        peaks.append(memory.peak_bytes)
    result, read, fused = read_by(made, lambda: attend(len(k)))
    _, early, _ = read_by(made, lambda: attend(len(k) // 8))
    return {"result": result, "peaks": peaks, "read": read, "fused": fused, "early": early}


def fill(cache, sizes, k, v):
    """Write k and v to all places of all layers."""
    at, block_size = range(len(k)), sizes[1]
    for layer in range(sizes[2]):
        cache.write(layer, [t // block_size for t in at], [t % block_size for t in at], k, v)


@probe
def arguments_of_a_cache(sizes, k, v, q):
    """The caller's keys, values and queries when all have been written, block by block, and attended."""
    cache, block_size = QuantizedBlocks(*sizes), sizes[1]
    at = range(len(k))
    cache.write(0, [t // block_size for t in at], [t % block_size for t in at], k, v)
    cache.attend(0, q, list(range(sizes[0])), len(k) - len(q))
    return k, v, q


@probe
def table_after_a_change():
    """The table of a sequence after the caller has appended to the one that it got."""
    manager = BlockManager(4, 2)
    manager.allocate("a", [5, 6, 7])
    manager.block_table("a").append(3)
    return manager.block_table("a")


@probe
def full_cache(sizes, n_tokens, seed):
    """Attention of the last of so many tokens, drawn 64 at a time, in the last layer of a cache full of them."""
    cache, generator = QuantizedBlocks(*sizes), torch.Generator().manual_seed(seed)
    block_size, layers, kv_heads, d = sizes[1:5]
    for first in range(0, n_tokens, 64):
        at = range(first, first + 64)
        k, v = torch.randn(2, 64, kv_heads, d, generator=generator)
        for layer in range(layers):
            cache.write(layer, [t // block_size for t in at], [t % block_size for t in at], k, v)
    q = torch.randn(1, 2 * kv_heads, d, generator=generator)
    return cache.attend(layers - 1, q, list(range(sizes[0])), n_tokens - 1)


@probe
def prompt_after_a_step(prompt):
    """What the caller's list holds when its request has got a token."""
    scheduler = Scheduler(4, 2, 8)
    scheduler.submit("a", prompt, 2)
    scheduler.plan()
    scheduler.advance({"a": 9})
    return prompt


@probe
def plans_of_scheduler(num_blocks, block_size, max_tokens, trace):
    """What a new scheduler gives, call by call, while a trace is served without a model."""
    sizes = num_blocks, block_size
    return record_plans(lambda: Scheduler(*sizes, max_tokens), trace, max_tokens, sizes)


@probe
def plans_of_server(spec, nbytes, max_tokens, trace):
    """What a new server gives, call by call, while a trace is served without a model."""
    return record_plans(lambda: Server(spec, nbytes, max_tokens), trace, max_tokens)


@probe
def served_by_server(spec, nbytes, max_tokens, trace, metered=False):
    """What a new server gives, call by call, while a trace is served; the bytes that it holds, and that steps keep."""
    return record_serving(Server, spec, nbytes, max_tokens, trace, metered)


@probe
def held_by_server(spec, nbytes, max_tokens, requests):
    """The bytes that a server holds while it serves requests, step by step."""
    return held_while_serving(Server, spec, nbytes, max_tokens, requests)


@probe
def served_from_outside(spec, nbytes, max_tokens, requests):
    """How many tokens a server computes for requests."""
    return held_while_serving(Server, spec, nbytes, max_tokens, requests, metered=False)["tokens"]


class MadeTensors(OperatorMode):
    """Between entering and leaving, keeps every tensor that an operator makes: whatever an object lives on."""

    def __init__(self):
        super().__init__()
        self.tensors = []

    def _see(self, func, args, kwargs):
        out = func(*args, **kwargs)
        self.tensors += [x for x in tree_leaves(out) if isinstance(x, torch.Tensor)]
        return out


def read_by(made, call):
    """What `call` returns, the bytes that it reads of the tensors made before, and torch's own attention it calls."""
    by_storage = {x.untyped_storage()._cdata: x for x in made.tensors}
    named = {f"x{number}": x for number, x in enumerate(by_storage.values())}
    with MovedBytes(**named) as moved, ProductMeter() as products:
        result = call()
    return result, sum(moved.read.values()), products.fused
