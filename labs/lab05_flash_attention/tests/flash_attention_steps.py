"""Lab 05's steps: calls of the answer under meters, made where the answer is. They measure, and judge nothing."""

import gc
import math
from typing import ClassVar

import torch
from flash_attention import FlashAttention, flash_backward, flash_forward
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.meters.products import ProductMeter
from labkit.meters.saved import kept_by_forward
from labkit.meters.tensors import AllocationMeter


class UninitialisedIsNaN(TorchDispatchMode):
    """Fills what `torch.empty` and its like hand out with NaN, which on another day may be there by itself."""

    EMPTY: ClassVar = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}

    @classmethod
    def _should_skip_dynamo(cls):
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func._schema.name.removeprefix("aten::") in self.EMPTY and out.is_floating_point():
            out.fill_(math.nan)
        return out


def measured_call(task, *args):
    """What `flash_forward` or `flash_backward` returns, and what it allocated and computed."""
    return _measured(_function(task), *args)


def call_on_nan(task, *args):
    """What `flash_forward` or `flash_backward` returns where uninitialised memory holds NaN."""
    with UninitialisedIsNaN():
        return _function(task)(*args)


def measured_step(Q, K, V, dO, causal):
    """The output and the gradients of a training step, and what each of its passes allocated and computed."""
    inputs = _leaves(Q, K, V)
    O, forward = _measured(_apply, inputs, causal)
    if not isinstance(O, torch.Tensor):
        return O, [], {"the forward pass": forward}
    _, backward = _measured((O * dO).sum().backward)
    passes = {"the forward pass": forward, "the backward pass": backward}
    return O.detach(), [x.grad for x in inputs], passes


def step_on_nan(Q, K, V, dO, causal):
    """The output and the gradients of a training step where uninitialised memory holds NaN."""
    inputs = _leaves(Q, K, V)
    with UninitialisedIsNaN():
        O = _apply(inputs, causal)
        if not isinstance(O, torch.Tensor):
            return O, []
        (O * dO).sum().backward()
    return O.detach(), [x.grad for x in inputs]


def output_around_backward(Q, K, V, dO, causal):
    """The output of a training step before its backward pass, and after it; Q, K and V are handed on as they are."""
    O = _apply(_leaves(Q, K, V), causal)
    if not isinstance(O, torch.Tensor):
        return O, None
    before = O.detach().clone()
    (O * dO).sum().backward()
    return before, O.detach()


def saved_by_apply(Q, K, V):
    """The output, and what autograd saves: for what lies in the memory of Q, K, V or O its name, otherwise itself."""
    inputs, saved = _leaves(Q, K, V), []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x.detach()) or x, lambda x: x):
        O = FlashAttention.apply(*inputs)
    if not isinstance(O, torch.Tensor):
        return O, []
    own = {_memory(x): name for name, x in zip("QKVO", (*inputs, O), strict=True)}
    return O.detach(), [own.get(_memory(x), x) for x in saved]


def kept_by_apply(Q, K, V):
    """The bytes besides the output that a forward pass, the second one, leaves behind."""
    inputs = _leaves(Q, K, V)
    FlashAttention.apply(*inputs)  # once outside the count: what is made once and for all is no matter
    return kept_by_forward(FlashAttention.apply, *inputs)


def left_by_apply(Q, K, V):
    """The bytes that are still alive when the output of a forward pass, the second one, is gone."""
    FlashAttention.apply(Q, K, V)
    gc.collect()
    gc.disable()
    try:
        with AllocationMeter() as meter:
            O = FlashAttention.apply(*_leaves(Q, K, V))
            del O
        return meter.live_bytes
    finally:
        gc.enable()


def _function(task):
    return {"flash_forward": flash_forward, "flash_backward": flash_backward}[task]


def _measured(fn, *args):
    with ProductMeter() as products, AllocationMeter() as memory:
        result = fn(*args)
    counts = {"flops": products.flops, "fused": products.fused}
    return result, counts | {"peak_bytes": memory.peak_bytes, "largest_bytes": memory.largest_bytes}


def _leaves(*inputs):
    return [x.detach().requires_grad_() for x in inputs]


def _apply(inputs, causal):
    return FlashAttention.apply(*inputs, True) if causal else FlashAttention.apply(*inputs)


def _memory(tensor):
    return tensor.untyped_storage().data_ptr()
