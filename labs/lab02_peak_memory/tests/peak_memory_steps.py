"""Lab 02's steps: programs that run under the answer's tracker, where it is, and what it read, told as plain data.

Readings are a list of (when, current_allocated(), peak_allocated()).
"""

import contextlib
import gc
import math
import sys

import torch
from peak_memory import MemoryTracker, measure_memory, saved_for_backward
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.meters.allocation import AllocationMeter

MIB = 2**20


def program(name):
    """The function that goes by `name` in PROGRAMS, below."""
    return PROGRAMS[name]


# under a tracker


def entered_as_itself():
    """Whether entering gives a tracker."""
    with MemoryTracker() as tracker:
        return isinstance(tracker, MemoryTracker)


def worked_example():
    readings, read = _readings()
    with MemoryTracker() as tracker:
        read(tracker, "before anything is allocated")
        x = torch.zeros(1000)
        read(tracker, "with one array of 4000 bytes")
        y = (x + 1).view(10, 100)
        read(tracker, "with two arrays of 4000 bytes")
        del x
        read(tracker, "after one of two arrays was deleted")
    read(tracker, "after the block")
    del y
    return readings


def a_temporary():
    readings, read = _readings()
    tracker = MemoryTracker()
    x = torch.ones(1000)
    with tracker:
        y = ((x + 1) * 2).sum()
        read(tracker, "after ((x + 1) * 2).sum()")
    del y
    return readings


def one_after_the_other():
    readings, read = _readings()
    with MemoryTracker() as tracker:
        for _ in range(5):
            x = torch.zeros(1000)
            del x
        read(tracker, "after five arrays, one after the other")
        x = [torch.zeros(500) for _ in range(3)]
        read(tracker, "with three smaller arrays at once")
    del x
    return readings


def views(device):
    readings, read = _readings()
    with MemoryTracker(device) as tracker:
        x = torch.zeros(30, 40, device=device)
        views = [x.view(1200), x.T, x[3:5], x[:, 1], x.detach(), x.unsqueeze(0).expand(9, 30, 40), *x.unbind(0)]
        read(tracker, "with one array and many views of it")
        y = x.clone()
        read(tracker, "with a copy as well")
        del x, views[1:]
        read(tracker, "with one view left of an array whose name is gone")
        views.clear()
        read(tracker, "when the last view is gone too")
    del y
    return readings


def parts_of_storages():
    readings, read = _readings()
    with MemoryTracker() as tracker:
        x = torch.empty_strided((10,), (100,))
        read(tracker, "with ten elements, every hundredth of an array of 901")
        x = torch.zeros(1000)[:10]
        read(tracker, "with ten elements of an array of 1000")
        y = torch.zeros(100).expand(50, 100)
        read(tracker, "with 100 numbers expanded to 50 × 100")
    del x, y
    return readings


def results_in_place():
    readings, read = _readings()
    with MemoryTracker() as tracker:
        x = torch.zeros(1000)
        y = x.add_(1).mul_(2).relu_()
        torch.exp(x, out=x)
        x[:5] = 3
        read(tracker, "after in-place operators")
    del x, y
    return readings


def there_before():
    readings, read = _readings()
    tracker = MemoryTracker()
    x, gone = torch.zeros(1000), torch.zeros(500)
    with tracker:
        views = [x.view(10, 100), x[3:], x.detach()]
        x.add_(1).exp_()
        torch.add(x, 1, out=x)
        read(tracker, "after views of, and writing into, an array made before")
        y = x.exp()
        del gone, x, views
        read(tracker, "after arrays made before were released")
    del y
    return readings


def several_results():
    readings, read = _readings()
    x = torch.arange(24.0).reshape(4, 6)
    with MemoryTracker() as tracker:
        values, positions = x.max(-1)
        read(tracker, "with the 4 maxima of a matrix and their positions")
        parts = torch._foreach_add([values, x], 1.0)
        read(tracker, "with two more arrays, made by one operator")
    del values, positions, parts
    return readings


