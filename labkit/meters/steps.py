"""A training step through a differentiable function of tensors: its results, its cost, and what autograd keeps.

`fn(*inputs)` is to give one tensor. What it gives instead is handed back as it is, for the caller to check.
"""

import contextlib
import gc
from collections.abc import Callable, Sequence
from typing import Any

import torch

from labkit.meters.allocation import AllocationMeter
from labkit.meters.calls import UninitialisedIsNaN, measured
from labkit.meters.tensors import kept_by_forward

Function = Callable[..., Any]
Tensors = Sequence[torch.Tensor]


def step(
    fn: Function,
    inputs: Tensors,
    d_out: torch.Tensor | None,
    on_nan: bool = False,
    needs: Sequence[bool] = (),
    n_backward: int = 1,
) -> tuple[Any, Any, list[Any]]:
    """The output before the backward pass and after it, and the gradients.

    An output that is no tensor, or has not the shape of `d_out`, comes alone: None and no gradients follow.

    Args:
        d_out: the output's gradient; None for that of its sum, one number that is expanded.
        on_nan: `empty` hands out NaN.
        needs: which of the inputs need a gradient; all when empty.
        n_backward: how many backward passes there are through the one graph.
    """
    leaves = _leaves(inputs)
    for leaf, needed in zip(leaves, needs, strict=False):
        leaf.requires_grad_(needed)
    with UninitialisedIsNaN() if on_nan else contextlib.nullcontext():
        out = fn(*leaves)
        if not isinstance(out, torch.Tensor) or (d_out is not None and out.shape != d_out.shape):
            return out, None, []
        before = out.detach().clone()
        for _ in range(n_backward):
            loss = out.sum() if d_out is None else (out * d_out).sum()
            loss.backward(retain_graph=n_backward > 1)
    return before, out.detach(), [x.grad for x in leaves]


def measured_step(fn: Function, inputs: Tensors, d_out: torch.Tensor) -> tuple[Any, list[Any], dict[str, Any]]:
    """The output, the gradients, and the result of `measured` for "the forward pass" and "the backward pass"."""
    leaves = _leaves(inputs)
    out, forward = measured(fn, *leaves)
    if not isinstance(out, torch.Tensor):
        return out, [], {}
    _, backward = measured((out * d_out).sum().backward)
    return out.detach(), [x.grad for x in leaves], {"the forward pass": forward, "the backward pass": backward}


def penalised_gradients(fn: Function, inputs: Tensors, d_out: torch.Tensor) -> Sequence[Any] | str:
    """The gradients of Σ out ∘ d_out and the squares of its own gradients; or the error message if that is refused."""
    leaves = _leaves(inputs)
    loss = (fn(*leaves) * d_out).sum()
    torch.autograd.grad(loss, leaves, retain_graph=True)
    try:
        first = torch.autograd.grad(loss, leaves, create_graph=True)
        return torch.autograd.grad(loss + torch.stack([(x**2).sum() for x in first]).sum(), leaves)
    except RuntimeError as error:
        return str(error)


def saved_tensors(fn: Function, inputs: Tensors, names: Sequence[str]) -> tuple[Any, list[Any]]:
    """The output, and what autograd saves for the backward pass, in order.

    A tensor in the memory of an input or of the output is given by its name: `names` are the inputs' and, last,
    the output's.
    """
    leaves, saved = _leaves(inputs), []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor.detach())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = fn(*leaves)
    if not isinstance(out, torch.Tensor):
        return out, []
    own = {_memory(x): name for name, x in zip(names, (*leaves, out), strict=True)}
    return out.detach(), [own.get(_memory(x), x) for x in saved]


def kept_between(fn: Function, inputs: Tensors) -> tuple[int, Any]:
    """The bytes besides the output that a forward pass keeps, and the output.

    Of a second one, as the first may make what stays.
    """
    leaves = _leaves(inputs)
    outputs: list[Any] = []

    def called(*given: torch.Tensor) -> torch.Tensor:
        outputs[:] = [fn(*given)]
        return outputs[0]

    fn(*leaves)
    kept = kept_by_forward(called, *leaves)
    return kept, outputs[0].detach() if isinstance(outputs[0], torch.Tensor) else outputs[0]


def left_behind(fn: Function, inputs: Tensors) -> tuple[int, list[Any]]:
    """The bytes still alive after the output of a second call is freed, and the numbers in that output.

    Looked at before garbage is collected.
    """
    fn(*inputs)
    gc.collect()
    with AllocationMeter() as meter:
        out = fn(*_leaves(inputs))
        # Python's numbers, since a tensor of them would be alive itself.
        numbers = out.detach().tolist() if isinstance(out, torch.Tensor) else []
        del out
        return meter.live_bytes, numbers


def _leaves(inputs: Tensors) -> list[torch.Tensor]:
    return [x.detach().requires_grad_() for x in inputs]


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
