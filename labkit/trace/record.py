"""Runs a function or a module and records every block of memory that it allocates."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch._guards import active_fake_mode
from torch.profiler import ProfilerActivity, profile
from torch.utils._pytree import tree_flatten_with_path, tree_leaves

from labkit.meters.profiler import allocated_and_released
from labkit.meters.tracing import MARK, Life, Trace, TracingMeter
from labkit.trace.inputs import parameters_of

SIMULATED = "Simulated: workspace inside kernels is not counted"
WITH_WORKSPACE = ("flash_attention", "convolution", "mkldnn", "norm_backward", "fft")
"""Operators with one of these in their names may have a workspace on the CPU."""
COUNTED = (
    "Workspace inside kernels is counted; it differs between devices. Not counted: Python's numbers as operands, "
    "8 bytes each, and the random state that torch.utils.checkpoint sets aside, 5,056 bytes."
)
NUMBERS_BYTES = 64
"""Up to here an operator's workspace is numbers of Python on their way to a kernel."""


def record(
    function: Callable[..., Any],
    arguments: Sequence[Any] | Mapping[str, Any] = (),
    *,
    backward: bool = True,
    steps: int = 1,
    optimizer: Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer] | None = None,
) -> Trace:
    """Call `function` on `arguments`, then the backward pass where results require grad, and follow every allocation.

    The backward pass begins at the scalars among the results, if any: they are the loss. Otherwise it begins at all
    results, with gradients of ones that are made when the forward pass is over.

    Under torch's FakeTensorMode, in which the arguments and the module were made, nothing is computed: a model of any
    size takes seconds. Functions compiled by `torch.compile` run uncompiled, since compiled ones show no operators.

    Args:
        function: a function or a `torch.nn.Module`.
        arguments: positional, or by name.
        backward: False for the forward pass alone.
        steps: how often both passes run; gradients are set to None after each.
        optimizer: makes an optimizer, which takes a step after each backward pass, of the parameters of the module, or
            of the arguments that require grad.

    Raises:
        DataDependentOutputException, DynamicOutputShapeException: the function needs values under a FakeTensorMode.
    """
    named = list(_named_tensors(function, arguments))
    module = function if isinstance(function, torch.nn.Module) else getattr(function, "__self__", None)
    owned: list[torch.Tensor] = list(module.parameters()) if isinstance(module, torch.nn.Module) else []
    learned = owned or [tensor for _, tensor in named if tensor.requires_grad]
    meter = TracingMeter()
    simulated = active_fake_mode() is not None
    profiler: Any = None if simulated else profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    looking_on: AbstractContextManager[Any] = nullcontext() if profiler is None else profiler
    with looking_on, _uncompiled(), meter:
        if isinstance(module, torch.nn.Module):
            meter.know_module(module)
        for name, tensor in named:
            meter.know_leaf("input", name, tensor)
        steps_with = None if optimizer is None or not learned else optimizer(learned)
        for number in range(steps):
            results = function(**arguments) if isinstance(arguments, Mapping) else function(*arguments)
            has_gradient = backward and _run_backward(results, meter)
            if steps_with is not None:
                steps_with.step()
            if number < steps - 1:
                del results
                _forget_gradients([*owned, *(tensor for _, tensor in named)])
    trace = meter.finish()
    if backward and not has_gradient:
        trace.notes.append("No backward pass: no tensor among the results requires grad.")
    if profiler is None:
        ops = sorted({step.op.removeprefix("aten::") for step in trace.steps})
        kernels = [op for op in ops if any(part in op for part in WITH_WORKSPACE)]
        trace.notes.append(f"{SIMULATED}: that of {', '.join(kernels)}." if kernels else f"{SIMULATED}.")
    else:
        _add_workspace(trace, profiler)
    return trace


def _uncompiled() -> AbstractContextManager[Any]:
    """Runs compiled functions without the compiler, if there are any: importing it takes seconds."""
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    return torch.compiler.set_stance("force_eager")


def _run_backward(results: Any, meter: TracingMeter) -> bool:
    """Run the backward pass from the loss, or else from all results; returns whether there is one."""
    leading = [leaf for leaf in tree_leaves(results) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    leading = [leaf for leaf in leading if leaf.ndim == 0] or leading
    if not leading:
        return False
    with meter.in_pass("backward"):
        ones = [torch.ones_like(leaf) for leaf in leading]
        for each in ones:
            meter.call("temporary", "gradient of the result, ones", each)
        del each
        torch.autograd.backward(leading, ones)
    return True


def _forget_gradients(tensors: Iterable[torch.Tensor]) -> None:
    for tensor in tensors:
        tensor.grad = None


def _named_tensors(
    function: Callable[..., Any], arguments: Sequence[Any] | Mapping[str, Any]
) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors among the arguments, each named after its parameter."""
    if isinstance(arguments, Mapping):
        by_name = dict(arguments)
    else:
        names = [parameter.name for parameter in parameters_of(function) or ()]
        names += [f"argument {i}" for i in range(len(names), len(arguments))]
        by_name = dict(zip(names, arguments, strict=False))
    for path, leaf in tree_flatten_with_path(by_name)[0]:
        if isinstance(leaf, torch.Tensor):
            first: Any = path[0]
            yield f"{first.key}{''.join(map(str, path[1:]))}", leaf


def _add_workspace(trace: Trace, profiler: Any) -> None:
    """Add the memory that operators allocate and release inside themselves, from the profiler's record."""
    found = allocated_and_released(profiler, MARK)
    for number, nbytes in sorted((int(name.removeprefix(MARK)), nbytes) for name, nbytes in found.items()):
        if nbytes > NUMBERS_BYTES:
            step = trace.steps[number]
            trace.steps[number] = replace(step, workspace_bytes=nbytes)
            name = f"workspace inside {step.op.removeprefix('aten::')}"
            trace.lives.append(
                Life(nbytes, (), "", step.op, step.node, step.stack, number, number + 1, "workspace", name)
            )
    trace.notes.append(COUNTED)
