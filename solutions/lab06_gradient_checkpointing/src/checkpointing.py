"""Lab 06: gradient checkpointing, which keeps a function's arguments and recomputes the rest."""

### BEGIN SOLUTION
import contextlib
import functools
import itertools
import math

### END SOLUTION
from collections.abc import Callable, Sequence
from typing import Any

import torch


class Checkpoint(torch.autograd.Function):
    """`fn(*args)`, of which autograd keeps only the arguments: `Checkpoint.apply(fn, *args)`.

    In the forward pass `fn` runs without a graph. In the backward pass it runs once more, with one, from the same
    arguments and the same state of the random generators; what that run saves is freed as its gradients are computed.
    Take a `fn` that squares its argument, 1024 float32 numbers, ten times: autograd alone keeps ten tensors of 4,096
    bytes besides the argument; this keeps none of them.

    A tensor that `fn` uses but does not get as an argument (a module's parameter, a tensor in its closure) must be a
    leaf; its gradient is added to `.grad` during the backward pass. If no tensor among the arguments requires grad, the
    result does not either, whatever `fn` uses: `checkpoint` handles that case. Gradients come from `loss.backward()`
    without autocast; for the rest see `StrictCheckpoint`.
    """

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, fn: Callable[..., Any], *args: Any) -> Any:
        """The result of `fn(*args)`, which is called once.

        Args:
            ctx: autograd's object: keep tensors with `ctx.save_for_backward`, anything else as attributes.
            fn: returns a tensor or a tuple of tensors; it must compute the same when called again, random numbers
                included, and must not change its arguments. Gradients flow through floating-point results only.
            args: what `fn` takes: tensors of any dtype, with or without requires_grad, and anything else, in any order.

        Returns:
            What `fn` returns. The random generators end in the state in which one call of `fn` leaves them.

        Example:
            Checkpoint.apply(lambda x, n: x**n, x, 3) with x = [2.0] is [8.0].
        """
        ### BEGIN SOLUTION
        ctx.fn = fn
        ctx.rng_state = _rng_state(args)
        ctx.is_tensor = [isinstance(arg, torch.Tensor) for arg in args]
        ctx.others = [None if isinstance(arg, torch.Tensor) else arg for arg in args]
        ctx.save_for_backward(*(arg for arg in args if isinstance(arg, torch.Tensor)))
        ctx.set_materialize_grads(False)
        return fn(*args)
        ### END SOLUTION

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *grads: torch.Tensor | None) -> tuple[Any, ...]:
        """The gradients of `forward`'s arguments, one for each argument after `ctx`, in that order.

        `fn` is called exactly once. The random generators are then restored to their state before `backward`.

        Args:
            ctx: as `forward` left it.
            grads: for each result of `fn`, in order, the gradient of the loss with respect to it, of its shape.

        Returns:
            (None, gradient, …): None for `fn`, for an argument that is not a tensor, and for a tensor that needs no
            gradient (`ctx.needs_input_grad`). No gradient is computed for such a tensor.

        Raises:
            RuntimeError: an argument was changed in place since `forward`.

        Example:
            With x = [2.0], n = 3 as above and the gradient [1.0] of the result: (None, [12.0], None).
        """
        ### BEGIN SOLUTION
        saved = iter(ctx.saved_tensors)
        args = [
            next(saved).detach().requires_grad_(needed) if is_tensor else other
            for is_tensor, other, needed in zip(ctx.is_tensor, ctx.others, ctx.needs_input_grad[1:], strict=True)
        ]
        with torch.random.fork_rng(devices=ctx.rng_state.keys() - {"cpu"}), torch.enable_grad():
            _set_rng_state(ctx.rng_state)
            results = ctx.fn(*args)
        results = results if isinstance(results, tuple) else (results,)
        pairs = [
            (result, grad)
            for result, grad in zip(results, grads, strict=True)
            if grad is not None and isinstance(result, torch.Tensor) and result.requires_grad
        ]
        if pairs:
            torch.autograd.backward(*zip(*pairs, strict=True))
        return None, *(arg.grad if isinstance(arg, torch.Tensor) else None for arg in args)
        ### END SOLUTION


def checkpoint(fn: Callable[..., Any], *args: Any) -> Any:
    """`fn(*args)`, recomputed in the backward pass, whether an argument or a parameter inside needs gradients.

    As `Checkpoint.apply`, but tensors that `fn` uses besides its arguments get their gradients even when no argument
    requires grad, as in the first block of a network, whose argument is data. Under `torch.no_grad()` it is `fn(*args)`
    and keeps nothing.

    Args:
        fn: returns a tensor or a tuple of tensors, as for `Checkpoint`.
        args: what `fn` takes, as for `Checkpoint`. They are not changed, nor is their `requires_grad`.

    Returns:
        What `fn` returns. Where neither an argument nor anything in `fn` requires grad, the result may or may not; a
        loss made with it must be able to run backward.

    Example:
        With a parameter w = [3.0] and data x = [2.0], checkpoint(lambda x: w * x, x) is [6.0]; after its backward pass
        w.grad is [2.0] and x.grad None.
    """
    ### BEGIN SOLUTION
    if not torch.is_grad_enabled() or any(isinstance(arg, torch.Tensor) and arg.requires_grad for arg in args):
        return Checkpoint.apply(fn, *args)
    anchor = torch.empty(0, requires_grad=True)  # an argument that needs a gradient, so that backward is called
    return Checkpoint.apply(lambda _anchor, *rest: fn(*rest), anchor, *args)
    ### END SOLUTION


