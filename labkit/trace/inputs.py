"""Makes the arguments of a traced function or module: tensors of the given shapes, or of shapes that fit."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from labkit.trace.shapes import CannotTrace, Shape

SHAPE = (1, 4, 256, 64)
"""The default: batch, heads, positions and width."""
POSITIONS, PIXELS = 256, 64
SEED = 0
DEPTH = 8
NAMES_OF_IDS = frozenset(("idx", "ids", "input_ids", "token_ids", "tokens"))
"""Parameters with these names get integers."""


def make_inputs(function: Callable[..., Any], name: str, shapes: Sequence[Shape]) -> list[torch.Tensor]:
    """A tensor for every parameter of `function` that needs a value, all of one shape or each with its own.

    Floats require grad. Integers are 0 and 1, which every vocabulary has.

    Raises:
        CannotTrace: there are more shapes than parameters, or fewer than need a value; or it has no signature.
    """
    takes = parameters_of(function)
    if takes is None:
        raise CannotTrace(f"{name} has no readable signature: give its arguments with --inputs FILE:FUNCTION")
    needed = [p for p in takes if p.default is p.empty]
    if isinstance(function, torch.nn.Module) and not needed:
        needed = takes[:1]
    if len(shapes) > 1 and not len(needed) <= len(shapes) <= len(takes):
        raise CannotTrace(f"{name} needs {len(needed)} arguments: give one --shape for all, or one for each")
    if len(shapes) == 1 or not shapes:
        shapes = [shapes[0] if shapes else default_shape(function)] * len(needed)
    generator = torch.Generator().manual_seed(SEED)
    made = []
    for parameter, shape in zip(takes, shapes, strict=False):
        named = shape.dtype or ("int64" if parameter.name in NAMES_OF_IDS else "")
        dtype = getattr(torch, named) if named else _dtype_of(function)
        made.append(_tensor(shape.sizes, dtype, generator))
    return made


def parameters_of(function: Callable[..., Any]) -> list[inspect.Parameter] | None:
    """The positional parameters of a function, a module's `forward` or an autograd function; None if unknown."""
    owner = getattr(function, "__self__", None)
    is_autograds = isinstance(owner, type) and issubclass(owner, torch.autograd.Function)
    try:
        signature = inspect.signature(getattr(owner if is_autograds else function, "forward", function))
    except (TypeError, ValueError):  # made in C
        return None
    found = [p for p in signature.parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return found[1:] if is_autograds and found and found[0].name == "ctx" else found


def default_shape(function: Callable[..., Any]) -> Shape:
    """The input shape of a module's first layer; for a function, `SHAPE`."""
    if not isinstance(function, torch.nn.Module):
        return Shape(SHAPE)
    for layer in function.modules():
        if isinstance(layer, torch.nn.Embedding):
            return Shape((1, POSITIONS), "int64")
        if isinstance(layer, torch.nn.Linear):
            return Shape((1, POSITIONS, layer.in_features))
        if isinstance(layer, torch.nn.MultiheadAttention):
            return Shape((1, POSITIONS, layer.embed_dim))
        if isinstance(layer, torch.nn.LayerNorm | torch.nn.RMSNorm):
            return Shape((1, POSITIONS, layer.normalized_shape[-1]))
        if isinstance(layer, torch.nn.Conv2d):
            return Shape((1, layer.in_channels, PIXELS, PIXELS))
        if isinstance(layer, torch.nn.GroupNorm | torch.nn.BatchNorm2d):
            channels = layer.num_channels if isinstance(layer, torch.nn.GroupNorm) else layer.num_features
            return Shape((1, channels, PIXELS, PIXELS))
    return Shape(SHAPE)


def _dtype_of(function: Callable[..., Any]) -> torch.dtype:
    parameters = function.parameters() if isinstance(function, torch.nn.Module) else ()
    return next((p.dtype for p in parameters if p.is_floating_point()), torch.get_default_dtype())


def _tensor(sizes: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    if not dtype.is_floating_point:
        return torch.randint(0, 2, sizes, generator=generator).to(dtype)
    return torch.randn(sizes, generator=generator).to(dtype).requires_grad_()


def _tensors(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(SEED)
    return [_tensor(shape, torch.float32, generator) for shape in shapes]


def _flash_backward(shape: tuple[int, ...]) -> Sequence[Any]:
    with torch.no_grad():
        q, k, v, gradient = _tensors(*[shape] * 4)
        scores = q @ k.mT / shape[-1] ** 0.5
        return *(x.detach() for x in (q, k, v)), scores.softmax(-1) @ v, scores.logsumexp(-1), gradient.detach()


def _deep(x: torch.Tensor) -> torch.Tensor:
    for _ in range(DEPTH):
        x = torch.tanh(x)
    return x


def _sequence(shape: tuple[int, ...]) -> Sequence[Any]:
    return [torch.tanh] * 2 * DEPTH, 4, *_tensors(shape)


def _window(shape: tuple[int, ...]) -> Sequence[Any]:
    return *_tensors(shape, shape, shape), 64, 64


def _grouped(shape: tuple[int, ...]) -> Sequence[Any]:
    *batch, heads, length, width = shape
    return _tensors(shape, *[(*batch, max(heads // 4, 1), length, width)] * 2)


def _split(shape: tuple[int, ...]) -> Sequence[Any]:
    q, k, v = _grouped(shape)
    return q[..., -1:, :].detach(), k.detach(), v.detach(), 4


def _paged(shape: tuple[int, ...]) -> Sequence[Any]:
    heads, length, width = shape[-3:]
    block_size, kv_heads = 16, max(heads // 4, 1)
    n_blocks = -(-length // block_size)
    q, k, v = _tensors((1, heads, width), *[(n_blocks, block_size, kv_heads, width)] * 2)
    table = torch.arange(n_blocks).flip(0)[None]
    return q.detach(), k.detach(), v.detach(), table, torch.tensor([length])


def _latent(shape: tuple[int, ...]) -> Sequence[Any]:
    *batch, heads, length, width = shape
    cache = [(*batch, length, 2 * width), (*batch, length, width)]
    queries, matrices = [(*batch, heads, width)] * 2, [(heads, width, 2 * width)] * 2
    return [x.detach() for x in _tensors(*queries, *cache, *matrices)]


def _gated(shape: tuple[int, ...], *more: int) -> Sequence[Any]:
    """Keys of length 1, half of each difference written, and a decay: what keeps the state bounded."""
    q, k, v = (x.detach() for x in _tensors(shape, shape, shape))
    per_token = torch.ones(shape[:-1])
    return [q, k / k.norm(dim=-1, keepdim=True), v, per_token / 2, -per_token / 8, None, *more]


INPUTS: dict[str, Callable[[tuple[int, ...]], Sequence[Any]]] = {
    "flash_forward": lambda shape: [x.detach() for x in _tensors(shape, shape, shape)],
    "flash_backward": _flash_backward,
    "FlashAttention": lambda shape: _tensors(shape, shape, shape),
    "Checkpoint": lambda shape: [_deep, *_tensors(shape)],
    "checkpoint": lambda shape: [_deep, *_tensors(shape)],
    "checkpoint_sequential": _sequence,
    "sliding_window_attention": _window,
    "grouped_query_attention": _grouped,
    "split_kv_decode": _split,
    "paged_attention": _paged,
    "mla_decode": _latent,
    "quantize_kv": lambda shape: [*(x.detach() for x in _tensors(shape, shape)), 4, 16],
    "attention_with_sinks": lambda shape: [*_tensors(shape, shape, shape), 64, 4],
    "gated_delta_recurrent": _gated,
    "gated_delta_chunked": lambda shape: _gated(shape, 16),
    "attention_sink_logit": lambda shape: [
        *_tensors(shape, shape, shape),
        *_tensors(shape[-3:-2]),
    ],
}
"""Arguments of the labs' tasks that take more than tensors (see `labkit.trace.offer`), for a shape."""
