"""What runs next to the submission: functions given as text, a CUDA allocator and a clock that the tests control."""

import contextlib
import gc
import math
import time
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.meters.allocation import AllocationMeter
from labkit.testing.probes import probe

CLOCKS = ("perf_counter", "monotonic", "time", "process_time", "thread_time")
"""The clocks of `time`; each has a twin in nanoseconds, `…_ns`."""
NOT_TIMED_MS = 10_000
"""What a step under a tracker takes, and the making of random inputs."""


@probe
def left_on():
    """Descriptions of the dispatch modes and hooks on saved tensors that are still active; they are removed."""
    found = []
    for i in reversed(range(torch._C._len_torch_dispatch_stack())):
        TorchDispatchMode.__exit__(torch._C._get_dispatch_stack_at(i), None, None, None)
        found.append("a tracker")
    try:
        with torch.autograd.graph.disable_saved_tensors_hooks("hooks are in place"):
            pass  # to disable them while some are active is an error
    except RuntimeError:
        torch._C._autograd._pop_saved_tensors_default_hooks()
        found.append("a hook on saved tensors")
    return found


@probe
def alive_after(call):
    """Bytes that `call()` allocates and that are still alive when its result is gone."""
    with AllocationMeter() as meter:
        call()
        gc.collect()
        return meter.live_bytes


def softmax(scores):
    """The softmax along the last axis, written out as in the stub."""
    shifted = scores - scores.max(-1, keepdim=True)[0]
    exponentials = shifted.exp()
    return exponentials / exponentials.sum(-1, keepdim=True)


def attention(q, k, v):
    """Attention with every intermediate in memory, as in the stub."""
    return softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])) @ v


class Doubled(torch.autograd.Function):
    """2x, with a factor of its own in `ctx.save_for_backward`."""

    @staticmethod
    def forward(ctx, x):
        factor = torch.full_like(x, 2.0)
        ctx.save_for_backward(factor)
        return x * factor

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0]


def function(expression, *names):
    """The function of arguments called `names` whose result is `expression`, a text that messages can show."""
    return eval(f"lambda {', '.join(names)}: {expression}", {"torch": torch, "Doubled": Doubled})


class OnCuda(torch.Tensor):
    """A tensor on the CPU that reports a GPU as its device."""

    @staticmethod
    def __new__(cls, data):
        return torch.Tensor._make_subclass(cls, data)

    @property
    def device(self):
        return torch.device("cuda", 0)

    @property
    def is_cuda(self):
        return True


class CudaAllocator:
    """Statistics of two devices' memory."""

    def __init__(self):
        self.allocated, self.peak = [0, 0], [0, 0]

    def allocate(self, nbytes, device=None):
        index = _index(device)
        self.allocated[index] += nbytes
        self.peak[index] = max(self.peak[index], self.allocated[index])

    def free(self, nbytes, device=None):
        self.allocated[_index(device)] -= nbytes

    def reset_peak_memory_stats(self, device=None):
        self.peak[_index(device)] = self.allocated[_index(device)]

    def memory_stats(self, device=None):
        current, peak = self.allocated[_index(device)], self.peak[_index(device)]
        return {"allocated_bytes.all.current": current, "allocated_bytes.all.peak": peak}


def _index(device):
    return device if isinstance(device, int) else torch.device(device or "cuda").index or 0


@contextlib.contextmanager
def two_gpus():
    """In the block, `torch.cuda` has two devices and reports the statistics of the allocator that this yields."""
    gpu = CudaAllocator()
    statistics = {"memory_stats": gpu.memory_stats, "reset_peak_memory_stats": gpu.reset_peak_memory_stats}
    devices = {"is_available": lambda: True, "device_count": lambda: 2, "current_device": lambda: 0}
    no_effect = dict.fromkeys(("synchronize", "init", "set_device"), lambda *_args, **_kwargs: None)
    everything = statistics | devices | no_effect
    with patch.multiple(torch.cuda.memory, **statistics), patch.multiple(torch.cuda, **everything):
        yield gpu


def without_a_gpu():
    """In the block, CUDA has no device."""
    return patch.multiple(torch.cuda, is_available=lambda: False, device_count=lambda: 0)


class PacedSteps:
    """Steps of attention that take given times, by a clock instead of those of `time`.

    The n-th step without a tracker takes `forward_ms[n]` and `backward_ms[n]`; `taken_ms` has a list of the two for
    each. `n_forward` and `n_backward` count the passes of all steps, `n_fresh` those without a tracker whose inputs
    have no gradient yet.
    """

    def __init__(self, forward_ms, backward_ms):
        self.forward_ms, self.backward_ms = forward_ms, backward_ms
        self.now_ns = 10**12
        self.taken_ms = []
        self.n_forward = self.n_backward = self.n_fresh = 0

    @contextlib.contextmanager
    def pace(self, namespace):
        """In the block, steps take the given times. Clocks that `namespace` imported by name are replaced too."""
        clocks = dict.fromkeys(CLOCKS, lambda: self.now_ns / 10**9)
        clocks |= dict.fromkeys((f"{name}_ns" for name in CLOCKS), lambda: self.now_ns)
        originals = {getattr(time, name): clock for name, clock in clocks.items()}
        imported = {name: value for name, value in namespace.items() if callable(value) and value in originals}
        forward, original = _after(self._forward, torch.Tensor.exp), torch.autograd.backward

        def backward(tensors, *args, **kwargs):
            self._backward(tensors)
            return original(tensors, *args, **kwargs)

        drawn = {name: _after(self._draw, getattr(torch, name)) for name in ("rand", "randn")}
        with (
            patch.multiple(time, **clocks),
            patch.multiple(torch.Tensor, exp=forward),
            patch.multiple(torch.autograd, backward=backward),
            patch.multiple(torch, **drawn),
        ):
            namespace.update({name: originals[value] for name, value in imported.items()})
            try:
                yield
            finally:
                namespace.update(imported)

    def _draw(self):
        self.now_ns += NOT_TIMED_MS * 10**6

    def _forward(self):
        self.n_forward += 1
        self._take(self.forward_ms, is_new_step=True)

    def _backward(self, loss):
        self.n_backward += 1
        if not torch._C._len_torch_dispatch_stack():
            self.n_fresh += all(leaf.grad is None for leaf in _leaves(loss))
        self._take(self.backward_ms, is_new_step=False)

    def _take(self, costs_ms, is_new_step):
        if torch._C._len_torch_dispatch_stack():  # a tracker is active
            self.now_ns += NOT_TIMED_MS * 10**6
            return
        if is_new_step:
            self.taken_ms.append([])
        if self.taken_ms:
            cost_ms = costs_ms[min(len(self.taken_ms), len(costs_ms)) - 1]
            self.taken_ms[-1].append(cost_ms)
            self.now_ns += round(cost_ms * 10**6)


def _leaves(loss):
    """The tensors whose gradients a backward pass from `loss` adds up."""
    loss = loss if isinstance(loss, torch.Tensor) else loss[0]
    found, seen, left = [], set(), [loss.grad_fn]
    while left:
        node = left.pop()
        if node is not None and node not in seen:
            seen.add(node)
            found += [node.variable] if hasattr(node, "variable") else []
            left += [each for each, _ in node.next_functions]
    return found


def _after(note, function):
    """`function`, called after `note()`."""

    def noted(*args, **kwargs):
        note()
        return function(*args, **kwargs)

    return noted
