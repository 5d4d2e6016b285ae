"""Lab 06's steps: functions under the answer's checkpoints, run and differentiated where the answer is, and measured.

A program is a function of `run`, which applies a function to arguments, and of tensors. The steps run it with the
answer's `run`; with one that merely calls, it is what plain autograd does.
"""

import contextlib
import types

import torch
import torch.nn.functional as F
from checkpointing import Checkpoint, checkpoint, checkpoint_sequential

from labkit.meters.products import ProductMeter
from labkit.meters.saved import kept_by_forward
from labkit.meters.tensors import AllocationMeter

# Programs


def deep(x):
    """Eight steps, each of which saves a tensor of x's size when autograd looks on."""
    for _ in range(8):
        x = torch.tanh(x)
    return x


def mixed(a, power, b, names, frozen, rows, flag):
    """Tensors of all kinds between other arguments; two results of different shapes, and one of integers."""
    if not isinstance(names, tuple) or flag is not None:
        raise TypeError("fn was not given its arguments in their order")
    product = a**power @ b
    return product * frozen, torch.sin(a[rows]).sum(-1) * b.sum(), product.argmax(-1)


def eight_steps(run, x):
    """One function."""
    return run(deep, x)


def all_kinds(run, *args):
    """One function with arguments and results of all kinds."""
    return run(mixed, *args)


def two_results(run, a, b):
    """A tuple of two."""
    return run(lambda a, b: (a * b, torch.sin(a) + b**2), a, b)


def in_the_middle(run, x, other):
    """An argument that comes out of a graph, and goes on beside."""
    hidden = torch.exp(x)
    return run(lambda h, o: torch.sin(h) * o, hidden, other * 2) + hidden


def given_twice(run, x):
    """One tensor in two places."""
    return run(lambda a, b: a * torch.sin(b), x, x)


def parameters_inside(run, x, weight, bias, scale):
    """A function that closes over tensors."""
    return run(lambda x: torch.tanh(F.linear(x, weight, bias)) * scale, x)


def sine_times_data(run, x, data):
    """Two arguments."""
    return run(lambda x, data: torch.sin(x) * data, x, data)


def times_data(run, x, data):
    """Two arguments, both needed in the backward pass."""
    return run(lambda x, data: x * data, x, data)


def times_changed_data(run, x, data):
    """`times_data`, whose second argument is changed in place afterwards."""
    y = times_data(run, x, data)
    data += 1
    return y


def deep_sum(run, *args):
    """Many activations of any number of arguments."""
    return run(lambda *args: deep(sum(torch.sin(arg) for arg in args)), *args)


def six_deep(run, x):
    """Six functions in a row."""
    for _ in range(6):
        x = run(deep, x)
    return x


def product(run, x, other):
    """One matrix product."""
    return run(torch.matmul, x, other)


def dropouts(run, x):
    """Two dropouts in one function, while others draw before and after."""
    torch.rand(2)
    y = run(lambda x: F.dropout(F.dropout(x, 0.5), 0.3), x)
    torch.rand(3)
    return y


def dropout(run, x):
    """One dropout."""
    return run(lambda x: F.dropout(x, 0.5), x)


def dropout_again(run, x):
    """The same function twice, and then others draw."""
    results = dropout(run, x), dropout(run, x)
    torch.rand(3, device=x.device)
    return results


def sine_and_exponential(run, x):
    """Two functions of the same argument."""
    return run(torch.sin, x) * run(torch.exp, x)


def handed_through(run, x, y):
    """A result that is an argument."""
    return run(lambda x, y: (x, x * y), x, y)


def nested(run, x):
    """A function that runs others."""
    return run(lambda x: run(lambda x: F.dropout(torch.sin(x), 0.5), run(torch.exp, x)) * x, x)


def some_rows(run, x, n, rows, data):
    """Tensors, and a number between them."""
    return run(lambda x, n, rows, data: torch.sin(x)[rows] * data * n, x, n, rows, data)


def sine_times(run, x, n):
    """A tensor and a number."""
    return run(lambda x, n: torch.sin(x) * n, x, n)


def weight_inside(run, data, weight, given):
    """A function that closes over what it needs, and is given data, nothing, or a number."""

    def fn(*args):
        return torch.tanh(data @ weight * (args[0] if given == "a number" else 1))

    return run(fn, *{"data": [data], "nothing": [], "a number": [0.5]}[given])


def weight_in_deep(run, data, weight):
    """Many activations, for a tensor that the function closes over."""
    return run(lambda data: deep(data * weight), data)


def sine_and_sign(run, x, n):
    """A result of numbers, and one of truth values."""
    return run(lambda x, n: (torch.sin(x) * n, x > 0), x, n)


def two_with_weight(run, data, weight):
    """A tuple of two, for a tensor that the function closes over."""
    return run(lambda data: (data * weight, torch.sin(weight) + data), data)


def sine(run, x):
    """One function of torch's."""
    return run(torch.sin, x)


# Steps


def passes(task, program, args, factors=None, seed=0, n_backward=1, measured=False):
    """A program's results, and its gradients for the sum of the results, each times its factor where there are any.

    Told is also how often the functions ran, where the random generators stood, and, when measured, the peak memory and
    the arithmetic of all passes; the results are then let go before the backward pass, and not told.
    """
    run, ran = _counted(task)
    told = _passes(lambda: globals()[program](run, *args), args, factors, ran, seed, n_backward, measured)
    return told | {"calls": told["n_forward"], "all_calls": len(ran)}


