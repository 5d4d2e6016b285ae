"""Runs one call of a function under every meter of tensors, or with NaN in uninitialised memory."""

import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch

from labkit.meters.allocation import AllocationMeter
from labkit.meters.modes import AttentionCalls, OperatorMode
from labkit.meters.products import ProductMeter, factors_of, hides_products, operator_name
from labkit.meters.torch_private import qualified_name


def measured(fn: Callable[..., Any], *args: Any) -> tuple[Any, dict[str, Any]]:
    """The result of `fn(*args)`, and its memory and work.

    `flops` of matrix products, `fused` kernels called that do a whole attention at once, `peak_bytes` over what was
    there before, and `largest_bytes` of a single tensor.
    """
    with ProductMeter() as products, AllocationMeter() as memory:
        result = fn(*args)
    counts = {"flops": products.flops, "fused": products.fused}
    return result, counts | {"peak_bytes": memory.peak_bytes, "largest_bytes": memory.largest_bytes}


class OperatorsSeen(OperatorMode):
    """Records the names of the operators that run, in order, and the kinds of devices of their results.

    Of tensors with several elements: an empty one may be made anywhere to ask for its dtype's size.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[str] = []
        self.devices: set[str] = set()

    def _see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = func(*args, **kwargs)
        self.operators.append(qualified_name(func).removeprefix("aten::"))
        made = out if isinstance(out, tuple | list) else (out,)
        self.devices |= {x.device.type for x in made if isinstance(x, torch.Tensor) and x.numel() > 1}
        return out


class ResultsSeen(OperatorMode):
    """Keeps a copy of each result of `shape` that operators compute, in order; leading axes may be taken together."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape
        self.results: list[torch.Tensor] = []

    def _see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = func(*args, **kwargs)
        if isinstance(out, torch.Tensor) and out.shape[-2:] == self.shape[-2:] and out.numel() == math.prod(self.shape):
            self.results.append(out.detach().reshape(self.shape).clone())
        return out


class UninitialisedIsNaN(OperatorMode):
    """Fills the memory that `torch.empty` and its like return with NaN, which it might contain by chance."""

    EMPTY: ClassVar = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}

    def _see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = func(*args, **kwargs)
        if qualified_name(func).removeprefix("aten::") in self.EMPTY and out.is_floating_point():
            out.fill_(math.nan)
        return out


class ScoreTiles(OperatorMode):
    """Records the tiles of scores that are computed: the matrix products over a width of `d`.

    For each, in `tiles`, (queries, keys), by the signs of the factors: Q must be positive throughout and K negative, or
    the product may be one of K and Q transposed. Where `d` is also the length of a block, other products are taken for
    scores; a batch counts as many tiles. `fused` are operators called whose products nobody sees.
    """

    def __init__(self, d: int) -> None:
        super().__init__()
        self.d = d
        self.tiles: list[tuple[int, int]] = []
        self.fused: list[str] = []

    def __enter__(self) -> Any:
        self._within.enter_context(AttentionCalls(self.fused))
        return super().__enter__()

    def _see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = operator_name(func)
        if factors := factors_of(name, args):
            left, right = factors
            if left.shape[-1] == self.d and right.ndim > 1:
                shape = left.shape[-2], right.shape[-1]
                queries_first = float(left.sum()) > 0
                self.tiles += [shape if queries_first else shape[::-1]] * math.prod(left.shape[:-2])
        elif hides_products(name):
            self.fused.append(name)
        return func(*args, **kwargs)