def arrays_of_dtypes(n, dtypes):
    readings, read = _readings()
    with MemoryTracker() as tracker:
        kept = []
        for dtype in dtypes:
            kept.append(torch.zeros(n, dtype=dtype))
            read(tracker, f"with an array of {n} × {dtype} more")
    del kept
    return readings


def reset():
    readings, read = _readings()
    with MemoryTracker() as tracker:
        x = torch.zeros(1000)
        y = torch.zeros(2000)
        del y
        tracker.reset()
        read(tracker, "after reset, with one array alive")
        z = torch.zeros(10)
        read(tracker, "with 40 bytes more after reset")
        del x
        read(tracker, "after an array from before reset was released")
    del z
    return readings


def after_the_block():
    readings, read = _readings()
    tracker = MemoryTracker()
    with tracker:
        x = torch.zeros(100)
    y = torch.zeros(1000)
    read(tracker, "after the block, with an array made outside")
    del x, y
    return readings


def error_inside(tracker):
    """A KeyError leaves the block."""
    with tracker:
        torch.zeros(100)
        raise KeyError("inside")


def after_the_error(tracker):
    readings, read = _readings()
    x = torch.zeros(1000)
    read(tracker, "after a block that ended in an exception")
    del x
    return readings


def entered_again():
    readings, read = _readings()
    tracker = MemoryTracker()
    with tracker:
        x = torch.zeros(1000)
    with tracker:
        read(tracker, "when it is entered again")
        y = torch.zeros(10)
        del x
        read(tracker, "in the second block")
    del y
    return readings


def one_inside_another():
    readings, read = _readings()
    with MemoryTracker() as outer:
        x = torch.zeros(1000)
        with MemoryTracker() as inner:
            y = torch.zeros(500)
            read(inner, "of the inner tracker")
        read(outer, "of the outer tracker")
        z = torch.zeros(10)
        read(inner, "of the inner tracker, after its block")
    del x, y, z
    return readings


def any_order(actions):
    """Read after each of `actions`: (name, group, member, n). A group holds the tensors of one storage."""
    readings, read = _readings()
    tracker = MemoryTracker()
    groups = []
    with tracker:
        for step, (action, group, member, n) in enumerate(actions):
            if action == "make":
                groups.append([torch.zeros(n)])
            elif action == "exp":
                groups.append([groups[group][member].exp()])
            elif action == "view":
                groups[group].append(groups[group][member][n:])
            elif action == "in place":
                groups[group][member].mul_(0.5)
            elif action == "drop":
                groups[group].pop(member)
            elif action == "reset":
                tracker.reset()
            groups = [tensors for tensors in groups if tensors]
            read(tracker, f"after step {step} ({action}) of a random program")
    return readings


def kept_by_autograd():
    readings, read = _readings()
    tracker = MemoryTracker()
    x = torch.ones(1000, requires_grad=True)
    with tracker:
        loss = x.exp().sum()
        read(tracker, "of x.exp().sum(), before backward()")
        loss = x.exp().sin().sum()
        read(tracker, "of x.exp().sin().sum(), before backward()")
        loss.backward()
        read(tracker, "after backward()")
        x.grad = None
        read(tracker, "when the gradient is gone too")
    return readings


def training_steps_of_attention(*shape):
    """Read in the second step, whose inputs have gradients already."""
    readings, read = _readings()
    tracker = MemoryTracker()
    with tracker:
        inputs = [torch.randn(shape, requires_grad=True) for _ in range(3)]
        for _ in range(2):
            readings.clear()
            tracker.reset()
            loss = _attention(*inputs).sum()
            read(tracker, "before the backward pass")
            loss.backward()
    read(tracker, "after the step")
    return readings


def meta_tensors():
    readings, read = _readings()
    with MemoryTracker("meta") as tracker:
        x = torch.empty(2**20, 2**20, device="meta")
        y = x.clone()
        read(tracker, "with two simulated arrays of 4 TiB")
        del x
        read(tracker, "with one left")
        z = torch.zeros(5)
        read(tracker, "with an array on the CPU as well")
    del y, z
    return readings


