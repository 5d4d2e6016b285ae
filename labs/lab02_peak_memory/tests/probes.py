"""What runs next to the submission: readings of a tracker, a CUDA allocator and a clock that the tests control."""

import contextlib
import gc
import math
import sys
import time

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.meters.allocation import AllocationMeter
from labkit.meters.arrays import collector_waits
from labkit.meters.stand_ins import replaced
from labkit.testing.probes import probe

CLOCKS = ("perf_counter", "monotonic", "time", "process_time", "thread_time")
"""The clocks of `time`; each has a twin in nanoseconds, `…_ns`."""
NOT_TIMED_MS = 10_000
"""What a step under a tracker takes, and the making of random inputs."""


@probe
def readings(steps):
    """(current, peak), in bytes, of each tracker that `steps` yields, read when it is yielded; None for no tracker."""
    return [_reading(tracker) for tracker in steps()]


def _reading(tracker):
    if not hasattr(tracker, "current_allocated"):
        return None
    return tracker.current_allocated(), tracker.peak_allocated()


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
    """In a `with` block, `torch.cuda` reports this allocator's statistics of two devices."""

    def __init__(self):
        self.allocated, self.peak = [0, 0], [0, 0]
        self._stack = contextlib.ExitStack()

    def __enter__(self):
        functions = {
            "memory_stats": self.statistics,
            "memory_allocated": lambda device=None: self.allocated[_index(device)],
            "max_memory_allocated": lambda device=None: self.peak[_index(device)],
            "memory_reserved": lambda device=None: 2**21,
            "max_memory_reserved": lambda device=None: 2**21,
            "reset_peak_memory_stats": self.reset,
            "reset_max_memory_allocated": self.reset,
            "empty_cache": lambda: None,
        }
        state = {"is_available": True, "is_initialized": True, "device_count": 2, "current_device": 0}
        constant = {name: lambda value=value: value for name, value in state.items()}
        constant |= dict.fromkeys(("synchronize", "init", "set_device"), lambda *_args, **_kwargs: None)
        self._stack.enter_context(replaced(torch.cuda, **functions, **constant))
        self._stack.enter_context(replaced(torch.cuda.memory, **functions))
        return self

    def __exit__(self, *error):
        self._stack.close()

    def allocate(self, nbytes, device=None):
        index = _index(device)
        self.allocated[index] += nbytes
        self.peak[index] = max(self.peak[index], self.allocated[index])

    def free(self, nbytes, device=None):
        self.allocated[_index(device)] -= nbytes

    def reset(self, device=None):
        self.peak[_index(device)] = self.allocated[_index(device)]

    def statistics(self, device=None):
        current, peak = self.allocated[_index(device)], self.peak[_index(device)]
        return {"allocated_bytes.all.current": current, "allocated_bytes.all.peak": peak}


def _index(device):
    return device or 0 if device is None or isinstance(device, int) else torch.device(device).index or 0


def without_a_gpu():
    """In the block, CUDA has no device."""
    return replaced(torch.cuda, is_available=lambda: False, device_count=lambda: 0)


class PacedSteps(TorchDispatchMode):
    """Steps of attention take given times, by a clock instead of those of `time`.

    The n-th step without a tracker takes `forward_ms[n]` and `backward_ms[n]`; `taken_ms` has a list of the two for
    each. `n_forward` and `n_backward` count the passes of all steps. Clocks that `namespace` imported by name are
    replaced too.
    """

    def __init__(self, forward_ms, backward_ms, namespace):
        super().__init__()
        self.forward_ms, self.backward_ms, self.namespace = forward_ms, backward_ms, namespace
        self.now_ns = 10**12
        self.taken_ms = []
        self.n_forward = self.n_backward = 0
        self._graph_task = -1
        self._stack = contextlib.ExitStack()

    @classmethod
    def _should_skip_dynamo(cls):
        return False  # True imports torch._dynamo at the first operator

    def __enter__(self):
        self._stack.enter_context(collector_waits())
        self._stack.enter_context(self._clocks_replaced())
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self._stack.close()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name, task = func._schema.name, torch._C._current_graph_task_id()
        if task == -1 and name == "aten::exp":
            self.n_forward += 1
            self._take(self.forward_ms, is_new_step=True, tracked=_called_by_a_mode())
        elif task == -1 and "rand" in name:
            self.now_ns += NOT_TIMED_MS * 10**6
        elif task not in (-1, self._graph_task):
            self.n_backward += 1
            self._graph_task = task
            self._take(self.backward_ms, is_new_step=False, tracked=_called_by_a_mode())
        return func(*args, **(kwargs or {}))

    def _take(self, costs_ms, is_new_step, tracked):
        if tracked:
            self.now_ns += NOT_TIMED_MS * 10**6
            return
        if is_new_step:
            self.taken_ms.append([])
        if self.taken_ms:
            cost_ms = costs_ms[min(len(self.taken_ms), len(costs_ms)) - 1]
            self.taken_ms[-1].append(cost_ms)
            self.now_ns += round(cost_ms * 10**6)

    @contextlib.contextmanager
    def _clocks_replaced(self):
        clocks = dict.fromkeys(CLOCKS, lambda: self.now_ns / 10**9)
        clocks |= dict.fromkeys((f"{name}_ns" for name in CLOCKS), lambda: self.now_ns)
        originals = {name: getattr(time, name) for name in clocks}
        imported = {
            name: (value, clocks[clock])
            for name, value in self.namespace.items()
            for clock, original in originals.items()
            if value is original
        }
        with replaced(time, **clocks):
            self.namespace.update({name: clock for name, (_, clock) in imported.items()})
            try:
                yield
            finally:
                self.namespace.update({name: value for name, (value, _) in imported.items()})


def _called_by_a_mode():
    """Whether the operator was called by another dispatch mode: a tracker."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_name != "__torch_dispatch__":
        frame = frame.f_back
    return frame is not None
