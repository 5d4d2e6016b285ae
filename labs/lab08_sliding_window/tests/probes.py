"""What runs next to the submission: training steps, sessions of a cache, and an audit, each measured."""

import contextlib
import gc
import math
import weakref
from functools import partial

import sliding_window
import torch
from sliding_window import BlockMaskCache, memory_breakdown, sliding_window_attention, window_mask
from torch.utils._pytree import tree_leaves

from labkit.meters.allocation import AllocationMeter
from labkit.meters.arrays import measure_arrays
from labkit.meters.products import ProductMeter
from labkit.meters.steps import penalised_gradients
from labkit.meters.steps import step as step_of
from labkit.meters.tensors import kept_by_forward, measure_peak
from labkit.testing.probes import probe

# Masks and tiles


@probe
def peaks_of_call(task, *args):
    """The most bytes that a call of a task allocates at one moment: of arrays, and in another call of tensors."""
    function = getattr(sliding_window, task)
    return measure_arrays(function, *args).peak_bytes, measure_peak(function, *args).peak_bytes


# sliding_window_attention


@probe
def plain_step(q, k, v, d_out, window, block, on_nan=False):
    """A training step: the output, and the gradients of q, k and v; where asked, uninitialised memory holds NaN."""
    attend = partial(sliding_window_attention, window=window, block=block)
    out, _, gradients = step_of(attend, [q, k, v], d_out, on_nan)
    return out, *gradients


@probe
def step_with_a_penalty(q, k, v, d_out, window, block):
    """The gradients of a loss and the squares of its own gradients, or the message of the RuntimeError."""
    attend = partial(sliding_window_attention, window=window, block=block)
    return penalised_gradients(attend, (q, k, v), d_out)


@probe
def measured_step(q, k, v, d_out, window, block):
    """A training step's output; each pass's products, the bytes kept between the passes, the peak of both."""
    attend = partial(sliding_window_attention, window=window, block=block)
    attend(q, k, v)  # whatever a first call makes is not counted
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    kept_bytes = kept_by_forward(attend, q, k, v)
    with ProductMeter() as forward:
        out = attend(q, k, v)
    with ProductMeter() as backward:
        (out * d_out).sum().backward()
    result = out.detach().clone()
    q.grad = k.grad = v.grad = out = None
    with AllocationMeter() as memory:
        (attend(q, k, v) * d_out).sum().backward()
    counts = {"kept_bytes": kept_bytes, "peak_bytes": memory.peak_bytes, "largest_bytes": memory.largest_bytes}
    counts |= {"shapes": forward.shapes, "fused": forward.fused + backward.fused}
    return result, counts | {"forward": forward.flops, "backward": backward.flops}


# BlockMaskCache


@probe
def cache_session(maxsize, operations):
    """What a new cache does, one operation after the other.

    An operation is ("get", arguments), ("hold", arguments), a get whose caller keeps the mask, ("fail", arguments), a
    get that raises, or ("clear",). Of each: the mask; the number of the operation that first gave this tensor, and of
    the one that first gave its memory; the peak of the call; `len` afterwards; and the numbers of the operations whose
    masks are then in memory.
    """
    cache, found, held = BlockMaskCache(maxsize), [], []
    memories, tensors = {}, {}
    for number, (kind, *given) in enumerate(operations):
        result = {"mask": None, "memory": None, "tensor": None, "peak_bytes": 0}
        if kind == "clear":
            cache.clear()
        elif kind == "fail":
            with contextlib.suppress(ValueError):
                cache.get(*given[0])
        else:
            result["peak_bytes"], _, mask = measure_peak(cache.get, *given[0])
            result["mask"] = mask
            if isinstance(mask, torch.Tensor):
                memories[number], tensors[number] = weakref.ref(mask.untyped_storage()), weakref.ref(mask)
                result["memory"] = next(at for at, memory in memories.items() if memory() is memories[number]())
                result["tensor"] = next(at for at, tensor in tensors.items() if tensor() is mask)
                if kind == "hold":
                    held.append(mask)
                else:
                    result["mask"] = mask.clone()
            mask = None
        found.append(result | {"len": len(cache), "alive": _alive(memories, len(cache))})
    return found