def read_on_cuda():
    with MemoryTracker("cuda") as tracker:
        return tracker.peak_allocated()


def statistics_of_cuda(place):
    """Read from a stand-in for CUDA's allocator, described as `place`."""
    readings, read = _readings()
    MemoryTracker()
    with _Allocator() as allocator:
        allocator.allocate(5000)
        allocator.free(3000)
        with MemoryTracker("cuda") as tracker:
            read(tracker, f"on entering {place}")
            allocator.allocate(700)
            allocator.free(300)
            read(tracker, "after 700 bytes came and 300 went")
            tracker.reset()
            read(tracker, "after reset")
            allocator.allocate(100)
            read(tracker, "with 100 bytes more")
        read(tracker, "after the block")
    return readings


def on_a_gpu():
    readings, read = _readings()
    MemoryTracker()
    held = torch.zeros(2**20, device="cuda")
    with MemoryTracker("cuda") as tracker:
        x = torch.zeros(2**20, device="cuda")
        y = (x + 1).sum()
        read(tracker, "with 4 MiB and a number on a GPU")
        tracker.reset()
        read(tracker, "after reset")
    del held, x, y
    return readings


def _readings():
    """An empty list, and a function that adds a reading to it."""
    readings = []

    def read(tracker, when):
        readings.append((when, tracker.current_allocated(), tracker.peak_allocated()))

    return readings, read


# calls of measure_memory and of saved_for_backward


def measured_twice(name, *args):
    """What measure_memory returns for a program, and again while the first result and gradients are alive."""
    first = measure_memory(PROGRAMS[name], *args)
    return first, measure_memory(PROGRAMS[name], *args)


def results_handed_on():
    """For two results of a function: what measure_memory returned, and whether that result itself is in it."""
    told = {}
    for name, value in {"a list": [torch.zeros(3)], "nothing": None}.items():
        got = measure_memory(lambda value=value: value)
        told[name] = got, isinstance(got, tuple) and got[-1] is value
    return told


def arguments_handed_on():
    """What reached the function that measure_memory was given, beside two tensors, and whether those did."""
    x, y = torch.ones(100), torch.ones(100)
    reached = []

    def fn(first, *more, scale=1.0, other=None):
        reached.append({"first": first is x, "more": more, "scale": scale, "other": other is y})

    measure_memory(fn, x, 2, 3, scale=0.5, other=y)
    return reached[0]


def measured_on_cuda():
    """What measure_memory returns when a tensor in its arguments says it is on a GPU, played by a stand-in."""
    with _Allocator() as allocator:
        allocator.allocate(1000)

        def fn(_x):
            allocator.allocate(300)
            allocator.free(200)

        return measure_memory(fn, {"x": [_OnCuda(torch.zeros(1))]})


def saved_for_a_module(kind, x):
    """What saved_for_backward returns for a module and `x`, (n, 20)."""
    return saved_for_backward(MODULES[kind]().eval(), x)


def calls_and_gradient(x):
    """How often saved_for_backward calls its function, and the gradient that `x` has afterwards."""
    calls = []

    def fn(x):
        calls.append(1)
        return x.exp().sum()

    saved_for_backward(fn, x)
    return len(calls), x.grad


# around a call


def allocated_by(function, *args, **kwargs):
    """The result of a call, the peak of what it allocated, and what of that is still alive."""
    with AllocationMeter() as meter:
        result = function(*args, **kwargs)
        gc.collect()
        return result, meter.peak_bytes, meter.live_bytes


def watched(function, *args, **kwargs):
    """The result of a call, how many "exp" and "bmm" ran in it, and how many of them with no dispatch mode on."""
    with _Watch() as watch:
        result = function(*args, **kwargs)
    return result, watch.counts, watch.unwatched


