"""One call of a function that launches kernels: what it returns, and what it did, in plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from labkit.meters.calls import OperatorsSeen, UninitialisedIsNaN
from labkit.meters.kernels.compiled import compiled
from labkit.meters.kernels.watch import watched
from labkit.meters.products import ProductMeter

EXPONENTIALS = frozenset(
    {"exp", "exp2", "expm1", "pow", "sinh", "cosh", "tanh", "sigmoid", "logsumexp", "logaddexp", "logaddexp2"}
    | {"softmax", "_softmax", "_safe_softmax", "log_softmax", "_log_softmax", "logcumsumexp"}
)
"""Operators of torch from which a softmax could be had: a kernel that only copies would pass otherwise."""


def kernel_call(
    function: Callable[..., Any], given: dict[str, Any], *more: Any, garbage: bool = True
) -> tuple[Any, dict[str, Any]]:
    """What `function(*given.values(), *more)` returns, and what its kernels did.

    `loaded` and `stored` bytes by tensor, `products`, [rows, inner, columns, how often], `problems` as `Watch` finds
    them, `launches`, and `outside_kernels`: the products, exponentials and kernels of attention that torch computed.
    Memory that nobody has written holds NaN.
    """
    with UninitialisedIsNaN(), ProductMeter() as products, OperatorsSeen() as seen_outside:
        result, seen = watched(function, given, *more, garbage=garbage)
    return result, {
        "loaded": dict(seen.loaded),
        "stored": dict(seen.stored),
        "products": [[*shape, times] for shape, times in seen.products.items()],
        "problems": seen.problems,
        "launches": len(seen.launches),
        "outside_kernels": [
            *["a matrix product"] * bool(products.flops),
            *["an exponential"] * any(name.rstrip("_") in EXPONENTIALS for name in seen_outside.operators),
            *sorted(set(products.fused)),
        ],
    }


def compiled_call(
    function: Callable[..., Any], given: dict[str, Any], *more: Any, archs: Iterable[int], **options: int
) -> dict[int, list[dict[str, Any]]]:
    """The kernels that `function(*given.values(), *more)` launches, compiled for each of `archs`: see `compiled`.

    A kernel launched twice with arguments of the same kind is compiled twice.
    """
    _, seen = watched(function, given, *more)
    return {arch: compiled(seen.launches, arch, **options) for arch in archs}
