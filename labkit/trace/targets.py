"""What is traced: a function of anyone's, or a task of a lab, and the inputs that it is called with."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from labkit.labs.catalog import ROOT, find_lab, find_task
from labkit.trace.offer import can_be_traced

SHAPE = (1, 4, 256, 64)
"""Batch, heads, positions and width, where nothing else is asked for."""
SEED = 0
DEPTH = 8


class CannotTrace(Exception):
    """A target or its inputs that cannot be made sense of; the message is one line for whoever asked."""


@dataclass
class Target:
    """A function, what it is called, and what makes its arguments anew for each run.

    `inputs` is called with the shapes asked for (none: the usual ones) and a device.
    """

    name: str
    function: Callable[..., Any]
    inputs: Callable[[Sequence[tuple[int, ...]], str], Sequence[Any]]


def find_target(words: Sequence[str], factory: str | None = None) -> Target:
    """The target that one word, FILE:FUNCTION or LAB:TASK, or two, LAB TASK, name.

    Args:
        factory: FILE:FUNCTION of a function without arguments that returns the tuple of the target's arguments.

    Raises:
        CannotTrace: there is no such file or function.
        UnknownLab: there is no such lab or task.
    """
    where, _, name = ":".join(words).rpartition(":")
    if not where:
        raise CannotTrace(f"{name!r} names no function: FILE:FUNCTION, or a lab and its task, like 05 flash_forward")
    if where.endswith(".py") or Path(where).is_file():
        target = Target(name, _function(Path(where), name), _by_parameters(where, name))
    else:
        target = _of_lab(where, name)
    if factory:
        file, _, maker = factory.rpartition(":")
        make = _function(Path(file or "."), maker)
        target.inputs = lambda _shapes, device: [_moved(value, device) for value in _as_tuple(make())]
    return target


def _of_lab(number: str, name: str) -> Target:
    lab = find_lab(number)
    task = find_task(lab, name)
    function = _function(lab.answer_file, task.name)
    if isinstance(function, type) and issubclass(function, torch.autograd.Function):
        function = function.apply
    if not can_be_traced(lab, task):
        raise CannotTrace(
            f"{lab.label} {task.name} takes no tensors of torch that are known here: --inputs FILE:FUNCTION gives some"
        )
    if maker := INPUTS.get(task.name):
        return Target(f"{lab.label} {task.name}", function, lambda shapes, device: maker(_shape(shapes), device))
    return Target(f"{lab.label} {task.name}", function, _by_parameters(str(lab.answer_file), task.name))


def _function(file: Path, name: str) -> Callable[..., Any]:
    if not file.is_file():
        raise CannotTrace(f"there is no file {file}")
    known = sys.modules.get(_module_name(file))
    module = known or _load(file)
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise CannotTrace(f"{file} has no function {name!r}")
    return found


def _module_name(file: Path) -> str:
    return f"traced_{abs(hash(file.resolve()))}"


def _load(file: Path) -> Any:
    spec = importlib.util.spec_from_file_location(_module_name(file), file)
    if spec is None or spec.loader is None:
        raise CannotTrace(f"{file} is no Python file")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    for folder in (str(file.resolve().parent), str(ROOT)):
        if folder not in sys.path:
            sys.path.append(folder)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]
        raise
    return module


def _by_parameters(where: str, name: str) -> Callable[[Sequence[tuple[int, ...]], str], Sequence[Any]]:
    """A tensor for every parameter that needs a value: of the one shape given, or each of its own."""

    def inputs(shapes: Sequence[tuple[int, ...]], device: str) -> Sequence[Any]:
        function = _function(Path(where), name)
        if isinstance(function, type) and issubclass(function, torch.autograd.Function):
            raise CannotTrace(f"{name} is a torch.autograd.Function: trace {name}.apply with --inputs")
        needed = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty]
        needed = [p for p in needed if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        if len(shapes) not in (0, 1, len(needed)):
            raise CannotTrace(f"{name} needs {len(needed)} arguments: give one --shape for all, or one for each")
        each = list(shapes) if len(shapes) == len(needed) else [_shape(shapes)] * len(needed)
        return _tensors(device, *each)

    return inputs


def _shape(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    if len(shapes) > 1:
        raise CannotTrace("a task takes one --shape")
    return shapes[0] if shapes else SHAPE


def _tensors(device: str, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(SEED)
    made = [torch.randn(shape, generator=generator) for shape in shapes]
    return [tensor.to(device).requires_grad_() for tensor in made]


def _flash_backward(shape: tuple[int, ...], device: str) -> Sequence[Any]:
    with torch.no_grad():
        q, k, v, gradient = _tensors(device, *[shape] * 4)
        scores = q @ k.mT / shape[-1] ** 0.5
        return *(x.detach() for x in (q, k, v)), scores.softmax(-1) @ v, scores.logsumexp(-1), gradient.detach()


def _deep(x: torch.Tensor) -> torch.Tensor:
    for _ in range(DEPTH):
        x = torch.tanh(x)
    return x


def _sequence(shape: tuple[int, ...], device: str) -> Sequence[Any]:
    return [torch.tanh] * 2 * DEPTH, 4, *_tensors(device, shape)


def _window(shape: tuple[int, ...], device: str) -> Sequence[Any]:
    return *_tensors(device, shape, shape, shape), 64, 64


def _grouped(shape: tuple[int, ...], device: str) -> Sequence[Any]:
    *batch, heads, length, width = shape
    return _tensors(device, shape, *[(*batch, max(heads // 4, 1), length, width)] * 2)


def _split(shape: tuple[int, ...], device: str) -> Sequence[Any]:
    q, k, v = _grouped(shape, device)
    return q[..., -1:, :].detach(), k.detach(), v.detach(), 4


def _paged(shape: tuple[int, ...], device: str) -> Sequence[Any]:
    heads, length, width = shape[-3:]
    block_size, kv_heads = 16, max(heads // 4, 1)
    n_blocks = -(-length // block_size)
    q, k, v = _tensors(device, (1, heads, width), *[(n_blocks, block_size, kv_heads, width)] * 2)
    table = torch.arange(n_blocks).flip(0)[None]
    return q.detach(), k.detach(), v.detach(), table, torch.tensor([length])


def _latent(shape: tuple[int, ...], device: str) -> Sequence[Any]:
    *batch, heads, length, width = shape
    cache = [(*batch, length, 2 * width), (*batch, length, width)]
    queries, matrices = [(*batch, heads, width)] * 2, [(heads, width, 2 * width)] * 2
    return [x.detach() for x in _tensors(device, *queries, *cache, *matrices)]


INPUTS: dict[str, Callable[[tuple[int, ...], str], Sequence[Any]]] = {
    "flash_forward": lambda shape, device: [x.detach() for x in _tensors(device, shape, shape, shape)],
    "flash_backward": _flash_backward,
    "FlashAttention": lambda shape, device: _tensors(device, shape, shape, shape),
    "Checkpoint": lambda shape, device: [_deep, *_tensors(device, shape)],
    "checkpoint": lambda shape, device: [_deep, *_tensors(device, shape)],
    "checkpoint_sequential": _sequence,
    "sliding_window_attention": _window,
    "grouped_query_attention": _grouped,
    "split_kv_decode": _split,
    "paged_attention": _paged,
    "mla_decode": _latent,
    "quantize_kv": lambda shape, device: [*(x.detach() for x in _tensors(device, shape, shape)), 4, 16],
    "attention_with_sinks": lambda shape, device: [*_tensors(device, shape, shape, shape), 64, 4],
    "attention_sink_logit": lambda shape, device: [
        *_tensors(device, shape, shape, shape),
        *_tensors(device, shape[-3:-2]),
    ],
}
"""Arguments of the labs' tasks that take more than tensors; see `labkit.trace.offer`."""


def _as_tuple(values: Any) -> tuple[Any, ...]:
    return tuple(values) if isinstance(values, tuple | list) else (values,)


def _moved(value: Any, device: str) -> Any:
    if isinstance(value, torch.Tensor) and device != str(value.device):
        return value.detach().to(device).requires_grad_(value.requires_grad)
    return value
