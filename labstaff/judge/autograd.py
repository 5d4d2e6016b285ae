"""Joins a call in the answer's process to autograd here: the way back is one more call."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch

from labkit.suite.limits import seconds_for_another
from labstaff.judge import messages

if TYPE_CHECKING:
    from labstaff.judge.client import RemoteAnswer


class _Link(torch.autograd.Function):
    """Its forward hands over what the call returned; its backward asks for the gradients there."""

    @staticmethod
    def forward(ctx: Any, far: RemoteAnswer, graph: int, results: list[torch.Tensor], *inputs: torch.Tensor) -> Any:
        ctx.far, ctx.graph, ctx.start = far, graph, far.n_starts
        far_graph = _Graph()
        ctx.far_graph = far_graph
        _forget(far, graph, far_graph)
        return tuple(result.detach() for result in results)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        if ctx.start != ctx.far.n_starts:
            raise RuntimeError("the graph went with the answer's process")
        given = ctx.far.request(messages.Backward(ctx.graph, list(grads), seconds_for_another())).result
        return (None, None, None, *given)


class _Graph:
    """Lives as long as somebody may go back."""


def link(far: RemoteAnswer, graph: int, inputs: list[torch.Tensor], result: Any) -> Any:
    """`result` with those of its tensors that require grad joined to `inputs`."""
    outputs = [x for x in _leaves(result) if x.requires_grad]
    linked = iter(_Link.apply(far, graph, outputs, *inputs))
    return _replaced(result, linked)


def _leaves(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [x for each in value.values() for x in _leaves(each)]
    return [x for each in value for x in _leaves(each)] if isinstance(value, list | tuple) else []


def _replaced(value: Any, linked: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return next(linked) if value.requires_grad else value
    if isinstance(value, dict):
        return {key: _replaced(each, linked) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_replaced(each, linked) for each in value)
    return value


def _forget(far: RemoteAnswer, graph: int, holder: Any) -> None:
    """Have the other side forget `graph` when `holder` is gone."""
    start = far.n_starts

    def drop() -> None:
        if start == far.n_starts:
            far.dropped.append(graph)

    weakref.finalize(holder, drop).atexit = False