def _alive(memories, n_expected):
    """Which memories are there; more than expected may be garbage, which is then collected (a second, with torch)."""
    if len({id(memory()) for memory in memories.values() if memory() is not None}) > n_expected:
        gc.collect()
    return [number for number, memory in memories.items() if memory() is not None]


@probe
def number_held(maxsize, n_windows):
    """How many masks a cache of `maxsize` holds after as many windows as that, each mask 64 KiB."""
    cache = BlockMaskCache(maxsize)
    for window in range(1, n_windows + 1):
        cache.get(2048, window, 8)
    return len(cache)


@probe
def length_while_another_is_asked(*key):
    """The len of a new cache after another one was asked for a mask."""
    first, second = BlockMaskCache(2), BlockMaskCache(1)
    first.get(*key)
    return len(second)


@probe
def mask_of_new_cache(*key):
    """What a new cache returns."""
    return BlockMaskCache(1).get(*key)


# memory_breakdown


class ArraysSeen(ProductMeter):
    """Holds every array of `shape` that an operator reads or makes, and counts the masks that are made.

    Leading axes may be taken together, as products of matrices do. A mask is a memory of bool with N × N numbers; one
    that only exchanges True and False of another is not counted.
    """

    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.arrays, self.masks = {}, {}

    def _see(self, func, args, kwargs):
        out = super()._see(func, args, kwargs)
        for x in filter(torch.is_tensor, tree_leaves((args, kwargs, out))):
            if x.numel() == math.prod(self.shape) and x.shape[-2:] == self.shape[-2:]:
                self.arrays[id(x)] = x
        name = func._schema.name
        if "_not" in name and not name.endswith("_not_"):
            return out
        for x in filter(torch.is_tensor, tree_leaves(out)):
            if x.dtype == torch.bool and x.numel() == self.shape[-2] ** 2:
                self.masks[x.untyped_storage()._cdata] = x
        return out


@probe
def watched_breakdown(shape, *arguments):
    """What `memory_breakdown` makes: q, k and v, all arrays of their shape, FLOPs of products, number of masks."""
    with ArraysSeen(shape) as seen:
        memory_breakdown(*arguments)
    every = list(seen.arrays.values())
    inputs = [x for x in every if _is_leaf(x) and x.grad is not None]
    return *([x.detach().clone() for x in group] for group in (inputs, every)), seen.flops, len(seen.masks)


def _is_leaf(x):
    try:
        return x.requires_grad and x.is_leaf
    except RuntimeError:  # a view of a tensor that was changed since: autograd raises
        return False


@probe
def masks_of_one_call(shape, window):
    """How many N × N arrays of bool one call of `window_mask` makes."""
    with ArraysSeen(shape) as seen:
        window_mask(shape[-2], window)
    return len(seen.masks)


@probe
def watched_flex(*arguments):
    """What FlexAttention is given and returns while `memory_breakdown` runs: (q, k, v) and out, of each call."""
    import sliding_window as submission
    from torch.nn.attention import flex_attention as module

    original, calls = module.flex_attention, []

    def noted(*args, **kwargs):
        out = original(*args, **kwargs)
        given = dict(zip(("query", "key", "value"), args, strict=False)) | kwargs
        calls.append(([given[name].detach() for name in ("query", "key", "value")], [out.detach()]))
        return out

    places = [(each, name) for each in (module, submission) for name, x in vars(each).items() if x is original]
    for each, name in places:
        setattr(each, name, noted)
    try:
        memory_breakdown(*arguments)
    finally:
        for each, name in places:
            setattr(each, name, original)
    return calls
