# ruff: noqa: SIM905 — long lists of names are read best as words
"""Runs one call of a function that launches kernels, and returns its result and actions as plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from labkit.meters.calls import OperatorsSeen, UninitialisedIsNaN
from labkit.meters.kernels.compiled import compiled
from labkit.meters.kernels.watch import watched
from labkit.meters.modes import OperatorMode
from labkit.meters.products import ProductMeter, operator_name
from labkit.meters.torch_private import tree_leaves

EXPONENTIALS = frozenset(
    {"exp", "exp2", "expm1", "pow", "sinh", "cosh", "tanh", "sigmoid", "logsumexp", "logaddexp", "logaddexp2"}
    | {"softmax", "_softmax", "_safe_softmax", "log_softmax", "_log_softmax", "logcumsumexp"}
)
"""Operators of torch from which a softmax could be had: a kernel that only copies would pass otherwise."""


MOVING = frozenset(
    "_reshape_alias _to_copy alias arange as_strided cat clone constant_pad_nd copy detach empty empty_like "
    "empty_strided expand eye fill flip full full_like gather index index_put index_select lift_fresh masked_fill "
    "narrow_copy new_empty new_empty_strided new_full new_ones new_zeros ones ones_like permute repeat resize roll "
    "scalar_tensor scatter select select_scatter set slice slice_scatter split squeeze stack t to transpose tril triu "
    "unsqueeze view where zero zeros zeros_like".split()
)
"""Operators of torch that make, fill, move and view, and compute no number."""


class NumbersComputed(OperatorMode):
    """Counts the floating-point numbers that torch operators compute."""

    def __init__(self) -> None:
        super().__init__()
        self.n_numbers = 0

    def _see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = func(*args, **kwargs)
        if operator_name(func) not in MOVING and not func.is_view:
            self.n_numbers += _n_numbers(out)
        return out


def kernel_call(
    function: Callable[..., Any], given: dict[str, Any], *more: Any, garbage: bool = True
) -> tuple[Any, dict[str, Any]]:
    """The result of `function(*given.values(), *more)`, and what its kernels did.

    `loaded` and `stored` bytes and `readers`, the number of programs that load, by tensor; `of_arguments`, the bytes
    loaded from `given` themselves, and not from copies; `products`, [rows, inner,
    columns, how often]; `problems` as `Watch` finds them; `launches`; and `outside_kernels`: the products, exponentials
    and kernels of attention that torch computed. `outside_numbers` are those that torch computed besides, of any
    floating-point type, and `numbers` how many the arguments and the result hold. Memory that nobody has written holds
    NaN.
    """
    seeing = NumbersComputed(), ProductMeter(), OperatorsSeen()
    with UninitialisedIsNaN(), seeing[0] as numbers, seeing[1] as products, seeing[2] as seen_outside:
        result, seen = watched(function, given, *more, garbage=garbage)
    return result, {
        "loaded": dict(seen.loaded),
        "of_arguments": dict(seen.of_arguments),
        "stored": dict(seen.stored),
        "readers": {name: len(programs) for name, programs in seen.readers.items()},
        "products": [[*shape, times] for shape, times in seen.products.items()],
        "problems": seen.problems,
        "launches": len(seen.launches),
        "numbers": _n_numbers([given, result]),
        "outside_numbers": numbers.n_numbers,
        "outside_kernels": [
            *["a matrix product"] * bool(products.flops),
            *["an exponential"] * any(name.rstrip("_") in EXPONENTIALS for name in seen_outside.operators),
            *sorted(set(products.fused)),
        ],
    }


def _n_numbers(tree: Any) -> int:
    return sum(x.numel() for x in tree_leaves(tree) if isinstance(x, torch.Tensor) and x.is_floating_point())


def compiled_call(
    function: Callable[..., Any], given: dict[str, Any], *more: Any, archs: Iterable[int], **options: int
) -> dict[int, list[dict[str, Any]]]:
    """The kernels that `function(*given.values(), *more)` launches, compiled for each of `archs`: see `compiled`.

    A kernel launched twice with arguments of the same kind is compiled twice.
    """
    _, seen = watched(function, given, *more)
    return {arch: compiled(seen.launches, arch, **options) for arch in archs}
