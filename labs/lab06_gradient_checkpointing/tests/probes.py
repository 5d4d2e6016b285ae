"""What runs next to the submission: forward and backward passes of checkpointed functions, measured."""

import contextlib
import warnings
from functools import partial
from unittest import mock

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from checkpointing import Checkpoint, StrictCheckpoint, checkpoint, checkpoint_sequential

from labkit.meters.allocation import AllocationMeter
from labkit.meters.products import ProductMeter
from labkit.meters.tensors import kept_by_forward
from labkit.testing.probes import probe


def _run_of(task):
    return {"Checkpoint": Checkpoint.apply, "StrictCheckpoint": StrictCheckpoint.apply}.get(task, checkpoint)


def _counting_run(task):
    """The task's `run(fn, *args)`, and a list that grows with each call of an fn."""
    ran = []

    def run(fn, *args):
        def counted(*args):
            ran.append(fn)
            return fn(*args)

        return _run_of(task)(counted, *args)

    return run, ran


@probe
def call(task, fn, *args):
    """What `fn(run, *args)` returns, where run is the task's way to call a function."""
    return fn(_run_of(task), *args)


@probe
def passes(task, fn, args, **options):
    """What `_passes` returns for `fn(run, **args)`."""
    run, ran = _counting_run(task)
    return _passes(lambda: fn(run, **args), list(args.values()), ran, **options)


@probe
def kept(task, fn, args):
    """The bytes besides arguments and results that the forward pass keeps, and how often functions ran."""
    run, ran = _counting_run(task)
    return kept_by_forward(lambda: fn(run, **args)), len(ran)


@probe
def sequence_passes(shifts, segments, x, **options):
    """What `_passes` returns for a chain of tanh(x + shift); `ran` holds the functions' numbers in their order."""
    ran = []

    def shifted(i, shift):
        def step(x):
            ran.append(i)
            return torch.tanh(x + shift)

        return step

    functions = [shifted(i, shift) for i, shift in enumerate(shifts)]
    forward = partial(checkpoint_sequential, functions, segments, x)
    return _passes(forward, [x, *shifts], ran, **options) | {"ran": ran}


@probe
def large_step(task, x):
    """A training step through 6 functions of 8 steps each: the result, and x's gradient."""
    y = x = x.detach().requires_grad_()
    for _ in range(6):
        y = _run_of(task)(deep, y)
    y.sum().backward()
    return y.detach(), x.grad


@probe
def large_sequence(functions, segments, x):
    """A training step through `checkpoint_sequential`: the result, and x's gradient."""
    x = x.detach().requires_grad_()
    y = checkpoint_sequential(functions, segments, x)
    y.sum().backward()
    return y.detach(), x.grad


@probe
def node(x):
    """The name of the node behind `Checkpoint.apply(torch.sin, x)`, and whether Checkpoint is PyTorch's own."""
    y = Checkpoint.apply(torch.sin, x)
    theirs = isinstance(Checkpoint, type) and issubclass(Checkpoint, torch.utils.checkpoint.CheckpointFunction)
    return type(y.grad_fn).__name__, theirs


@probe
def borrowed(task, x):
    """The names of the functions and classes of torch.utils.checkpoint that both passes of a sine use."""
    theirs = torch.utils.checkpoint
    names = [name for name, value in vars(theirs).items() if "checkpoint" in name.lower() and callable(value)]
    with mock.patch.multiple(theirs, **{name: mock.Mock(wraps=getattr(theirs, name)) for name in names}):
        _run_of(task)(torch.sin, x).sum().backward()
        return [name for name in names if getattr(theirs, name).mock_calls]


def deep(x):
    """Eight steps, each of which saves a tensor of x's size."""
    for _ in range(8):
        x = torch.tanh(x)
    return x


def mixed(a, power, b, names, frozen, rows, flag):
    """Tensors of all kinds between other arguments; two results of different shapes, and one of integers."""
    if not isinstance(names, tuple) or flag is not None:
        raise TypeError("fn was not given its arguments in their order")
    product = a**power @ b
    return product * frozen, torch.sin(a[rows]).sum(-1) * b.sum(), product.argmax(-1)


