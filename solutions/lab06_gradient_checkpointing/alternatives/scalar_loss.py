"""The backward pass through one scalar; all of it in one class; an anchor in every call; lengths by division with rest.

The scalar is Σ result ∘ gradient.
"""

import math

import torch


class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, fn, *args):
        ctx.state, ctx.autocast = _rng_state(args), _autocast_state(args)
        ctx.places = {i for i, arg in enumerate(args) if isinstance(arg, torch.Tensor)}
        ctx.call = fn, [arg if i not in ctx.places else None for i, arg in enumerate(args)]
        ctx.save_for_backward(*(args[i] for i in sorted(ctx.places)))
        with torch.no_grad():
            return fn(*args)

    @staticmethod
    def backward(ctx, *grads):
        if torch.is_grad_enabled() or not torch.autograd._is_checkpoint_valid():
            raise RuntimeError("only loss.backward(), of first derivatives, goes through a checkpoint")
        fn, args = ctx.call[0], list(ctx.call[1])
        for i, tensor in zip(sorted(ctx.places), ctx.saved_tensors, strict=True):
            args[i] = tensor.detach()
            args[i].requires_grad = ctx.needs_input_grad[i + 1]
        now = _rng_state(args)
        _set_rng_state(ctx.state)
        try:
            with torch.enable_grad():
                out = _run_under(ctx.autocast, fn, *args)
                out = out if isinstance(out, tuple) else (out,)
                loss = sum(
                    (y * dy).sum()
                    for y, dy in zip(out, grads, strict=True)
                    if isinstance(y, torch.Tensor) and y.requires_grad
                )
        finally:
            _set_rng_state(now)
        if isinstance(loss, torch.Tensor):
            loss.backward()
        found = [None] * len(args)
        for i in ctx.places:
            found[i] = args[i].grad
        return (None, *found)


class StrictCheckpoint(Checkpoint):
    pass


def checkpoint(fn, *args):
    def with_anchor(_anchor, *rest):
        return fn(*rest)

    return Checkpoint.apply(with_anchor, torch.zeros(1, requires_grad=torch.is_grad_enabled()), *args)


def checkpoint_sequential(functions, segments, x):
    functions = list(functions)
    segments = math.ceil(math.sqrt(len(functions))) if segments is None else segments
    if segments < 1 or segments > len(functions):
        raise ValueError(f"cannot cut {len(functions)} functions into {segments} segments")
    length, rest = divmod(len(functions), segments)
    start = 0
    for i in range(segments):
        stop = start + length + (i < rest)
        x = checkpoint(_composed(functions[start:stop]), x)
        start = stop
    return x


def _composed(functions):
    def run(x):
        for function in functions:
            x = function(x)
        return x

    return run
