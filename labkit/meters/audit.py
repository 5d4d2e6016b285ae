"""What an attention's training step takes, and what somebody else's audit of it runs: seen where the answer is."""

import gc
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch

from labkit.meters.allocation import AllocationMeter
from labkit.meters.arrays_seen import ArraysSeen
from labkit.meters.products import ProductMeter
from labkit.meters.profiler import profile_memory
from labkit.meters.saved import kept_by_forward

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def step_taken(
    attend: Attend, inputs: Sequence[torch.Tensor], d_out: torch.Tensor
) -> tuple[torch.Tensor, dict[str, Any]]:
    """A training step's arithmetic in each pass, the bytes kept between them, and the memory of the whole."""
    q, k, v = (x.detach() for x in inputs)
    attend(q, k, v)  # once outside the count
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    told: dict[str, Any] = {"kept_bytes": kept_by_forward(attend, q, k, v)}
    with ProductMeter() as forward:
        out = attend(q, k, v)
    loss = (out * d_out).sum()
    result = out.detach().clone()
    del out
    with ProductMeter() as backward:
        loss.backward()
    del loss
    q.grad = k.grad = v.grad = None
    with AllocationMeter() as memory:
        (attend(q, k, v) * d_out).sum().backward()
    for name, products in (("forward", forward), ("backward", backward)):
        told[name] = {"flops": products.flops, "fused": products.fused}
    told |= {"peak_bytes": memory.peak_bytes, "largest_bytes": memory.largest_bytes, "shapes": forward.shapes}
    return result, told


def profiled_peak(attend: Attend, inputs: Sequence[torch.Tensor]) -> int:
    """The peak of a training step in the allocator's own record."""
    q, k, v = (x.detach().requires_grad_() for x in inputs)

    def step() -> torch.Tensor:
        out = attend(q, k, v)
        out.sum().backward()
        return out

    gc.collect()
    return profile_memory(step).peak_bytes


def watched(run: Callable[[], Any], shape: tuple[int, ...]) -> tuple[list[Any], list[Any], int, int]:
    """What `run` makes: q, k and v, all arrays of their shape, FLOPs of products, masks made."""
    with ArraysSeen(shape) as seen:
        run()
    arrays = [x.detach().clone() for x in seen.arrays.values()]
    return [x.detach().clone() for x in seen.leaves()], arrays, seen.flops, seen.n_masks


def flops_of_a_step(attend: Attend, shape: tuple[int, ...]) -> int:
    """The arithmetic of the products of one training step."""
    inputs = [torch.zeros(shape).requires_grad_() for _ in range(3)]
    with ProductMeter() as products:
        attend(*inputs).sum().backward()
    return products.flops


def flex_calls(run: Callable[[], Any], answer: ModuleType) -> list[Any]:
    """What FlexAttention is given and gives while `run` does: (q, k, v) and out, of each call."""
    from torch.nn.attention import flex_attention as room

    original: Any = room.flex_attention
    calls: list[Any] = []

    def noted(*args: Any, **kwargs: Any) -> Any:
        out = original(*args, **kwargs)
        given = dict(zip(("query", "key", "value"), args, strict=False)) | kwargs
        calls.append(([given[name].detach() for name in ("query", "key", "value")], [out.detach()]))
        return out

    places = [(each, name) for each in (room, answer) for name, x in vars(each).items() if x is original]
    for each, name in places:
        setattr(each, name, noted)
    try:
        run()
    finally:
        for each, name in places:
            setattr(each, name, original)
    return calls
