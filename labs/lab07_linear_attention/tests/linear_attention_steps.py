"""Lab 07's steps: calls of the answer under meters or on a small device, made where it is. They judge nothing."""

import torch
from linear_attention import (
    causal_linear_attention_chunked,
    causal_linear_attention_cumsum,
    causal_linear_attention_recurrent,
    causal_linear_attention_scan,
    linear_attention,
    linear_attention_memory,
    profile_attention_memory,
)
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.meters.products import ProductMeter
from labkit.meters.tensors import AllocationMeter


class Device(TorchDispatchMode):
    """Notes the operators that run and the devices of what they make; raises `error` where too large an array is."""

    def __init__(self, most_elements=None, error=None):
        super().__init__()
        self.most_elements, self.error = most_elements, error
        self.operators, self.devices = [], set()

    @classmethod
    def _should_skip_dynamo(cls):
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.operators.append(func._schema.name.removeprefix("aten::"))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, torch.Tensor):
                self.devices.add(tensor.device.type)
                if self.most_elements and tensor.numel() > self.most_elements:
                    raise self.error
        return out


def measured_call(task, *args):
    """What the task's function returns, and what it allocated, computed and ran."""
    function = _function(task)
    with Device() as seen, ProductMeter() as products, AllocationMeter() as memory:
        result = function(*args)
    counts = {"flops": products.flops, "operators": seen.operators}
    return result, counts | {"peak_bytes": memory.peak_bytes, "largest_bytes": memory.largest_bytes}


def profile_seen(*args, **options):
    """The rows of a profile, and the devices of all that it made."""
    with Device() as seen:
        rows = profile_attention_memory(*args, **options)
    return rows, sorted(seen.devices)


def profile_on_a_small_device(most_elements, kind, said, *args):
    """The rows of a profile where an array of more than `most_elements` elements is an error of a kind that says so."""
    error = {"OutOfMemoryError": torch.OutOfMemoryError, "RuntimeError": RuntimeError}[kind](said)
    with Device(most_elements, error):
        return profile_attention_memory(*args)


def _function(task):
    return {
        "linear_attention": linear_attention,
        "causal_linear_attention_cumsum": causal_linear_attention_cumsum,
        "causal_linear_attention_recurrent": causal_linear_attention_recurrent,
        "causal_linear_attention_chunked": causal_linear_attention_chunked,
        "causal_linear_attention_scan": causal_linear_attention_scan,
        "linear_attention_memory": linear_attention_memory,
    }[task]
