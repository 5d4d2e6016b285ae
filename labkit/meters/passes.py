"""A forward pass and its backward passes, and what came of them: results, gradients, memory, arithmetic, generators."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence, Sized
from typing import Any

import torch

from labkit.meters.allocation import AllocationMeter
from labkit.meters.products import ProductMeter


def watch_passes(
    forward: Callable[[], Any],
    args: Sequence[Any],
    *,
    factors: Sequence[torch.Tensor | None] | None = None,
    ran: Sized = (),
    seed: int = 0,
    n_backward: int = 1,
    measured: bool = False,
) -> dict[str, Any]:
    """Run `forward`, and backward from the sum of its results, each times its factor where there are any.

    Told are "results", whether one "requires_grad", "gradients" (for each backward pass, one for each of `args`), the
    `args` that need one ("needs"), the gradients "of_factors", how long `ran` was after the forward pass ("n_forward"),
    and where the random generators stood "before" and "after" the backward passes. When measured, the peak memory and
    the arithmetic of all passes; the results are then let go before the backward pass, and not told.
    """
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    gpus = sorted({x.device.index for x in tensors if x.is_cuda})
    told: dict[str, Any] = {"gradients": []}
    with torch.random.fork_rng(devices=gpus), contextlib.ExitStack() as stack:
        for generator in (torch.default_generator, *(torch.cuda.default_generators[i] for i in gpus)):
            generator.manual_seed(seed)
        if measured:
            products, memory = stack.enter_context(ProductMeter()), stack.enter_context(AllocationMeter())
        results = forward()
        told |= {"n_forward": len(ran), "before": [] if measured else _states(gpus), "results": _detached(results)}
        told["requires_grad"] = any(x.requires_grad for x in _tensors(results))
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


def _tensors(results: Any) -> list[torch.Tensor]:
    every = results if isinstance(results, tuple) else (results,)
    return [x for x in every if isinstance(x, torch.Tensor)]


def _loss(results: Any, factors: Sequence[torch.Tensor | None] | None) -> Any:
    """The sum of the floating-point results, each times its factor; those whose factor is None are left out."""
    every = [x for x in _tensors(results) if x.is_floating_point()]
    if factors is None:
        return sum(x.sum() for x in every)
    return sum((x * factor).sum() for x, factor in zip(every, factors, strict=False) if factor is not None)


def _detached(results: Any) -> Any:
    if isinstance(results, tuple):
        return tuple(_detached(x) for x in results)
    return results.detach() if isinstance(results, torch.Tensor) else results


def _states(gpus: list[int]) -> list[torch.Tensor]:
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(gpu) for gpu in gpus)]