def _passes(forward, args, ran, *, factors=None, seed=0, n_backward=1, measured=False):
    """Run `forward`, and backward from the sum of its results, each times its factor where there are any.

    Returns a dict: "results", whether one "requires_grad", "gradients" (for each backward pass, one for each of
    `args`), which of the tensors in `args` require one ("needs"), the gradients "of_factors", how many functions ran in
    the forward pass ("calls") and in all ("all_calls"), and the random generators' states "before" and "after" the
    backward passes. If measured, the peak bytes and the arithmetic of all passes; the results are then released before
    the backward pass and not returned.
    """
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    gpus = sorted({x.device.index for x in tensors if x.is_cuda})
    report = {"gradients": [], "before": [], "after": []}
    with torch.random.fork_rng(devices=gpus), contextlib.ExitStack() as stack:
        for generator in (torch.default_generator, *(torch.cuda.default_generators[i] for i in gpus)):
            generator.manual_seed(seed)
        if measured:
            products, memory = stack.enter_context(ProductMeter()), stack.enter_context(AllocationMeter())
        results = forward()
        every = results if isinstance(results, tuple) else (results,)
        every = [x for x in every if isinstance(x, torch.Tensor)]
        report |= {"calls": len(ran), "requires_grad": any(x.requires_grad for x in every)}
        loss = _loss(every, factors)
        report["results"] = None if measured else _detached(results)
        del results, every
        if not measured:
            report["before"] = _states(gpus)
        for i in range(n_backward if isinstance(loss, torch.Tensor) and loss.requires_grad else 0):
            for x in tensors:
                x.grad = None
            loss.backward(retain_graph=i + 1 < n_backward)
            report["gradients"].append([x.grad if isinstance(x, torch.Tensor) else None for x in args])
        if not measured:
            report["after"] = _states(gpus)
    if measured:
        report |= {"peak_bytes": memory.peak_bytes, "flops": products.flops}
    report |= {"all_calls": len(ran), "needs": [x.requires_grad for x in tensors]}
    return report | {"of_factors": [None if x is None else x.grad for x in factors or []]}


def _loss(results, factors):
    """The sum of the floating-point results, each times its factor; those whose factor is None are left out."""
    every = [x for x in results if x.is_floating_point()]
    if factors is None:
        return sum(x.sum() for x in every)
    return sum((x * factor).sum() for x, factor in zip(every, factors, strict=False) if factor is not None)


def _detached(results):
    if isinstance(results, tuple):
        return tuple(_detached(x) for x in results)
    return results.detach() if isinstance(results, torch.Tensor) else results


def _states(gpus):
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(gpu) for gpu in gpus)]


def dropped_twice(x):
    """Two dropouts, one after the other."""
    return F.dropout(F.dropout(x, 0.5), 0.3)


def two_dropouts(run, x):
    """Two checkpointed dropouts; something else draws afterwards."""
    first, second = (run(lambda x: F.dropout(x, 0.5), x) for _ in range(2))
    torch.rand(3, device=x.device)
    return first, second


def penalised(run, x, w, by):
    """The gradient of y + (∂y/∂x)², y = w·x², or None after a RuntimeError; ∂y/∂x comes from `by`, grad or backward."""
    leaf, factor = (torch.tensor(value, requires_grad=True) for value in (x, w))
    y = run(lambda x: factor * x**2, leaf)
    try:
        if by == "grad":
            (first,) = torch.autograd.grad(y, leaf, create_graph=True)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the cycle that the next line breaks
                y.backward(create_graph=True)
            first, leaf.grad = leaf.grad, None
        (y + first**2).backward()
    except RuntimeError:
        return None
    return None if leaf.grad is None else float(leaf.grad)


def under_autocast(run, x, weight, dtype, forward, backward):
    """The dtypes in which sin(x @ weight) is computed, and x's gradient, with the passes under autocast or not."""
    dtypes = []

    def fn(x):
        product = x @ weight
        dtypes.append(str(product.dtype))
        return torch.sin(product)

    x = x.detach().requires_grad_()
    with torch.autocast("cpu", dtype=dtype) if forward else contextlib.nullcontext():
        y = run(fn, x)
    with torch.autocast("cpu", dtype=dtype) if backward else contextlib.nullcontext():
        y.float().sum().backward()
    return dtypes, x.grad


def grad_modes(run, x):
    """Whether grad mode is on, in each run of a checkpointed function."""
    modes = []

    def fn(x):
        modes.append(torch.is_grad_enabled())
        return torch.sin(x)

    run(fn, x.detach().requires_grad_()).sum().backward()
    return modes