def on_a_small_device(capacity_bytes, kind, text, function, *args, **kwargs):
    """The result of a call in which every tensor of more than `capacity_bytes` is an error: its `kind` and `text`."""
    with _SmallDevice(capacity_bytes, lambda: ERRORS[kind](text)):
        return function(*args, **kwargs)


def without_a_gpu(function, *args, **kwargs):
    """The result of a call where CUDA has no device."""
    with _replaced(torch.cuda, is_available=lambda: False, device_count=lambda: 0):
        return function(*args, **kwargs)


def modes_taken_away():
    """How many dispatch modes are on; now there are none."""
    n_modes = torch._C._len_torch_dispatch_stack()
    for i in reversed(range(n_modes)):
        TorchDispatchMode.__exit__(torch._C._get_dispatch_stack_at(i), None, None, None)
    return n_modes


def hooks_taken_away():
    """Whether hooks on saved tensors are in place; now there are none."""
    try:
        with torch.autograd.graph.disable_saved_tensors_hooks("hooks are in place"):
            return False  # to disable them while some are in place is an error
    except RuntimeError:
        torch._C._autograd._pop_saved_tensors_default_hooks()
        return True


# what the steps are made of


def _attention(q, k, v):
    return _softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])) @ v


def _softmax(scores):
    shifted = scores - scores.max(-1, keepdim=True)[0]
    exponentials = shifted.exp()
    return exponentials / exponentials.sum(-1, keepdim=True)


def _attention_built_in(q, k, v):
    return (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).softmax(-1) @ v


def _square_of_exp(x):
    e = x.exp()
    return (e * e).sin().sum()


def _products_of_views(x):
    e = x.exp()
    return (e.T @ e[:, :5]).sum() + (e[2:] * e[:-2]).sum()


def _in_containers(pair, named):
    a = pair[0].exp()
    return {"product": a * named["w"], "a": [a]}


def _without_gradients(x):
    with torch.no_grad():
        return x.exp().sum()


def _error(x):
    x.exp().sum()
    raise KeyError("inside")


class _Doubled(torch.autograd.Function):
    """2x, with a factor saved that it made itself."""

    @staticmethod
    def forward(ctx, x):
        factor = torch.full_like(x, 2.0)
        ctx.save_for_backward(factor)
        return x * factor

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0]


PROGRAMS = {
    "(x + 1).sum()": lambda x: (x + 1).sum(),
    "torch.zeros(n)": lambda n: torch.zeros(n),
    "x.view(10, 100).T": lambda x: x.view(10, 100).T,
    "x.add_(1)": lambda x: x.add_(1),
    "xs['x'][0].clone()": lambda xs: xs["x"][0].clone(),
    "x.exp()": lambda x: x.exp(),
    "x.exp().T": lambda x: x.exp().T,
    "x.exp()[1:]": lambda x: x.exp()[1:],
    "x.exp().sum()": lambda x: x.exp().sum(),
    "x.exp().sin() * 2": lambda x: x.exp().sin() * 2,
    "x.sin().sum()": lambda x: x.sin().sum(),
    "e = x.exp(); (e * e).sin().sum()": _square_of_exp,
    "products of views of the exponentials": _products_of_views,
    "a product of ten elements of a larger array": lambda x: ((x * 2)[:10].sin() * 3).sum(),
    "x @ w.T, summed up": lambda x, w: (x @ w.T + (x[1:] * x[:-1]).sum()).sum(),
    "inputs in a list and a dict, outputs in a dict,": _in_containers,
    "two outputs": lambda x: (x.exp(), x.exp()),
    "the maximum of each row": lambda x: (x * 2).max(-1)[0].sum(),
    "a mask made inside": lambda x: x.masked_fill(~torch.zeros(x.shape, dtype=torch.bool), 0.0).sum(),
    "a torch.autograd.Function that saves an array it made": lambda x: _Doubled.apply(x).sum(),
    "x.exp().sum() under no_grad": _without_gradients,
    "attention": _attention,
    "attention, summed up": lambda *x: _attention(*x).sum(),
    "attention, its softmax built in": _attention_built_in,
    "attention, its softmax built in, summed up": lambda *x: _attention_built_in(*x).sum(),
    "a training step": lambda *x: _attention(*x).sum().backward(),
    "a KeyError": _error,
}

