"""What runs next to the submission: steps of decoding, measured, and what a cache does, call by call."""

import torch
from decoding import (
    BlockManager,
    KVCache,
    RollingKVCache,
    grouped_query_attention,
    paged_attention,
    split_kv_decode,
)

from labkit.meters.blocks import record_random_operations
from labkit.meters.calls import UninitialisedIsNaN
from labkit.meters.moved import MovedBytes
from labkit.meters.products import ProductMeter
from labkit.meters.sessions import run_calls
from labkit.meters.tensors import AllocationMeter
from labkit.testing.probes import probe

FUNCTIONS = {
    "grouped_query_attention": grouped_query_attention,
    "split_kv_decode": split_kv_decode,
    "paged_attention": paged_attention,
}
CACHES = {"KVCache": KVCache, "RollingKVCache": RollingKVCache}


@probe
def counted(task, *arguments):
    """What a task returns, the bytes it moves of q, k and v and holds besides, and the shapes of its products."""
    q, k, v = arguments[:3]
    with AllocationMeter() as memory, ProductMeter() as products, MovedBytes(q=q, k=k, v=v) as moved:
        result = FUNCTIONS[task](*arguments)
    counts = {"read": moved.read, "peak_bytes": memory.peak_bytes}
    return result, counts | {"fused": products.fused, "flops": products.flops, "shapes": products.shapes}


@probe
def call_on_nan(task, *arguments):
    """What a task returns where uninitialised memory holds NaN."""
    with UninitialisedIsNaN():
        return FUNCTIONS[task](*arguments)


@probe
def cache_session(kind, arguments, calls):
    """What a new cache does, call by call: ("append", k, v) or ("truncate", n); and the bytes alive at its end.

    Of each call: the error that it raised, `keys` and `values` afterwards (None where that is no tensor), `len`, the
    bytes written and held by the call, those that reading the keys takes, and whether keys and values are in the memory
    in which they were first.
    """
    with AllocationMeter() as life:
        cache = CACHES[kind](*arguments)
        first = [x.untyped_storage() if isinstance(x, torch.Tensor) else None for x in (cache.keys, cache.values)]
        found = [_after(cache, call, first) for call in calls]
    copies = [x for one in found for x in (one["keys"], one["values"]) if x is not None]
    return found, life.live_bytes - sum(x.nbytes for x in copies)


def _after(cache, call, first):
    name, *given = call
    error = None
    with MovedBytes() as moved, AllocationMeter() as memory:
        try:
            getattr(cache, name)(*given)
        except ValueError as raised:
            error = str(raised)
    with AllocationMeter() as reading:
        tensors = cache.keys, cache.values
    found = {"error": error, "len": cache.__len__(), "written": moved.written}  # len() raises where it is below 0
    found |= {"peak_bytes": memory.peak_bytes, "reading_bytes": reading.peak_bytes}
    found["stays"] = [
        isinstance(x, torch.Tensor) and x.untyped_storage().data_ptr() == old.data_ptr()
        for x, old in zip(tensors, first, strict=True)
    ]
    for name, x in zip(("keys", "values"), tensors, strict=True):
        found[name] = x.clone() if isinstance(x, torch.Tensor) else None
    return found


@probe
def last_after_appends(cache_class, arguments, k, v, number):
    """`len`, and copies of the last keys and values, after k + i and v + i are appended for i from 0 to number − 1."""
    cache = cache_class(*arguments)
    for i in range(number):
        cache.append(k + i, v + i)
    keys, values = cache.keys, cache.values  # both at once, as attention reads them
    n = k.shape[1]
    return cache.__len__(), keys[:, -n:].clone(), values[:, -n:].clone()


@probe
def cache_calls(kind, arguments, calls):
    """What the last of these calls of a new cache's methods gives."""
    return run_calls(CACHES[kind](*arguments), calls)


@probe
def manager_calls(num_blocks, block_size, calls):
    """What the last of these calls of a new manager's methods gives."""
    return run_calls(BlockManager(num_blocks, block_size), calls)


@probe
def random_operations(seed):
    """What a new manager gives, call by call."""
    return record_random_operations(BlockManager, seed)


@probe
def tables_after_theirs_were_changed():
    """The table of a sequence, asked for after lists that were handed out before have been changed."""
    manager = BlockManager(4, 2)
    manager.allocate("a", [1, 2, 3]).append(7)
    first = list(manager.block_table("a"))
    manager.block_table("a").clear()
    return [first, manager.block_table("a")]
