"""What runs next to the submission: calls whose memory is measured, and arguments as a call leaves them."""

import torch
from compressed_cache import attention_sink_logit, attention_with_sinks, cache_under_budget, mla_decode, quantize_kv

from labkit.meters.calls import UninitialisedIsNaN
from labkit.meters.moved import MovedBytes
from labkit.meters.products import ProductMeter
from labkit.meters.tensors import AllocationMeter
from labkit.testing.probes import probe

FUNCTIONS = {
    "mla_decode": mla_decode,
    "attention_with_sinks": attention_with_sinks,
    "attention_sink_logit": attention_sink_logit,
}


@probe
def measured_call(task, tensors, **options):
    """What attention returns, and what it took: bytes read of each tensor, by its name, peak, and products."""
    with AllocationMeter() as memory, ProductMeter() as products, MovedBytes(**tensors) as moved:
        result = FUNCTIONS[task](*tensors.values(), **options)
    counts = {"read": dict(moved.read), "peak_bytes": memory.peak_bytes}
    return result, counts | {"fused": products.fused, "flops": products.flops}


@probe
def call_on_nan(task, *tensors, **options):
    """What attention returns where uninitialised memory holds NaN."""
    with UninitialisedIsNaN():
        return FUNCTIONS[task](*tensors, **options)


@probe
def bytes_kept(k, v, bits, group):
    """For each tensor of a quantized cache: the bytes of memory that it keeps alive, and those of its own numbers."""
    cache = quantize_kv(k, v, bits, group)
    tensors = {name: x for name, x in cache.items() if isinstance(x, torch.Tensor)}
    return {name: (x.untyped_storage().nbytes(), x.nbytes) for name, x in tensors.items()}


@probe
def last_of_many(function, k, v, bits, group, number):
    """The last of so many quantized caches, all of which are kept until it is made."""
    return [function(k, v, bits, group) for _ in range(number)][-1]


@probe
def model_after(model, nbytes, tokens):
    """The model, when a scheme has been chosen."""
    cache_under_budget(model, nbytes, tokens)
    return model
