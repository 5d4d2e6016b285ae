"""Lab 08's steps: what tells one memory from another, and calls under meters, made where the answer is."""

import gc
import weakref

import torch
from sliding_window import BlockMaskCache, memory_breakdown, sliding_window_attention, window_mask

from labkit.meters.products import ProductMeter
from labkit.meters.profiler import profile_memory
from labkit.meters.saved import kept_by_forward
from labkit.meters.tensors import AllocationMeter, measure_peak


def mask_after_a_changed_one(seq_len, window):
    """A second mask, made after the first was changed in place."""
    first = window_mask(seq_len, window)
    first.logical_not_()
    return window_mask(seq_len, window)


def cache_session(maxsize, deeds):
    """What a new cache does, deed by deed: ("get", arguments), ("hold", arguments), a get whose user keeps the mask, or
    ("clear",).

    Told of each deed: what came out (of a held mask as it is at the end), its memory as the number of the deed that got
    it first, the peak of the call, `len` afterwards, and the numbers of the deeds whose masks are then in memory.
    """
    cache, told, held, watched = BlockMaskCache(maxsize), [], [], {}
    for number, (kind, *given) in enumerate(deeds):
        result = {"mask": None, "memory": None, "peak_bytes": 0}
        if kind == "clear":
            cache.clear()
        else:
            result["peak_bytes"], mask = measure_peak(cache.get, *given[0])
            result["mask"] = mask
            if isinstance(mask, torch.Tensor):
                watched[number] = weakref.ref(mask.untyped_storage())
                result["memory"] = next(at for at, memory in watched.items() if memory() is watched[number]())
                if kind == "hold":
                    held.append(mask)
                else:
                    result["mask"] = mask.clone()
            mask = None
        told.append(result | {"len": len(cache), "alive": _alive(watched, len(cache))})
    return told


def measured_step(q, k, v, d_out, window, block):
    """A training step's arithmetic in each pass, the bytes kept between them, and the memory of the whole."""
    q, k, v = (x.detach() for x in (q, k, v))
    sliding_window_attention(q, k, v, window, block)  # once outside the count
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    told = {"kept_bytes": kept_by_forward(sliding_window_attention, q, k, v, window, block)}
    with ProductMeter() as forward:
        out = sliding_window_attention(q, k, v, window, block)
    loss = (out * d_out).sum()
    del out
    with ProductMeter() as backward:
        loss.backward()
    del loss
    q.grad = k.grad = v.grad = None
    with AllocationMeter() as memory:
        (sliding_window_attention(q, k, v, window, block) * d_out).sum().backward()
    for name, products in (("forward", forward), ("backward", backward)):
        told[name] = {"flops": products.flops, "fused": products.fused}
    return told | {"peak_bytes": memory.peak_bytes, "largest_bytes": memory.largest_bytes}


def profiled_step(q, k, v, window, block):
    """The peak of a training step in the allocator's own record."""
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))

    def step():
        out = sliding_window_attention(q, k, v, window, block)
        out.sum().backward()
        return out

    gc.collect()
    return profile_memory(step).peak_bytes


def counted_breakdown(*arguments):
    """`memory_breakdown`, and the arithmetic of the products it does."""
    with ProductMeter() as products:
        result = memory_breakdown(*arguments)
    return result, products.flops


def _alive(watched, n_expected):
    """Which memories are there; more than expected may be garbage, which is then collected (a second, with torch)."""
    if len({id(memory()) for memory in watched.values() if memory() is not None}) > n_expected:
        gc.collect()
    return [number for number, memory in watched.items() if memory() is not None]