MODULES = {"a linear layer": lambda: torch.nn.Linear(20, 30), "a batch norm": lambda: torch.nn.BatchNorm1d(20)}

ERRORS = {"OutOfMemoryError": torch.OutOfMemoryError, "RuntimeError": RuntimeError, "TypeError": TypeError}


class _Watch(TorchDispatchMode):
    """Counts the exponentials and products that run, in all and with no other dispatch mode inside this one."""

    def __init__(self):
        super().__init__()
        self.counts = {"exp": 0, "bmm": 0}
        self.unwatched = {"exp": 0, "bmm": 0}

    @classmethod
    def _should_skip_dynamo(cls):
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.removeprefix("aten::")
        if name in self.counts:
            self.counts[name] += 1
            self.unwatched[name] += not _called_by_a_mode()
        return func(*args, **(kwargs or {}))


def _called_by_a_mode():
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_name != "__torch_dispatch__":
        frame = frame.f_back
    return frame is not None


class _SmallDevice(TorchDispatchMode):
    """Raises what `error()` makes when a tensor comes out with more than `capacity_bytes`."""

    def __init__(self, capacity_bytes, error):
        super().__init__()
        self.capacity_bytes, self.error = capacity_bytes, error

    @classmethod
    def _should_skip_dynamo(cls):
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.untyped_storage().nbytes() > self.capacity_bytes:
            raise self.error()
        return out


class _OnCuda(torch.Tensor):
    """A tensor that says it is on a GPU."""

    @staticmethod
    def __new__(cls, data):
        return torch.Tensor._make_subclass(cls, data)

    @property
    def device(self):
        return torch.device("cuda", 0)

    @property
    def is_cuda(self):
        return True


class _Allocator:
    """Plays CUDA's allocator in a `with` block: its statistics, and nothing else of a GPU."""

    def __init__(self):
        self.allocated = self.peak = 0
        self.stack = contextlib.ExitStack()

    def __enter__(self):
        functions = {
            "memory_stats": self.statistics,
            "memory_allocated": lambda device=None: self.allocated,
            "max_memory_allocated": lambda device=None: self.peak,
            "memory_reserved": lambda device=None: 2 * MIB,
            "max_memory_reserved": lambda device=None: 2 * MIB,
            "reset_peak_memory_stats": self.reset,
            "reset_max_memory_allocated": self.reset,
            "empty_cache": lambda: None,
        }
        states = {"is_available": True, "is_initialized": True, "device_count": 1, "current_device": 0}
        played = {name: lambda value=value: value for name, value in states.items()}
        played |= dict.fromkeys(("synchronize", "init", "set_device"), lambda *_args, **_kwargs: None)
        self.stack.enter_context(_replaced(torch.cuda, **functions, **played))
        self.stack.enter_context(_replaced(torch.cuda.memory, **functions))
        return self

    def __exit__(self, *error):
        self.stack.close()

    def allocate(self, nbytes):
        self.allocated += nbytes
        self.peak = max(self.peak, self.allocated)

    def free(self, nbytes):
        self.allocated -= nbytes

    def reset(self, device=None):
        self.peak = self.allocated

    def statistics(self, device=None):
        return {
            "allocated_bytes.all.current": self.allocated,
            "allocated_bytes.all.peak": self.peak,
            "reserved_bytes.all.current": 2 * MIB,
            "reserved_bytes.all.peak": 2 * MIB,
        }


@contextlib.contextmanager
def _replaced(module, **values):
    """Give `module` other functions in a `with` block."""
    before = {name: getattr(module, name) for name in values}
    for name, value in values.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)
