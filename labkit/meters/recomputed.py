"""What running a function through a checkpoint leads to: asked where the answer is, by names, and judged elsewhere.

Each question is given the answer's way to run a function, and the list that grows with each of the functions' calls.
"""

import types
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
import torch.utils.checkpoint

Run = Callable[..., Any]


def noted(theirs: Run) -> tuple[Run, list[str]]:
    """`theirs`, a way to run a function, and a list that grows with each of the functions' calls."""
    ran: list[str] = []

    def run(fn, *args):
        tensors = []

        def told(*args):
            ran.append("fn")
            result = fn(*args)
            tensors.append(isinstance(result, torch.Tensor))
            return result

        result = theirs(told, *args)
        if all(tensors) and not isinstance(result, torch.Tensor):
            raise TypeError(f"the result is of type {type(result).__name__} where fn returns a tensor")
        return result

    return run, ran


def fails_when_run_again(run: Run, ran: list[str], x: torch.Tensor) -> tuple[str, bool]:
    """What comes out of a backward pass in which fn draws, and raises; whether the generator is as it was."""

    def fn(x):
        y = F.dropout(x, 0.5)
        if len(ran) > 1:
            raise KeyError("the second run")
        return y

    y = run(fn, x)
    torch.rand(3)
    before = torch.get_rng_state()
    try:
        y.sum().backward()
    except KeyError as error:
        return error.args[0], torch.equal(before, torch.get_rng_state())
    return "no error", False


def penalised(run: Run, ran: list[str], by: str, x: float, w: float) -> float | None:
    """The gradient of x for y + (∂y/∂x)², y = w·x², None where there is an error."""
    leaf, factor = (torch.tensor(value, requires_grad=True) for value in (x, w))
    first: Any
    y = run(lambda x: factor * x**2, leaf)
    try:
        if by == "grad":
            (first,) = torch.autograd.grad(y, leaf, create_graph=True)
        else:
            y.backward(create_graph=True)
            first, leaf.grad = leaf.grad, None
        (y + first**2).backward()
    except RuntimeError:
        return None
    return None if leaf.grad is None else float(leaf.grad)


def asked_by_grad(
    run: Run, ran: list[str], x: torch.Tensor, w: torch.Tensor
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """The gradient of x by torch.autograd.grad, None where there is an error, and w's .grad, which is not asked for."""
    y = run(lambda x: w * x, x).sum()
    try:
        (gradient,) = torch.autograd.grad(y, x)
    except RuntimeError:
        gradient = None
    return gradient, w.grad


def under_autocast(run: Run, ran: list[str], x: torch.Tensor, weight: torch.Tensor) -> tuple[Any, ...]:
    """The dtypes of a product in both passes, the gradient of x, and what it is without a checkpoint."""
    dtypes: list[str] = []
    found: list[torch.Tensor | None] = []

    def fn(x):
        product = x @ weight
        dtypes.append(str(product.dtype))
        return torch.sin(product)

    for way in (run, lambda fn, x: fn(x)):
        x.grad = None
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = way(fn, x)
        y.float().sum().backward()
        found.append(x.grad)
    return dtypes[:2], *found


def borrowed(run: Run, ran: list[str], x: torch.Tensor) -> list[str]:
    """The names of what the answer calls of torch.utils.checkpoint in both passes of a sine."""
    theirs: Any = torch.utils.checkpoint
    called: list[str] = []
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
        run(torch.sin, x).sum().backward()
    finally:
        for name, thing in before.items():
            setattr(theirs, name, thing)
        theirs.CheckpointFunction = function
    return called


QUESTIONS: dict[str, Callable[..., Any]] = {
    each.__name__: each for each in (fails_when_run_again, penalised, asked_by_grad, under_autocast, borrowed)
}


def _noting(called: list[str], name: str, function: Run) -> Run:
    def noted(*args: Any, **kwargs: Any) -> Any:
        called.append(name)
        return function(*args, **kwargs)

    return noted