def sequence_passes(kind, parameters, segments, x, factors=None, seed=0, measured=False):
    """As `passes`, for `checkpoint_sequential`; moreover the functions' numbers in the order in which they ran."""
    ran = []
    functions, leaves = _sequence(kind, parameters, ran)
    forward = lambda: checkpoint_sequential(functions, segments, x)  # noqa: E731
    return _passes(forward, [x, *leaves], factors, ran, seed, 1, measured) | {"ran": ran}


def kept(task, program, args):
    """The bytes besides arguments and results that a program's forward pass keeps, and how often the functions ran."""
    run, ran = _counted(task)
    return kept_by_forward(globals()[program], run, *args), len(ran)


def kept_by_sequence(kind, parameters, segments, x):
    """As `kept`, for `checkpoint_sequential`."""
    functions, _ = _sequence(kind, parameters, [])
    return kept_by_forward(checkpoint_sequential, functions, segments, x)


def node(program, args):
    """The name of the result's node, whether Checkpoint is of torch's own kind, and which arguments the node saved."""
    y = globals()[program](Checkpoint.apply, *args)
    places = {arg.data_ptr(): i for i, arg in enumerate(args) if isinstance(arg, torch.Tensor)}
    saved = getattr(y.grad_fn, "saved_tensors", ())
    theirs = isinstance(Checkpoint, type) and issubclass(Checkpoint, torch.utils.checkpoint.CheckpointFunction)
    return type(y.grad_fn).__name__, theirs, [places.get(tensor.data_ptr()) for tensor in saved]


def borrowed(task, program, args):
    """`passes`, and the names of what it called of torch.utils.checkpoint."""
    theirs, called = torch.utils.checkpoint, []
    before = {
        name: thing
        for name, thing in vars(theirs).items()
        if isinstance(thing, types.FunctionType) and "checkpoint" in name
    }
    function = theirs.CheckpointFunction
    try:
        for name, thing in before.items():
            setattr(theirs, name, _noting(called, name, thing))
        apply = _noting(called, "CheckpointFunction", function.apply)
        theirs.CheckpointFunction = types.SimpleNamespace(apply=apply)
        return passes(task, program, args), called
    finally:
        for name, thing in before.items():
            setattr(theirs, name, thing)
        theirs.CheckpointFunction = function


def _noting(called, name, function):
    def noting(*args, **kwargs):
        called.append(name)
        return function(*args, **kwargs)

    return noting


def _counted(task):
    """The answer's way to run a function, and a list that grows with each of the functions' calls."""
    ran, run = [], Checkpoint.apply if task == "Checkpoint" else checkpoint
    return lambda fn, *args: run(_noting(ran, task, fn), *args), ran


def _sequence(kind, parameters, ran):
    """The functions, which note their numbers in `ran`, and the leaves they use."""
    if kind == "dropout":
        return [lambda x: F.dropout(x, parameters[0])] * len(parameters), []
    if kind == "module":
        layers = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))
        with torch.no_grad():
            for own, given in zip(layers.parameters(), parameters, strict=True):
                own.copy_(given)
        return layers, list(layers.parameters())
    return [_shifted(i, shift, ran) for i, shift in enumerate(parameters)], list(parameters)


def _shifted(i, shift, ran):
    def step(x):
        ran.append(i)
        return torch.tanh(x + shift) if x.shape[-1] == shift.shape[-1] else torch.tanh(x)

    return step


def _passes(forward, args, factors, ran, seed, n_backward, measured):
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    gpus = sorted({x.device.index for x in tensors if x.is_cuda})
    told = {"gradients": []}
    with torch.random.fork_rng(devices=gpus), contextlib.ExitStack() as stack:
        torch.manual_seed(seed)
        if measured:
            products, memory = stack.enter_context(ProductMeter()), stack.enter_context(AllocationMeter())
        results = forward()
        told |= {"n_forward": len(ran), "before": [] if measured else _states(gpus), "results": _detached(results)}
        told["requires_grad"] = any(x.requires_grad for x in _every(results))
        loss = _loss(results, factors)
        if measured:
            results = told["results"] = None
        for i in range(n_backward if isinstance(loss, torch.Tensor) and loss.requires_grad else 0):
            for x in tensors:
                x.grad = None
            loss.backward(retain_graph=i + 1 < n_backward)
            told["gradients"].append([x.grad if isinstance(x, torch.Tensor) else None for x in args])
        told |= {"after": [] if measured else _states(gpus), "needs": [x.requires_grad for x in tensors]}
    if measured:
        told |= {"peak_bytes": memory.peak_bytes, "flops": products.flops}
    return told | {"of_factors": [None if x is None else x.grad for x in factors or []]}


def _every(results):
    every = results if isinstance(results, tuple) else (results,)
    return [x for x in every if isinstance(x, torch.Tensor)]


def _loss(results, factors):
    """The sum of the floating-point results, each times its factor; those whose factor is None are left out."""
    results = [x for x in _every(results) if x.is_floating_point()]
    if factors is None:
        return sum(x.sum() for x in results)
    return sum((x * factor).sum() for x, factor in zip(results, factors, strict=False) if factor is not None)


def _detached(results):
    if isinstance(results, tuple):
        return tuple(_detached(x) for x in results)
    return results.detach() if isinstance(results, torch.Tensor) else results


def _states(gpus):
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(gpu) for gpu in gpus)]
