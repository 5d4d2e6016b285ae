"""Lab 02's suite: bytes counted while they live, bytes kept for the backward pass, and bytes predicted."""

import contextlib
import gc
import itertools
import math
import sys
from typing import NamedTuple

import pytest
import torch
from peak_memory import (
    MemoryTracker,
    attention_training_memory,
    benchmark_attention,
    largest_seq_len,
    measure_memory,
    saved_for_backward,
)
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.bench.accounting import attention_memory
from labkit.bench.accounting import largest_seq_len as reference_seq_len
from labkit.bench.columns import COLUMNS
from labkit.bench.variants import written_out
from labkit.meters.allocation import AllocationMeter
from labkit.testing.compare import (
    assert_at_most,
    assert_equal,
    assert_keys,
    assert_raises,
    assert_tuple,
    assert_type,
    require,
)
from labkit.testing.programs import program

MIB = program(2**20)


@program
def named_program(name):
    """The function that goes by `name` in PROGRAMS, below."""
    return PROGRAMS[name]


# under a tracker


@program
def entered_as_itself():
    """Whether entering gives a tracker."""
    with MemoryTracker() as tracker:
        return isinstance(tracker, MemoryTracker)


@program
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


@program
def a_temporary():
    readings, read = _readings()
    tracker = MemoryTracker()
    x = torch.ones(1000)
    with tracker:
        y = ((x + 1) * 2).sum()
        read(tracker, "after ((x + 1) * 2).sum()")
    del y
    return readings


@program
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


@program
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


@program
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


@program
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


@program
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


@program
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


@program
def arrays_of_dtypes(n, dtypes):
    readings, read = _readings()
    with MemoryTracker() as tracker:
        kept = []
        for dtype in dtypes:
            kept.append(torch.zeros(n, dtype=dtype))
            read(tracker, f"with an array of {n} × {dtype} more")
    del kept
    return readings


@program
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


@program
def after_the_block():
    readings, read = _readings()
    tracker = MemoryTracker()
    with tracker:
        x = torch.zeros(100)
    y = torch.zeros(1000)
    read(tracker, "after the block, with an array made outside")
    del x, y
    return readings


@program
def error_inside(tracker):
    """A KeyError leaves the block."""
    with tracker:
        torch.zeros(100)
        raise KeyError("inside")


@program
def after_the_error(tracker):
    readings, read = _readings()
    x = torch.zeros(1000)
    read(tracker, "after a block that ended in an exception")
    del x
    return readings


@program
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


@program
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


@program
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


@program
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


@program
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


@program
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


@program
def read_on_cuda():
    with MemoryTracker("cuda") as tracker:
        return tracker.peak_allocated()


@program
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


@program
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


@program
def _readings():
    """An empty list, and a function that adds a reading to it."""
    readings = []

    def read(tracker, when):
        readings.append((when, tracker.current_allocated(), tracker.peak_allocated()))

    return readings, read


# calls of measure_memory and of saved_for_backward


@program
def measured_twice(name, *args):
    """What measure_memory returns for a program, and again while the first result and gradients are alive."""
    first = measure_memory(PROGRAMS[name], *args)
    return first, measure_memory(PROGRAMS[name], *args)


@program
def results_handed_on():
    """For two results of a function: what measure_memory returned, and whether that result itself is in it."""
    told = {}
    for name, value in {"a list": [torch.zeros(3)], "nothing": None}.items():
        got = measure_memory(lambda value=value: value)
        told[name] = got, isinstance(got, tuple) and got[-1] is value
    return told


@program
def arguments_handed_on():
    """What reached the function that measure_memory was given, beside two tensors, and whether those did."""
    x, y = torch.ones(100), torch.ones(100)
    reached = []

    def fn(first, *more, scale=1.0, other=None):
        reached.append({"first": first is x, "more": more, "scale": scale, "other": other is y})

    measure_memory(fn, x, 2, 3, scale=0.5, other=y)
    return reached[0]


@program
def measured_on_cuda():
    """What measure_memory returns when a tensor in its arguments says it is on a GPU, played by a stand-in."""
    with _Allocator() as allocator:
        allocator.allocate(1000)

        def fn(_x):
            allocator.allocate(300)
            allocator.free(200)

        return measure_memory(fn, {"x": [_OnCuda(torch.zeros(1))]})


@program
def saved_for_a_module(kind, x):
    """What saved_for_backward returns for a module and `x`, (n, 20)."""
    return saved_for_backward(MODULES[kind]().eval(), x)


@program
def calls_and_gradient(x):
    """How often saved_for_backward calls its function, and the gradient that `x` has afterwards."""
    calls = []

    def fn(x):
        calls.append(1)
        return x.exp().sum()

    saved_for_backward(fn, x)
    return len(calls), x.grad


# around a call


@program
def allocated_by(function, *args, **kwargs):
    """The result of a call, the peak of what it allocated, and what of that is still alive."""
    with AllocationMeter() as meter:
        result = function(*args, **kwargs)
        gc.collect()
        return result, meter.peak_bytes, meter.live_bytes


@program
def watched(function, *args, **kwargs):
    """The result of a call, how many "exp" and "bmm" ran in it, and how many of them with no dispatch mode on."""
    with _Watch() as watch:
        result = function(*args, **kwargs)
    return result, watch.counts, watch.unwatched


@program
def on_a_small_device(capacity_bytes, kind, text, function, *args, **kwargs):
    """The result of a call in which every tensor of more than `capacity_bytes` is an error: its `kind` and `text`."""
    with _SmallDevice(capacity_bytes, lambda: ERRORS[kind](text)):
        return function(*args, **kwargs)


@program
def without_a_gpu(function, *args, **kwargs):
    """The result of a call where CUDA has no device."""
    with _replaced(torch.cuda, is_available=lambda: False, device_count=lambda: 0):
        return function(*args, **kwargs)


@program
def modes_taken_away():
    """How many dispatch modes are on; now there are none."""
    n_modes = torch._C._len_torch_dispatch_stack()
    for i in reversed(range(n_modes)):
        TorchDispatchMode.__exit__(torch._C._get_dispatch_stack_at(i), None, None, None)
    return n_modes


@program
def hooks_taken_away():
    """Whether hooks on saved tensors are in place; now there are none."""
    try:
        with torch.autograd.graph.disable_saved_tensors_hooks("hooks are in place"):
            return False  # to disable them while some are in place is an error
    except RuntimeError:
        torch._C._autograd._pop_saved_tensors_default_hooks()
        return True


# what the steps are made of


@program
def _attention(q, k, v):
    return _softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])) @ v


@program
def _softmax(scores):
    shifted = scores - scores.max(-1, keepdim=True)[0]
    exponentials = shifted.exp()
    return exponentials / exponentials.sum(-1, keepdim=True)


@program
def _attention_built_in(q, k, v):
    return (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).softmax(-1) @ v


@program
def _square_of_exp(x):
    e = x.exp()
    return (e * e).sin().sum()


@program
def _products_of_views(x):
    e = x.exp()
    return (e.T @ e[:, :5]).sum() + (e[2:] * e[:-2]).sum()


@program
def _in_containers(pair, named):
    a = pair[0].exp()
    return {"product": a * named["w"], "a": [a]}


