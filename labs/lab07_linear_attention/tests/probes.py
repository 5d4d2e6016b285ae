"""What runs next to the submission: measured calls, backward passes, and profiles on devices that are too small."""

import linear_attention

from labkit.meters.calls import OperatorsSeen, UninitialisedIsNaN, measured
from labkit.meters.fakes import SmallDevice, out_of_memory
from labkit.meters.tensors import kept_by_forward, measure_peak
from labkit.testing.probes import probe


@probe
def measured_call(task, *args):
    """What the task's function returns, and what it allocated, computed and ran."""
    with OperatorsSeen() as seen:
        result, counts = measured(getattr(linear_attention, task), *args)
    return result, counts | {"operators": seen.operators}


@probe
def peaks_of(tasks, *args):
    """The most bytes that a call of each task allocates at one moment."""
    return [measure_peak(getattr(linear_attention, task), *args).peak_bytes for task in tasks]


@probe
def kept_bytes_of(task, inputs, *options):
    """The bytes that autograd keeps for a backward pass through the task's function."""
    return kept_by_forward(getattr(linear_attention, task), *(x.requires_grad_() for x in inputs), *options)


@probe
def call_on_nan(task, *args):
    """What the task's function returns where uninitialised memory holds NaN."""
    with UninitialisedIsNaN():
        return getattr(linear_attention, task)(*args)


@probe
def gradients_of(task, inputs, factors, *options):
    """The gradients of the sum of what the task's function returns, each number times its factor."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    out = getattr(linear_attention, task)(*leaves, *options)
    if out.requires_grad:
        (out * factors).sum().backward()
    return [x.grad for x in leaves]


@probe
def profile_seen(*args, **options):
    """The rows of a profile, and the devices of all tensors that it made."""
    with OperatorsSeen() as seen:
        rows = linear_attention.profile_attention_memory(*args, **options)
    return rows, sorted(seen.devices)


@probe
def profile_of_a_generator(lengths, *args):
    """The rows of a profile whose lengths can be gone through once."""
    return linear_attention.profile_attention_memory((n for n in lengths), *args)


@probe
def profile_on_a_small_device(capacity_bytes, where, *args):
    """The rows of a profile where a larger tensor is an error: out of memory on `where`, or another if that is ""."""
    other = RuntimeError("mat1 and mat2 shapes cannot be multiplied")
    with SmallDevice(capacity_bytes, lambda: out_of_memory(where) if where else other):
        return linear_attention.profile_attention_memory(*args)