def checkpoint_sequential(
    functions: Sequence[Callable[[torch.Tensor], torch.Tensor]], segments: int | None, x: torch.Tensor
) -> torch.Tensor:
    """Apply the functions to x one after the other, in segments that are each checkpointed.

    For functions f, g, h the result is h(g(f(x))). Autograd keeps each segment's input; the backward pass recomputes
    the segments one at a time, the last one first.

    Args:
        functions: n ≥ 1 of them, each from a tensor to a tensor; a list, a tuple or a `torch.nn.Sequential`.
        segments: k, how many runs of neighbouring functions, 1 … n. Their lengths differ by at most 1; you choose which
            are longer. Every segment is checkpointed, the last one too. None: you choose a k with the lowest peak by
            the chapter's model (Chen et al. 2016, section 4), k + ⌈n / k⌉ activations.
        x: what the first function takes. The functions' parameters get gradients whether it requires grad or not.

    Returns:
        What the last function returns.

    Raises:
        ValueError: naming both numbers, when `segments` is not between 1 and n.

    Example:
        Ten functions in 4 segments: lengths 3, 2, 3, 2, or another order of these. Each function runs twice, once in
        each pass. 100 functions and None: 10 segments.
    """
    ### BEGIN SOLUTION
    layers = list(functions)
    if segments is None:
        segments = round(math.sqrt(len(layers)))
    if not 1 <= segments <= len(layers):
        raise ValueError(f"segments must be between 1 and the number of functions, {len(layers)}; got {segments}")
    bounds = [len(layers) * i // segments for i in range(segments + 1)]
    for start, stop in itertools.pairwise(bounds):
        x = checkpoint(_run, layers[start:stop], x)
    return x
    ### END SOLUTION


class StrictCheckpoint(Checkpoint):
    """`Checkpoint` with what PyTorch's own does besides: `StrictCheckpoint.apply(fn, *args)`.

    The second run of `fn` computes in the dtypes of the first, whether autocast is on or off in either pass. Where a
    gradient would be silently wrong there is an error. You may keep `Checkpoint` as its base class, or change that.
    """

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, fn: Callable[..., Any], *args: Any) -> Any:
        """The result of `fn(*args)`, as `Checkpoint.forward` gives it.

        Args:
            ctx: autograd's object, as in `Checkpoint.forward`.
            fn: as for `Checkpoint`. It may also raise in its second run.
            args: as for `Checkpoint`.

        Returns:
            What `fn` returns.

        Example:
            Under torch.autocast("cpu", dtype=torch.bfloat16), `fn` multiplies float32 matrices in bfloat16, and does so
            again when the backward pass runs outside of it.
        """
        ### BEGIN SOLUTION
        return Checkpoint.forward(ctx, functools.partial(_run_under, _autocast_state(args), fn), *args)
        ### END SOLUTION

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *grads: torch.Tensor | None) -> tuple[Any, ...]:
        """The gradients of `forward`'s arguments, as `Checkpoint.backward` gives them.

        The random generators are restored even if the second run of `fn` raises.

        Args:
            ctx: as `forward` left it.
            grads: as for `Checkpoint.backward`.

        Returns:
            As `Checkpoint.backward`.

        Raises:
            RuntimeError: as `Checkpoint.backward`. Also where the gradients would be silently wrong: a second
                derivative is requested (`create_graph=True`), or `torch.autograd.grad` asks for the gradients of some
                inputs.

        Example:
            For y = 3x² at x = [2.0], torch.autograd.grad(y, x, create_graph=True) raises.
        """
        ### BEGIN SOLUTION
        if torch.is_grad_enabled():
            raise RuntimeError("create_graph=True: what is recomputed leaves no graph for a second derivative")
        if not torch.autograd._is_checkpoint_valid():
            raise RuntimeError("a gradient of chosen inputs: what fn uses besides its arguments would get one as well")
        return Checkpoint.backward(ctx, *grads)
        ### END SOLUTION


### BEGIN SOLUTION
def _run(functions, x):
    """The functions one after the other."""
    for function in functions:
        x = function(x)
    return x


def _rng_state(args):
    """The states of the random generators of the CPU and of the GPUs that hold `args`, by device."""
    gpus = {arg.device.index for arg in args if isinstance(arg, torch.Tensor) and arg.is_cuda}
    return {"cpu": torch.get_rng_state(), **{gpu: torch.cuda.get_rng_state(gpu) for gpu in sorted(gpus)}}


def _autocast_state(args):
    """Whether autocast is on, and to which dtype, for the CPU and the kinds of device that hold `args`."""
    kinds = {"cpu", *(arg.device.type for arg in args if isinstance(arg, torch.Tensor))}
    return {
        kind: (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
        for kind in sorted(kinds)
        if torch.amp.is_autocast_available(kind)
    }


def _run_under(autocast, fn, *args):
    """`fn(*args)` under these states of autocast."""
    with contextlib.ExitStack() as stack:
        for kind, (enabled, dtype) in autocast.items():
            stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=enabled))
        return fn(*args)


def _set_rng_state(states):
    for device, state in states.items():
        if device == "cpu":
            torch.set_rng_state(state)
        else:
            torch.cuda.set_rng_state(state, device)


### END SOLUTION