@program
def _without_gradients(x):
    with torch.no_grad():
        return x.exp().sum()


@program
def _error(x):
    x.exp().sum()
    raise KeyError("inside")


@program
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


PROGRAMS = program(
    {
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
)


MODULES = program({"a linear layer": lambda: torch.nn.Linear(20, 30), "a batch norm": lambda: torch.nn.BatchNorm1d(20)})


ERRORS = program({"OutOfMemoryError": torch.OutOfMemoryError, "RuntimeError": RuntimeError, "TypeError": TypeError})


@program
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


@program
def _called_by_a_mode():
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_name != "__torch_dispatch__":
        frame = frame.f_back
    return frame is not None


@program
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


@program
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


@program
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


@program
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


MIB, GIB = 2**20, 2**30
WORKSPACE_BYTES = 64 * MIB
EXACT = {"round_to": 1, "workspace_bytes": 0}

pytestmark = pytest.mark.seconds(30)  # a dispatch mode that does not decline dynamo imports it at its first operator
simulated = pytest.mark.seconds(90)  # so does the first arithmetic on meta tensors, with a computer algebra system


def memory(shape, definition, **options):
    """The reference: bytes of a training step of (batch, seq_len, d_model)."""
    return sum(attention_memory(*shape, definition=definition, **options).values())


def assert_bytes(name, got, want, *, suspects=None, hint=""):
    """Compare a number of bytes, which is an int."""
    assert_type(name, got, (int, float), "an int: bytes")
    usual = {
        "the value is in MiB: memory is in bytes": want / MIB,
        "the value is in KiB: memory is in bytes": want / 2**10,
        "elements of four bytes are counted in place of bytes": want / 4,
    }
    assert_equal(name, got, want, suspects={**(suspects or {}), **usual}, hint=hint)
    assert_type(name, got, int, "an int: bytes")


def assert_refuses(kind, call, *, when, mentions=()):
    """As `assert_raises`; NotImplementedError, a RuntimeError by birth, is no refusal."""

    def attempt():
        try:
            return call()
        except NotImplementedError as error:
            raise AssertionError(f"NotImplementedError {when}, expected {kind.__name__}: {error}") from None

    assert_raises(kind, attempt, when=when, mentions=mentions)


@contextlib.contextmanager
def nothing_looks_on_afterwards(what):
    """Fail when a dispatch mode is left on after the block, where the answer is."""
    modes_taken_away()
    yield
    require(
        not modes_taken_away(),
        f"after {what} the tracker still looks on\n"
        "Usual cause: the way out is taken only when all goes well: `with`, or `try … finally`, leaves in every case",
    )


class Reading(NamedTuple):
    """What a tracker has to read at a moment that a step calls `when`; None is not compared."""

    when: str
    current: int | None = None
    peak: int | None = None
    hint: str = ""
    suspects: dict | None = None


class TestMemoryTracker:
    def check(self, readings, *expected):
        """Compare a step's readings, (when, current, peak) each, with those expected."""
        assert_equal("the moments read at", [when for when, _, _ in readings], [each.when for each in expected])
        for (when, current, peak), want in zip(readings, expected, strict=True):
            for name, got, nbytes in (("current", current, want.current), ("peak", peak, want.peak)):
                if nbytes is not None:
                    assert_bytes(f"{name}_allocated() {when}", got, nbytes, hint=want.hint, suspects=want.suspects)

    def test_worked_example(self):
        require(entered_as_itself(), "`with MemoryTracker() as tracker` must give the tracker itself")
        self.check(
            worked_example(),
            Reading("before anything is allocated", current=0, peak=0),
            Reading("with one array of 4000 bytes", current=4000, peak=4000),
            Reading("with two arrays of 4000 bytes", current=8000, peak=8000),
            Reading("after one of two arrays was deleted", current=4000, hint="what is released no longer counts"),
            Reading("after the block", current=4000, peak=8000),
        )

    def test_a_temporary_raises_the_peak(self):
        hint = "both products are alive while the second one is made, and neither afterwards"
        self.check(a_temporary(), Reading("after ((x + 1) * 2).sum()", current=4, peak=8000, hint=hint))

    def test_the_peak_is_of_one_moment(self):
        hint = "a released storage's identity is used again by the next one: forget it on release"
        self.check(
            one_after_the_other(),
            Reading(
                "after five arrays, one after the other",
                current=0,
                peak=4000,
                suspects={"everything ever allocated is added up": 20_000},
                hint=hint,
            ),
            Reading("with three smaller arrays at once", current=6000, peak=6000, hint=hint),
        )

    @pytest.mark.parametrize("device", ["cpu", "meta"])
    def test_views_share_their_storage(self, device):
        self.check(
            views(device),
            Reading(
                "with one array and many views of it",
                current=4800,
                peak=4800,
                hint="a view is a tensor without memory of its own: count storages, not tensors "
                "(data_ptr() differs from view to view, and is 0 for every meta tensor)",
            ),
            Reading("with a copy as well", current=9600, peak=9600),
            Reading(
                "with one view left of an array whose name is gone",
                current=9600,
                hint="a storage lives as long as any view of it, the whole of it",
            ),
            Reading("when the last view is gone too", current=4800),
        )

    def test_a_view_counts_with_its_whole_storage(self):
        self.check(
            parts_of_storages(),
            Reading(
                "with ten elements, every hundredth of an array of 901",
                current=3604,
                suspects={"the tensor's elements are counted in place of its storage": 40},
            ),
            Reading(
                "with ten elements of an array of 1000",
                current=4000,
                suspects={"the view's elements are counted in place of its storage": 40},
                hint="x held the array before; now it holds this one",
            ),
            Reading(
                "with 100 numbers expanded to 50 × 100",
                current=4400,
                suspects={"elements are counted in place of the storage": 24_000},
            ),
        )

    def test_results_in_place_add_nothing(self):
        self.check(results_in_place(), Reading("after in-place operators", current=4000, peak=4000))

    def test_what_was_there_before_adds_nothing(self):
        self.check(
            there_before(),
            Reading(
                "after views of, and writing into, an array made before",
                current=0,
                peak=0,
                hint="a result may lie in an operand's storage, which was there before",
            ),
            Reading(
                "after arrays made before were released",
                current=4000,
                peak=4000,
                hint="releasing what was never counted takes nothing off",
            ),
        )

    def test_several_results(self):
        self.check(
            several_results(),
            Reading(
                "with the 4 maxima of a matrix and their positions",
                current=4 * 4 + 4 * 8,
                hint="an operator may return several tensors (max returns int64 positions too)",
            ),
            Reading(
                "with two more arrays, made by one operator",
                current=48 + 16 + 96,
                hint="an operator may return several tensors, in a tuple or a list",
            ),
        )

    def test_dtypes(self):
        sizes = {torch.bool: 1, torch.int8: 1, torch.bfloat16: 2, torch.float16: 2, torch.float64: 8, torch.int64: 8}
        so_far = itertools.accumulate(77 * itemsize for itemsize in sizes.values())
        self.check(
            arrays_of_dtypes(77, list(sizes)),
            *(
                Reading(f"with an array of 77 × {dtype} more", current=want, hint="bytes, unrounded")
                for dtype, want in zip(sizes, so_far, strict=True)
            ),
        )

    def test_reset(self):
        self.check(
            reset(),
            Reading(
                "after reset, with one array alive",
                current=4000,
                peak=4000,
                suspects={"reset sets it to 0, though an array is alive": 0, "reset changes nothing": 12_000},
            ),
            Reading("with 40 bytes more after reset", current=4040, peak=4040),
            Reading(
                "after an array from before reset was released",
                current=40,
                peak=4040,
                hint="reset starts the peak again; what is alive stays counted, and its release too",
            ),
        )

    def test_after_the_block(self):
        with nothing_looks_on_afterwards("the block"):
            readings = after_the_block()
        self.check(readings, Reading("after the block, with an array made outside", current=400, peak=400))

    def test_an_exception_passes(self):
        tracker = MemoryTracker()
        with nothing_looks_on_afterwards("an exception"):
            assert_raises(KeyError, lambda: error_inside(tracker), when="where one was raised inside the block")
        self.check(after_the_error(tracker), Reading("after a block that ended in an exception", peak=400))

    def test_entering_again_starts_from_zero(self):
        hint = "what an earlier block counted is there before"
        self.check(
            entered_again(),
            Reading("when it is entered again", current=0, peak=0, hint=hint),
            Reading("in the second block", current=40, peak=40),
        )

    def test_one_inside_another(self):
        self.check(
            one_inside_another(),
            Reading("of the inner tracker", current=2000, peak=2000, hint="each tracker has its own count"),
            Reading("of the outer tracker", current=6000, peak=6000),
            Reading("of the inner tracker, after its block", current=2000),
        )

    def test_any_order(self, rng):
        actions, expected = [], []
        groups, peak_bytes = [], 0  # a group: how many elements the tensors of one storage have, and its bytes
        for step in range(80):
            action = str(rng.choice(["make", "exp", "view", "in place", "drop", "drop", "reset"]))
            if not groups and action != "reset":
                action = "make"
            at, member, n = 0, 0, 0
            if action == "make":
                n = int(rng.integers(1, 900))
                groups.append(([n], 4 * n))
            elif groups:
                at = int(rng.integers(len(groups)))
                lengths, _ = groups[at]
                member = int(rng.integers(len(lengths)))
                if action == "exp":
                    groups.append(([lengths[member]], 4 * lengths[member]))
                elif action == "view":
                    n = lengths[member] // 3
                    lengths.append(lengths[member] - n)
                elif action == "drop":
                    lengths.pop(member)
                groups = [group for group in groups if group[0]]
            actions.append((action, at, member, n))
            live_bytes = sum(nbytes for _, nbytes in groups)
            peak_bytes = max(0 if action == "reset" else peak_bytes, live_bytes)
            expected.append(
                Reading(
                    f"after step {step} ({action}) of a random program",
                    current=live_bytes,
                    peak=peak_bytes,
                    hint="only making an array, or exp, allocates; a storage goes with the last view of it",
                )
            )
        self.check(any_order(actions), *expected)

    def test_what_autograd_keeps(self):
        hint = "autograd keeps the exponentials for the backward pass: they have no name, and live on"
        self.check(
            kept_by_autograd(),
            Reading("of x.exp().sum(), before backward()", current=4004, peak=4004, hint=hint),
            Reading("of x.exp().sin().sum(), before backward()", current=4004, peak=4004 + 8004, hint=hint),
            Reading("after backward()", current=4004, hint="what was saved goes, x.grad stays"),
            Reading("when the gradient is gone too", current=4),
        )

    def test_a_training_step_of_attention(self):
        shape = (2, 37, 12)
        (_, live, forward_peak), (_, _, step_peak) = training_steps_of_attention(*shape)
        for name, got, definition in (
            ("the peak of the forward pass", forward_peak, "forward_peak"),
            ("what is alive before the backward pass", live, "live_after_forward"),
            ("the peak of the step", step_peak, "step_peak"),
        ):
            assert_bytes(
                f"{name}, of attention on {shape},",
                got,
                memory(shape, definition, **EXACT),
                hint="read in the second step",
            )

    def test_meta_tensors(self):
        self.check(
            meta_tensors(),
            Reading(
                "with two simulated arrays of 4 TiB",
                current=2 * 2**42,
                hint="a meta tensor has a storage with a size and no memory; its data_ptr() is 0, as everybody's",
            ),
            Reading("with one left", current=2**42, peak=2**43),
            Reading("with an array on the CPU as well", current=2**42 + 20),
        )

    def test_without_a_gpu_cuda_is_refused(self):
        MemoryTracker()
        assert_refuses(
            RuntimeError, lambda: without_a_gpu(read_on_cuda), when="for MemoryTracker('cuda') without a GPU"
        )

    def test_other_devices_are_refused(self):
        MemoryTracker()
        assert_refuses(ValueError, lambda: MemoryTracker("mps"), when="for MemoryTracker('mps')", mentions=["mps"])

    def test_statistics_of_cuda(self):
        on_cuda = "(CUDA's statistics, played by a stand-in: 2000 bytes allocated before, after a peak of 5000)"
        self.check(
            statistics_of_cuda(on_cuda),
            Reading(
                f"on entering {on_cuda}",
                current=0,
                peak=0,
                suspects={
                    "what was allocated before is not taken off": 2000,
                    "the peak is not reset on entering": 3000,
                    "neither is the peak reset on entering nor what was allocated before taken off": 5000,
                },
            ),
            Reading(
                "after 700 bytes came and 300 went",
                current=400,
                peak=700,
                hint="memory_allocated and max_memory_allocated, not what the allocator reserves",
            ),
            Reading(
                "after reset",
                current=400,
                peak=400,
                suspects={"reset takes the baseline anew": 0},
                hint="reset_peak_memory_stats",
            ),
            Reading("with 100 bytes more", current=500, peak=500),
            Reading("after the block", peak=500),
        )

    @pytest.mark.gpu
    def test_on_a_gpu(self):
        self.check(
            on_a_gpu(),
            Reading("with 4 MiB and a number on a GPU", current=4 * MIB + 512, peak=8 * MIB + 512),
            Reading("after reset", peak=4 * MIB + 512),
        )


class TestMeasureMemory:
    def measure(self, name, *args):
        return self.assert_pair(measure_memory(named_program(name), *args))

    def assert_pair(self, got):
        return assert_tuple("measure_memory's result", got, ("peak_bytes", "result"))

    def test_worked_example(self):
        peak_bytes, result = self.measure("(x + 1).sum()", torch.zeros(1000))
        require(not isinstance(peak_bytes, torch.Tensor), "the result came first: it is (peak_bytes, result)")
        assert_bytes(
            "the peak of (x + 1).sum()",
            peak_bytes,
            4004,
            suspects={
                "what is alive at the end is measured, not the peak": 4,
                "the arguments are counted": 8004,
                "the result's bytes are taken off": 4000,
            },
        )
        assert_equal("the result of (x + 1).sum()", float(result), 1000.0)

    def test_sizes_drawn_at_random(self, rng):
        for n in map(int, rng.integers(10, 5000, 3)):
            peak_bytes, result = self.measure("(x + 1).sum()", torch.zeros(n))
            assert_bytes(f"the peak of (x + 1).sum(), of {n} numbers,", peak_bytes, 4 * n + 4)
            assert_equal("the result of (x + 1).sum()", float(result), float(n))

    def test_the_result_is_handed_on_as_it_is(self):
        for name, (got, is_handed_on) in results_handed_on().items():
            self.assert_pair(got)
            require(is_handed_on, f"fn returned {name}; measure_memory returned something else")
        result = self.measure("x.exp()", torch.ones(5, requires_grad=True))[1]
        require(
            result.requires_grad, "the result of x.exp() has lost its graph: fn must run as it would without a tracker"
        )

    def test_arguments_are_handed_on(self):
        got = arguments_handed_on()
        require(got["first"] and got["more"] == (2, 3), "positional arguments do not reach fn as they are")
        require(got["scale"] == 0.5 and got["other"], "keyword arguments do not reach fn as they are")

    def test_fn_is_called_once(self):
        calls = []
        self.assert_pair(measure_memory(calls.append, 1))
        assert_equal("the number of calls of fn", len(calls), 1)

    def test_a_function_that_allocates_nothing(self):
        x = torch.zeros(1000)
        assert_bytes("the peak of a view", self.measure("x.view(10, 100).T", x)[0], 0)
        assert_bytes("the peak of writing in place", self.measure("x.add_(1)", x)[0], 0)

    def test_the_peak_is_over_what_was_there(self):
        first, second = (self.assert_pair(got)[0] for got in measured_twice("x.exp()", torch.zeros(1000)))
        assert_bytes("the peak of the first of two calls", first, 4000)
        assert_bytes("the peak of the second", second, 4000, hint="what an earlier call left belongs to the baseline")

    def test_the_peak_of_a_smaller_call_after_a_larger_one(self):
        self.measure("torch.zeros(n)", 5000)
        assert_bytes("the peak of a small call after a large one", self.measure("torch.zeros(n)", 10)[0], 40)

    def test_inside_a_tracker(self):
        got, outer_bytes, _ = allocated_by(measure_memory, named_program("x.exp()"), torch.zeros(1000))
        measured = self.assert_pair(got)[0]
        assert_bytes("the peak of a call, measured while others measure too,", measured, 4000)
        require(outer_bytes >= 4000, "the meter outside no longer sees what is allocated")

    def test_attention(self):
        inputs = [torch.randn(3, 29, 17) for _ in range(3)]
        for name, softmax in (("attention", "written_out"), ("attention, its softmax built in", "built_in")):
            parts = attention_memory(3, 29, 17, definition="inference_peak", softmax=softmax, **EXACT)
            want = sum(parts.values()) - parts["inputs"]
            assert_bytes(f"the peak of attention, its softmax {softmax},", self.measure(name, *inputs)[0], want)

    def test_a_training_step(self):
        shape = (2, 31, 8)
        inputs = [torch.randn(shape, requires_grad=True) for _ in range(3)]
        first, second = (self.assert_pair(got)[0] for got in measured_twice("a training step", *inputs))
        parts = attention_memory(*shape, definition="step_peak", **EXACT)
        new = {name: nbytes for name, nbytes in parts.items() if name not in ("inputs", "gradients")}
        gradient_of_v = parts["gradients"] // 3  # the first to be made, and in the first step it stays
        assert_bytes(
            "the peak of forward and backward",
            first,
            sum(new.values()) + gradient_of_v,
            hint="the backward pass runs inside fn: it counts, and so do the gradients that it makes",
        )
        assert_bytes("the peak of a second step, its gradients kept,", second, sum(new.values()))

    def test_meta_arguments(self):
        x = torch.empty(2**20, 2**20, device="meta")
        peak_bytes, result = self.measure("xs['x'][0].clone()", {"x": [x]})
        require(result.device.type == "meta", "the result is no longer on meta")
        assert_bytes("the peak of a simulated copy of 4 TiB", peak_bytes, 2**42)

    def test_an_exception_passes(self):
        with nothing_looks_on_afterwards("an exception"):
            x = torch.zeros(100)
            assert_raises(KeyError, lambda: measure_memory(named_program("a KeyError"), x), when="where fn raised one")
        with nothing_looks_on_afterwards("a measurement"):
            measure_memory(named_program("torch.zeros(n)"), 5)

    def test_no_bytes_without_a_gpu(self):
        measure_memory(named_program("torch.zeros(n)"), 5)
        assert_bytes(
            "the peak of a call with a CUDA tensor among its arguments (the allocator is played by a stand-in)",
            self.assert_pair(measured_on_cuda())[0],
            300,
            hint="the first tensor among the arguments, also inside lists and dicts, says which device to measure",
        )


class TestSavedForBackward:
    def check(self, name, *args, want, of="", hint="", suspects=None):
        """Compare what is saved for a program, called `of` in the message if not by its name."""
        got = saved_for_backward(named_program(name), *args)
        assert_bytes(f"what is saved for {of or name}", got, want, hint=hint, suspects=suspects)

    def leaf(self, *shape, dtype=torch.float32):
        return torch.ones(shape, dtype=dtype, requires_grad=True)

    def test_worked_example(self):
        x = self.leaf(1000)
        self.check("x.exp().sum()", x, want=4000, suspects={"the output is counted": 4004})
        self.check("x.exp()", x, want=0, suspects={"the output is counted": 4000})
        self.check("x.sin().sum()", x, want=0, suspects={"the input is counted": 4000})

    def test_a_storage_counts_once(self):
        self.check(
            "e = x.exp(); (e * e).sin().sum()",
            self.leaf(1000),
            want=8000,
            suspects={
                "each time a tensor is saved counts": 16_000,
                "a storage is forgotten and its identity used again": 4000,
            },
            hint="exp saves its result, and the product saves it twice more: one storage",
        )

    def test_views_of_one_storage(self):
        self.check(
            "products of views of the exponentials",
            self.leaf(30, 40),
            want=4800,
            hint="views share a storage, and it counts once; data_ptr() differs from view to view",
        )

    def test_a_view_keeps_the_whole_storage(self):
        self.check(
            "a product of ten elements of a larger array",
            self.leaf(1000),
            want=4000,
            suspects={"the elements saved are counted, not the storage that they keep alive": 40},
        )

    def test_views_of_inputs_are_inputs(self):
        self.check(
            "x @ w.T, summed up",
            self.leaf(6, 7),
            self.leaf(5, 7),
            want=0,
            hint="a view of an input is the input: its storage was there before",
        )

    def test_views_of_the_output_are_output(self):
        x = self.leaf(6, 7)
        hint = "the output's storage is left out, whatever view of it is returned"
        self.check("x.exp().T", x, of="x.exp().T, the output a view of what is saved,", want=0, hint=hint)
        self.check("x.exp()[1:]", x, want=0, hint=hint)

    def test_inputs_and_outputs_in_containers(self):
        x, w = self.leaf(100), self.leaf(100)
        self.check(
            "inputs in a list and a dict, outputs in a dict,",
            [x],
            {"w": w},
            want=0,
            hint="look for inputs and outputs inside lists, tuples and dicts",
        )
        self.check("two outputs", x, want=0, hint="every tensor that fn returns is output")

    def test_every_dtype_counts(self):
        x = self.leaf(10, 100)
        self.check(
            "the maximum of each row",
            x,
            want=80,
            hint="the maximum saves where it was found: int64, 8 bytes each",
        )
        self.check("a mask made inside", x, want=1000, hint="a saved mask of booleans takes a byte an element")
        half = self.leaf(1000, dtype=torch.bfloat16)
        self.check("x.exp().sum()", half, of="x.exp().sum() in bfloat16", want=2000)

    def test_modules(self):
        x = self.leaf(7, 20)
        for kind, name, hint in (
            ("a linear layer", "a linear layer", "a module's parameters are inputs"),
            ("a batch norm", "a batch norm that does not train", "a module's buffers are inputs too"),
        ):
            assert_bytes(f"what is saved for {name}", saved_for_a_module(kind, x), 0, hint=hint)

    def test_functions_with_a_backward_of_their_own(self):
        self.check(
            "a torch.autograd.Function that saves an array it made",
            self.leaf(100),
            want=400,
            hint="what ctx.save_for_backward is given counts too",
        )

    def test_without_gradients(self):
        x = torch.ones(1000)
        self.check("x.exp().sum()", x, of="x.exp().sum(), where x needs no gradient,", want=0)
        self.check("x.exp().sum() under no_grad", x.requires_grad_(), want=0)

    def test_attention(self, rng):
        batch, n, d = (int(rng.integers(*bounds)) for bounds in ((1, 4), (20, 60), (5, 30)))
        inputs = [self.leaf(batch, n, d) for _ in range(3)]
        square, column = 4 * batch * n * n, batch * n
        where = f"attention on ({batch}, {n}, {d})"
        want = memory((batch, n, d), "saved", **EXACT)
        usual = {
            "the scores and the weights are taken to be what is saved, and the columns are forgotten": 2 * square,
            "the positions of the maxima, int64, are forgotten": want - 8 * column,
            "the positions of the maxima are taken for float32": want - 4 * column,
            "each time a tensor is saved counts": want + square,
        }
        self.check("attention, summed up", *inputs, of=f"{where}, summed up", want=want, suspects=usual)
        self.check("attention", *inputs, of=f"{where}, not summed up", want=want, suspects=usual)
        built_in = "attention, its softmax built in, summed up"
        self.check(built_in, *inputs, of=f"{where}, its softmax built in", want=square)

    def test_fn_is_called_once_and_no_backward_pass_runs(self):
        n_calls, gradient = calls_and_gradient(self.leaf(100))
        assert_equal("the number of calls of fn", n_calls, 1)
        require(gradient is None, "x has a gradient: a backward pass was run")

    def test_nothing_stays_saved(self):
        x = self.leaf(1000)
        for name in ("x.exp().sin() * 2", "x.exp()"):
            _, _, alive = allocated_by(saved_for_backward, named_program(name), x)
            require(
                alive == 0,
                f"{alive:,} bytes are still alive after saved_for_backward has returned\n"
                "Usual cause: pack returns the very tensor it was given; where that is the output, the graph holds "
                "itself (return tensor.detach()). Or storages are collected in a global",
            )
        require(not hooks_taken_away(), "the hooks are still in place")
        self.check("x.exp().sum()", x, of="x.exp().sum(), asked a second time,", want=4000)

    def test_hooks_go_when_fn_raises(self):
        x = self.leaf(10)
        with nothing_looks_on_afterwards("an exception"):
            assert_raises(
                KeyError, lambda: saved_for_backward(named_program("a KeyError"), x), when="where fn raised one"
            )
        require(not hooks_taken_away(), "the hooks are still in place after fn has raised: use them with `with`")


PARTS = (
    *("inputs", "gradients", "scores", "shifted", "exponentials", "weights"),
    *("argmax", "row_sums", "loss", "workspace"),
)
TOTALS = ("saved", "forward_peak", "step_peak")


def rounded(nbytes, to=512):
    return -(-nbytes // to) * to


def parts_of(batch, n, d, itemsize):
    """The parts by the handout's table, and the size of one output."""
    square, tall = rounded(batch * n * n * itemsize), rounded(batch * n * d * itemsize)
    parts = dict.fromkeys(("scores", "shifted", "exponentials", "weights"), square)
    parts |= {"inputs": 3 * tall, "gradients": 3 * tall, "argmax": rounded(8 * batch * n)}
    parts |= {"row_sums": rounded(batch * n * itemsize), "loss": 512, "workspace": WORKSPACE_BYTES}
    return parts, tall


class TestAttentionTrainingMemory:
    def check(self, batch, n, d, *, itemsize=4):
        given = () if itemsize == 4 else (itemsize,)
        self.compare(attention_training_memory(batch, n, d, *given), batch, n, d, itemsize)

    def compare(self, got, batch, n, d, itemsize=4):
        assert_keys("the result", got, (*PARTS, *TOTALS))
        where = f"of batch {batch}, seq_len {n}, d_model {d}, {itemsize} bytes an element,"
        parts, tall = parts_of(batch, n, d, itemsize)
        want = {**parts, **{total: memory((batch, n, d), total, dtype_bytes=itemsize) for total in TOTALS}}
        exact = {total: memory((batch, n, d), total, dtype_bytes=itemsize, round_to=1) for total in TOTALS}
        suspects = self.suspects_of_parts(batch, n, d, itemsize, tall) | self.suspects_of_totals(want, tall, exact)
        hints = {
            "argmax": "positions are int64, 8 bytes each, whatever the dtype of the rest",
            "forward_peak": "the larger of two moments of the forward pass, as the handout lists them",
            "step_peak": "the largest of five moments, as the handout lists them",
        }
        for name in want:
            assert_bytes(
                f"{name} {where}", got[name], want[name], suspects=suspects.get(name), hint=hints.get(name, "")
            )

    def suspects_of_parts(self, batch, n, d, itemsize, tall):
        exact = batch * n * d * itemsize
        three = {
            "nothing is rounded up to 512": 3 * exact,
            "the three tensors are rounded up together, not each by itself": rounded(3 * exact),
            "only one of three tensors is counted": tall,
            "dtype_bytes is ignored": 3 * rounded(batch * n * d * 4),
        }
        square = {
            "nothing is rounded up to 512": batch * n * n * itemsize,
            "the batch is left out": rounded(n * n * itemsize),
            "each batch entry is rounded up by itself": batch * rounded(n * n * itemsize),
            "dtype_bytes is ignored": rounded(batch * n * n * 4),
        }
        return {
            **dict.fromkeys(("inputs", "gradients"), three),
            **dict.fromkeys(("scores", "shifted", "exponentials", "weights"), square),
            "argmax": {
                "positions are given the dtype of the rest: they are int64": rounded(batch * n * itemsize),
                "nothing is rounded up to 512": 8 * batch * n,
            },
            "row_sums": {
                "row sums are taken for int64: they have the dtype of the rest": rounded(8 * batch * n),
                "nothing is rounded up to 512": batch * n * itemsize,
                "each element has a row sum: each query has one": rounded(batch * n * n * itemsize),
            },
            "loss": {"one number is not rounded up: it takes 512 bytes too": itemsize},
            "workspace": {"64 MB are counted, not 64 MiB": 64 * 10**6, "nothing is counted": 0},
        }

    def suspects_of_totals(self, want, tall, exact):
        square, scalar, columns = want["scores"], want["loss"], want["argmax"] + want["row_sums"]
        always = want["inputs"] + want["gradients"] + want["loss"] + WORKSPACE_BYTES
        special = {
            "saved": {
                "four N × N arrays are taken to be saved": 4 * square + columns,
                "the inputs are counted as saved": want["saved"] + want["inputs"],
                "the output is counted as saved": want["saved"] + tall,
                "the workspace is counted, which nobody saves": want["saved"] + WORKSPACE_BYTES,
            },
            "forward_peak": {
                "only one moment is looked at: for short sequences the output counts more than two N × N arrays": (
                    always + 4 * square + columns
                ),
                "the moments are added up: the output is made when scores and shifted scores are gone": (
                    always + 4 * square + columns + tall
                ),
                "only the saved arrays are counted, not scores and shifted scores": always + 2 * square + columns,
            },
            "step_peak": {
                "it is the forward pass's peak": want["forward_peak"],
                "only the moment with six N × N arrays is looked at": always + scalar + columns + 6 * square,
                "the gradient that the backward pass starts from, one number, is forgotten": want["step_peak"] - scalar,
                "the backward pass is taken to double the forward peak": 2 * want["forward_peak"],
            },
        }
        for total, suspects in special.items():
            suspects |= {
                "nothing is rounded up to 512": exact[total],
                "the sum is rounded up to 512, not each tensor by itself": rounded(exact[total]),
                "the workspace is left out": want[total] - WORKSPACE_BYTES,
                "the workspace is counted twice": want[total] + WORKSPACE_BYTES,
                "the gradients, as large as the inputs, or the inputs are left out": want[total] - want["gradients"],
                "the loss is left out": want[total] - want["loss"],
                "the positions of the maxima are left out": want[total] - want["argmax"],
                "the row sums are left out": want[total] - want["row_sums"],
                "the positions of the maxima and the row sums are left out": want[total] - columns,
            }
        return {
            total: {text: value for text, value in each.items() if value != want[total]}
            for total, each in special.items()
        }

    def test_worked_example(self):
        self.check(8, 256, 16)

    def test_the_longest_row_of_the_table(self):
        self.check(8, 16384, 128)

    @pytest.mark.parametrize("shape", [(2, 63, 17), (3, 129, 5), (1, 1, 1), (7, 31, 31)])
    def test_odd_shapes(self, shape):
        self.check(*shape)

    @pytest.mark.parametrize("itemsize", [1, 2, 8])
    def test_bytes_of_an_element(self, itemsize):
        self.check(3, 100, 20, itemsize=itemsize)

    @pytest.mark.parametrize(
        "shape", [(1, 1, 512), (3, 5, 300), (1, 40, 170), (1, 40, 80), (2, 2, 7), (2, 64, 1024), (128, 1, 4)]
    )
    def test_wide_models(self, shape):
        self.check(*shape)

    def test_any_shape(self, rng):
        for _ in range(20):
            batch, n, d = (int(2 ** rng.uniform(0, top)) for top in (4, 9, 11))
            self.check(batch, n, d, itemsize=int(rng.choice([2, 4, 8])))

    def test_a_million_tokens(self):
        shape = 1, 2**20, 64
        got, peak_bytes, _ = allocated_by(attention_training_memory, *shape)
        self.compare(got, *shape)
        assert_at_most("the memory allocated by the prediction", peak_bytes, 0, hint="nothing is to be allocated")

    def test_the_tracker_agrees(self):
        shape = (8, 16, 16)
        got = attention_training_memory(*shape)
        with AllocationMeter(round_to=512) as meter:
            inputs = [torch.randn(shape, requires_grad=True) for _ in range(3)]
            for _ in range(2):
                before = meter.live_bytes
                meter.reset()
                loss = written_out(*inputs).sum()
                measured = {"saved": meter.live_bytes - before, "forward_peak": meter.peak_bytes + WORKSPACE_BYTES}
                loss.backward()
        measured["step_peak"] = meter.peak_bytes + WORKSPACE_BYTES
        for name, want in measured.items():
            assert_bytes(f"{name} of {shape}, beside a measured step,", got[name], want)

    @pytest.mark.parametrize("position", range(4))
    def test_nothing_is_refused(self, position):
        attention_training_memory(1, 1, 1)
        name = ("batch", "seq_len", "d_model", "dtype_bytes")[position]
        sizes = [2, 3, 4, 4]
        sizes[position] = 0
        assert_refuses(ValueError, lambda: attention_training_memory(*sizes), when=f"for {name} 0", mentions=[name])


class TestLargestSeqLen:
    def check(self, capacity, batch, d, *, itemsize=4, peak=None):
        given = {} if itemsize == 4 else {"dtype_bytes": itemsize}
        given |= {} if peak is None else {"peak": peak}
        got = largest_seq_len(capacity, batch, d, **given)
        definition = peak or "forward_peak"
        name = (
            f"the longest sequence in {capacity:,} bytes (batch {batch}, d_model {d}, {itemsize} bytes, {definition})"
        )
        assert_type(name, got, int, "an int")
        want = reference_seq_len(capacity, batch, d, itemsize, definition)

        def by(**changed):
            options = {"dtype_bytes": itemsize, "definition": definition} | changed
            return reference_seq_len(capacity, batch, d, **options)

        squares = {"forward_peak": 4, "step_peak": 6, "saved": 2}[definition]
        room = max(capacity - (0 if definition == "saved" else WORKSPACE_BYTES), 0)
        suspects = {
            "peak is ignored": lambda: by(definition="forward_peak"),
            "the whole step is looked at, whatever peak says": lambda: by(definition="step_peak"),
            "dtype_bytes is ignored": lambda: by(dtype_bytes=4),
            "the workspace is forgotten": lambda: by(workspace_bytes=0),
            "nothing is rounded": lambda: by(round_to=1),
            "only the N × N arrays are solved for": math.isqrt(room // (squares * batch * itemsize)),
            "the published formula is used: 2 N × N arrays and 64 MiB": math.isqrt(room // (2 * batch * 4)),
            "the first length that does not fit is returned": want + 1,
            "capacity_bytes itself is taken for too much: up to it, a total fits": lambda: by_less(1),
        }

        def by_less(nbytes):
            return reference_seq_len(capacity - nbytes, batch, d, itemsize, definition)

        assert_equal(
            name,
            got,
            want,
            suspects={text: value for text, value in suspects.items() if text},
            hint="the answer is exact: it fits, and one token more does not",
        )

    def test_worked_example(self):
        self.check(24 * GIB, 8, 64)
        self.check(24 * GIB, 8, 64, peak="step_peak")

    @pytest.mark.parametrize("peak", [None, "forward_peak", "step_peak", "saved"])
    def test_devices(self, peak):
        for capacity in (70 * MIB, 16 * 10**9, 98 * GIB):
            for d in (16, 128):
                self.check(capacity, 8, d, peak=peak)

    def test_other_dtypes(self):
        for itemsize in (1, 2, 8):
            self.check(3 * GIB, 2, 40, itemsize=itemsize)
            self.check(3 * GIB, 2, 40, itemsize=itemsize, peak="step_peak")

    def test_a_total_of_exactly_the_capacity_fits(self, rng):
        for peak in ("forward_peak", "step_peak"):
            for _ in range(10):
                batch, n, d = (int(2 ** rng.uniform(0, top)) for top in (3, 13, 8))
                total = memory((batch, n, d), peak)
                self.check(total, batch, d, peak=peak)
                self.check(total - 1, batch, d, peak=peak)

    def test_wide_models(self):
        for d in (4096, 20_000):
            for peak in ("forward_peak", "step_peak"):
                self.check(WORKSPACE_BYTES + 40 * MIB, 4, d, peak=peak)

    def test_lengths_that_take_the_same_memory(self):
        for n in range(1, 12):
            self.check(memory((1, n, 1), "forward_peak", dtype_bytes=1), 1, 1, itemsize=1)

    @pytest.mark.parametrize("capacity", [0, 1, 10**6, WORKSPACE_BYTES, WORKSPACE_BYTES + 4096])
    def test_nothing_fits(self, capacity):
        self.check(capacity, 8, 64)

    def test_one_token_fits(self):
        self.check(memory((8, 1, 64), "forward_peak"), 8, 64)

    @pytest.mark.seconds(5)
    def test_devices_of_the_far_future(self):
        for capacity in (10**15, 10**21 + 12_345, 10**41):
            self.check(capacity, 1, 3)

    def test_an_unknown_peak_is_refused(self):
        largest_seq_len(10**9, 1, 1)
        assert_refuses(
            ValueError, lambda: largest_seq_len(10**9, 1, 1, peak="peek"), when="for peak='peek'", mentions=["peek"]
        )


LENGTHS = (256, 1024, 4096, 8192, 16384)
ADD_MEM = ("4.02344", "64.0938", "1024.38", "4096.75", "16385.5")
MEM_MAX = {
    16: ("72.7739", "195.094", "2124.38", "8280.75", "32881.5"),
    32: ("73.5239", "198.094", "2136.38", "8304.75", "32929.5"),
    64: ("75.0239", "204.094", "2160.38", "8352.75", "33025.5"),
    128: ("78.0239", "216.094", "2208.38", "8448.75", "33217.5"),
}
NUMBERS = ("fwd_ms", "bwd_ms", "mem_max_MB", "add_mem_MB")


class TestBenchmarkAttention:
    def rows(self, *args, **kwargs):
        return self.assert_rows(benchmark_attention(*args, **kwargs))

    def assert_rows(self, rows):
        assert_type("benchmark_attention's result", rows, list, "a list of rows")
        for number, row in enumerate(rows):
            assert_keys(f"row {number}", row, COLUMNS)
        return rows

    def assert_order(self, rows, asked):
        """Fail unless the rows are those asked for: pairs of d_model and seq_len, in order."""
        assert_equal("the number of rows", len(rows), len(asked), hint="a row for every d_model and every seq_len")
        for number, (row, pair) in enumerate(zip(rows, asked, strict=True)):
            assert_equal(
                f"(d_model, seq_len) of row {number}",
                (row["d_model"], row["seq_len"]),
                pair,
                hint="every d_model in turn, and for each of them every seq_len",
            )

    def assert_memory(self, row, *, printed=None):
        """Compare a row's two numbers with the reference, to the byte, or to the printed digits."""
        require(row["status"] == "success", f"status is {row['status']!r} where everything fits, expected 'success'")
        shape = row["batch_size"], row["seq_len"], row["d_model"]
        where = f"on {row['device']} for batch {shape[0]}, seq_len {shape[1]}, d_model {shape[2]}"
        options = {} if row["device"] == "meta" else EXACT
        for number, (name, definition) in enumerate((("mem_max_MB", "forward_peak"), ("add_mem_MB", "saved"))):
            assert_type(f"{name} {where}", row[name], float, "a float: MiB")
            want = memory(shape, definition, **options)
            suspects = self.suspects(shape, definition, row["device"], options, want)
            if printed is None:
                suspects = {text: nbytes / MIB for text, nbytes in suspects.items()}
                assert_equal(f"{name} {where}", row[name], want / MIB, suspects=suspects)
            else:
                digits = {text: f"{nbytes / MIB:.6g}" for text, nbytes in suspects.items()}
                assert_equal(f"{name} {where}, printed,", f"{row[name]:.6g}", printed[number], suspects=digits)

    def suspects(self, shape, definition, device, options, want):
        """Bytes that usual mistakes lead to."""
        itself, other = dict(options), {"round_to": 1, "workspace_bytes": 0} if device == "meta" else {}
        parts = attention_memory(*shape, definition="forward_peak", **itself)
        live = memory(shape, "live_after_forward", **itself)
        found = {
            "it is divided by 10⁶: the table's MB are MiB": want * MIB / 10**6,
            "it is in bytes": want * MIB,
            "it is in KiB": want * 2**10,
            "it is in GiB": want / 2**10,
            "the CPU's bytes are rounded up to 512, and a workspace is added": memory(shape, definition, **other),
            "nothing is rounded and no workspace is added": memory(shape, definition, **other),
        }
        del found[list(found)[-1 if device == "cpu" else -2]]
        if definition == "forward_peak":
            work = options.get("workspace_bytes", WORKSPACE_BYTES)
            return found | {
                "the workspace of 64 MiB is left out": want - WORKSPACE_BYTES,
                "tensors are not rounded up to 512 bytes": memory(shape, definition, round_to=1, workspace_bytes=work),
                "the first step is read: neither gradients nor a loss are there yet": (
                    want - parts["gradients"] - parts["loss"]
                ),
                "the inputs are made outside of the tracker, or the gradients thrown away before the forward pass": (
                    want - parts["gradients"]
                ),
                "the last step's loss is gone": want - parts["loss"],
                "inputs and gradients are not counted": want - parts["inputs"] - parts["gradients"],
                "the peak is read after the backward pass": memory(shape, "step_peak", **itself),
                "the peak is reset after the forward pass, not before": live,
                "the peak is read over what was there when the step began": want
                - work
                - parts["inputs"]
                - parts["gradients"]
                - parts["loss"],
            }
        peak_growth = sum(parts.values()) - live + want
        return found | {
            "everything alive is counted, not by how much it grew": live,
            "everything alive is counted but the workspace": live - options.get("workspace_bytes", WORKSPACE_BYTES),
            "it is read after the backward pass": 0,
            "the growth of the peak is taken": peak_growth,
            "the last step's loss is gone when it begins": want + parts["loss"],
            "the workspace is counted: it was there before": want + WORKSPACE_BYTES,
            "tensors are not rounded up to 512 bytes": memory(shape, definition, round_to=1),
            "the first step is read: its loss is new": want + parts["loss"],
        }

    @simulated
    def test_the_published_table(self):
        rows = self.rows(list(MEM_MAX), list(LENGTHS), device="meta")
        self.assert_order(rows, [(d, n) for d in MEM_MAX for n in LENGTHS])
        for number, row in enumerate(rows):
            asked = {"batch_size": 8, "warmup_steps": 5, "steps": 100, "device": "meta"}
            for name, value in asked.items():
                assert_equal(f"{name} of row {number}", row[name], value, hint="as asked for")
            for name in ("fwd_ms", "bwd_ms"):
                require(
                    row[name] is None,
                    f"{name} of row {number} is {row[name]}, expected None: a simulation has no times",
                )
            self.assert_memory(row, printed=(MEM_MAX[row["d_model"]][number % 5], ADD_MEM[number % 5]))

    @simulated
    def test_simulated_rows_are_rounded(self, rng):
        widths, lengths = [17, int(rng.integers(20, 300))], [5, int(rng.integers(40, 400))]
        for row in self.rows(widths, lengths, batch_size=3, warmup_steps=0, steps=1, device="meta"):
            self.assert_memory(row)

    @simulated
    def test_simulated_rows_are_measured(self):
        rows, counts, _ = watched(benchmark_attention, [16, 32], [64], batch_size=2, steps=1, device="meta")
        self.assert_rows(rows)
        require(
            counts["exp"] >= 4 and counts["bmm"] >= 20,
            f"for two rows, {counts['exp']} forward passes ran on meta tensors, expected two steps of each\n"
            "Usual cause: the numbers are worked out by a formula, or copied: this table is to be measured",
        )

    def test_the_cpu_rounds_nothing(self):
        rows = self.rows([17, 300], [63, 5], batch_size=3, warmup_steps=0, steps=1)
        asked = [(d, n) for d in (17, 300) for n in (63, 5)]
        self.assert_order(rows, asked)
        for row in rows:
            assert_equal("device", row["device"], "cpu")
            self.assert_memory(row)

    def test_the_steps_are_those_asked_for(self):
        ran, unwatched = {}, {}
        for warmup, steps in ((0, 2), (0, 5), (3, 2)):
            asked = {"batch_size": 1, "warmup_steps": warmup, "steps": steps}
            rows, ran[warmup, steps], unwatched[warmup, steps] = watched(benchmark_attention, [4], [8], **asked)
            (row,) = self.assert_rows(rows)
            for name, value in (("warmup_steps", warmup), ("steps", steps)):
                assert_equal(name, row[name], value, hint="as asked for")
        n_steps = {asked: counts["exp"] for asked, counts in ran.items()}
        assert_equal("the number of forward passes that three steps more bring", n_steps[0, 5] - n_steps[0, 2], 3)
        assert_equal("the number of forward passes that three warm-up steps bring", n_steps[3, 2] - n_steps[0, 2], 3)
        require(
            ran[0, 5]["bmm"] - ran[0, 2]["bmm"] == 18,
            "a step has 2 products in the forward pass and 4 in the backward pass; those of three steps are not there",
        )
        require(
            unwatched[0, 5]["exp"] >= 5,
            f"of 5 timed steps, {unwatched[0, 5]['exp']} ran without a tracker looking on\n"
            "A tracker slows every operator down: measure memory in steps of their own, and time without it",
        )

    def test_times_of_the_cpu(self):
        for row in self.rows([4, 8], [16], batch_size=2, warmup_steps=1, steps=2):
            for name in ("fwd_ms", "bwd_ms"):
                assert_type(name, row[name], float, "a float: milliseconds")
                require(row[name] > 0, f"{name} is {row[name]}, expected milliseconds above 0")
                require(row[name] < 5000, f"{name} is {row[name]:,.0f}, and no unit makes that milliseconds")

    @pytest.mark.parametrize(
        "error",
        [
            ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB."),
            (
                "RuntimeError",
                "[enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't allocate memory: you tried "
                "to allocate 65536 bytes. Error code 12 (Cannot allocate memory)",
            ),
            ("RuntimeError", "[enforce fail at alloc_cpu.cpp:116] data. DefaultCPUAllocator: not enough memory: you"),
        ],
        ids=["CUDA", "CPU", "CPU_on_Windows"],
    )
    def test_rows_that_run_out_of_memory(self, error):
        sizes = {"batch_size": 1, "warmup_steps": 0, "steps": 1}
        benchmark_attention([2], [2], **sizes)
        try:
            rows = on_a_small_device(4 * 100 * 100, *error, benchmark_attention, [4], [40, 128, 41], **sizes)
        except RuntimeError as uncaught:
            require("memory" not in str(uncaught), f"out of memory ends the benchmark: {str(uncaught)[:60]} …")
            raise
        self.assert_rows(rows)
        assert_equal(
            "status of three rows, the second too large,",
            [row["status"] for row in rows],
            ["success", "oom", "success"],
        )
        for name in NUMBERS:
            require(rows[1][name] is None, f"{name} of a row that ran out of memory is {rows[1][name]}, expected None")
        assert_equal("seq_len of the row that ran out of memory", rows[1]["seq_len"], 128)
        self.assert_memory(rows[2])

    @pytest.mark.parametrize(
        "error",
        [("RuntimeError", "mat1 and mat2 shapes cannot be multiplied"), ("TypeError", "a mistake")],
        ids=["RuntimeError", "TypeError"],
    )
    def test_other_errors_pass(self, error):
        sizes = {"batch_size": 1, "warmup_steps": 0, "steps": 1}
        benchmark_attention([2], [2], **sizes)

        def run():
            rows = on_a_small_device(4 * 100 * 100, *error, benchmark_attention, [4], [128], **sizes)
            return [row["status"] for row in rows]

        kind = {"RuntimeError": RuntimeError, "TypeError": TypeError}[error[0]]
        with nothing_looks_on_afterwards("an error inside"):
            assert_raises(kind, run, when="where attention raised one that is not about memory")

    def test_nothing_stays_alive(self):
        sizes = {"batch_size": 2, "warmup_steps": 0, "steps": 1}
        rows, _, alive = allocated_by(benchmark_attention, [8], [64, 65], **sizes)
        self.assert_rows(rows)
        require(alive == 0, f"{alive:,} bytes are still alive after the benchmark: rows hold numbers, not tensors")

    def test_without_a_gpu_cuda_is_refused(self):
        benchmark_attention([2], [2], batch_size=1, warmup_steps=0, steps=1)
        assert_refuses(
            RuntimeError,
            lambda: without_a_gpu(benchmark_attention, [4], [8], steps=1, device="cuda"),
            when="for device='cuda' without a GPU",
        )

    def test_other_devices_are_refused(self):
        benchmark_attention([2], [2], batch_size=1, warmup_steps=0, steps=1)
        assert_refuses(
            ValueError,
            lambda: benchmark_attention([4], [8], steps=1, device="mps"),
            when="for device='mps'",
            mentions=["mps"],
        )

    @pytest.mark.gpu
    def test_on_a_gpu(self):
        (row,) = self.rows([64], [2048], warmup_steps=2, steps=3, device="cuda")
        require(row["status"] == "success", f"status is {row['status']!r}, expected 'success'")
        require(row["fwd_ms"] > 0 and row["bwd_ms"] > 0, "a time is not above 0")
        saved = memory((8, 2048, 64), "saved") / MIB
        require(
            abs(row["add_mem_MB"] - saved) <= 2,
            f"add_mem_MB is {row['add_mem_MB']:.6g} on a GPU; the allocator may add 1 MiB a block to {saved:.6g}",
        )
        least = memory((8, 2048, 64), "forward_peak", workspace_bytes=0) / MIB
        require(
            least <= row["mem_max_MB"] <= least + 140,
            f"mem_max_MB is {row['mem_max_MB']:.6g} on a GPU, expected {least:.6g} and at most 140 for workspaces",
        )
