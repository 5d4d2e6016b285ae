"""Runs a function or a module and records every block of memory that it allocates."""

from __future__ import annotations

import inspect
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from labkit.meters.modes import OperatorMode
from labkit.meters.profiler import allocated_and_released
from labkit.meters.torch_private import active_fake_mode, tree_flatten_with_path, tree_leaves, without_compiler
from labkit.meters.tracing import MARK, Life, Trace, TracingMeter, is_user_code
from labkit.trace.inputs import parameters_of
from labkit.trace.shapes import CannotTrace

SIMULATED = "Simulated: workspace inside kernels is not counted"
WITH_WORKSPACE = ("flash_attention", "convolution", "mkldnn", "norm_backward", "fft")
"""Operators with one of these in their names may have a workspace on the CPU."""
COUNTED = (
    "Workspace inside kernels is counted; it differs between devices. Not counted: Python's numbers as operands, "
    "8 bytes each, and the random state that torch.utils.checkpoint sets aside, 5,056 bytes."
)
FORWARD_ONLY = "The forward pass alone, in torch.no_grad()"
ZERO_TENSOR, FORWARD_MODE = (
    "aten::_efficientzerotensor",
    "Forward-mode derivatives take another way while they are traced: their bytes are too many",
)
IN_TRAINING_MODE = "; the module is in training mode: call its eval() for inference"
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
        backward: False for the forward pass alone, in `torch.no_grad()`, as inference runs it.
        steps: how often both passes run; gradients are set to None after each.
        optimizer: makes an optimizer, which takes a step after each backward pass, of the parameters of the module, or
            of the arguments that require grad. One that needs a closure, as LBFGS does, gets both passes as that.

    Raises:
        CannotTrace: the function gives a generator or a coroutine, which has computed nothing, or starts a thread that
            runs operators, which dispatch modes do not follow.
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
    grad: AbstractContextManager[Any] = nullcontext() if backward else torch.no_grad()

    def forward() -> Any:
        results = function(**arguments) if isinstance(arguments, Mapping) else function(*arguments)
        _refuse_unfinished(results)
        return results

    def both_passes() -> Any:
        with meter.in_pass("forward"):
            results = forward()
        losses = [leaf.detach().sum() for leaf in _run_backward(results, meter)]
        return sum(losses[1:], losses[0]) if losses else 0.0

    has_gradient = False
    with looking_on, without_compiler(), _no_other_threads(), grad, meter:
        if isinstance(module, torch.nn.Module):
            meter.know_module(module)
        for name, tensor in named:
            meter.know_leaf("input", name, tensor)
        steps_with = optimizer(learned) if optimizer is not None and learned and backward else None
        for number in range(steps):
            if steps_with is not None and _needs_closure(steps_with):
                steps_with.step(both_passes)
                has_gradient, results = True, None
            else:
                results = forward()
                has_gradient = backward and bool(_run_backward(results, meter))
                if steps_with is not None:
                    steps_with.step()
            if number < steps - 1:
                del results
                _forget_gradients([*owned, *(tensor for _, tensor in named)])
    trace = meter.finish()
    if not backward:
        trace.notes.append(f"{FORWARD_ONLY}{IN_TRAINING_MODE if getattr(module, 'training', False) else ''}.")
    elif not has_gradient:
        trace.notes.append("No backward pass: no tensor among the results requires grad.")
    if any(step.op == ZERO_TENSOR for step in trace.steps):
        trace.notes.append(FORWARD_MODE)
    if profiler is None:
        ops = sorted({step.op.removeprefix("aten::") for step in trace.steps})
        kernels = [op for op in ops if any(part in op for part in WITH_WORKSPACE)]
        trace.notes.append(f"{SIMULATED}: that of {', '.join(kernels)}." if kernels else f"{SIMULATED}.")
    else:
        _add_workspace(trace, profiler)
    return trace


def _refuse_unfinished(results: Any) -> None:
    if isinstance(results, Iterator | AsyncIterator | Awaitable):
        if isinstance(results, Coroutine):
            results.close()  # or Python warns that it never ran
        raise CannotTrace(
            f"a {type(results).__name__} came back, which computes only when it is used: trace a function that uses it"
        )


class _Elsewhere(OperatorMode):
    """Notes the line of the first operator of the thread in which it is entered."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self._lines = lines

    def _see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self._lines:
            stack = traceback.extract_stack()
            frame = next((frame for frame in reversed(stack) if is_user_code(frame.filename)), stack[0])
            self._lines.append(f"{Path(frame.filename).name}:{frame.lineno}  {frame.line}")
        return func(*args, **kwargs)


@contextmanager
def _no_other_threads() -> Iterator[None]:
    """Raise CannotTrace at the end if operators ran in a thread that was started inside: modes belong to a thread."""
    lines: list[str] = []

    def begin(_frame: FrameType, _event: str, _argument: Any) -> None:
        sys.setprofile(None)
        _Elsewhere(lines).__enter__()

    before = threading.getprofile()
    threading.setprofile(begin)
    try:
        yield
    finally:
        threading.setprofile(before)  # type: ignore[arg-type]
    if lines:
        raise CannotTrace(f"operators run in another thread, where no trace follows them: {lines[0]}")


def _needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is closure.empty


def _run_backward(results: Any, meter: TracingMeter) -> list[torch.Tensor]:
    """Run the backward pass from the loss, or else from all results; returns where it began."""
    leading = [leaf for leaf in tree_leaves(results) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    leading = [leaf for leaf in leading if leaf.ndim == 0] or leading
    if not leading:
        return []
    with meter.in_pass("backward"):
        ones = [torch.ones_like(leaf) for leaf in leading]
        for each in ones:
            meter.call("temporary", "gradient of the result, ones", each)
        del each
        torch.autograd.backward(leading, ones)
    return leading


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
