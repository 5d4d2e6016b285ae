"""Counts the arithmetic of matrix products while other code runs, and records calls of torch's own attention."""

import functools
from typing import Any

from labkit.meters.modes import AttentionCalls, OperatorMode
from labkit.meters.torch_private import qualified_name


class ProductMeter(OperatorMode):
    """Adds up, between entering and leaving, the floating-point operations of all matrix products.

    A product of (m, k) and (k, n) is 2·m·n·k operations, a multiplication and an addition each, whatever its operands
    hold. `@`, `einsum`, `linear` and their like all arrive here as the few operators that are counted, in place, into
    `out=` or not. An elementwise multiplication that is summed up afterwards is no product. `fused` names the operators
    called that do a whole attention at once, or products of other kinds, which nobody can see from outside. `shapes`
    are rows and columns of the results of products of two matrices, one after the other.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0
        self.fused: list[str] = []
        self.shapes: list[tuple[int, int]] = []

    def __enter__(self) -> Any:
        self._within.enter_context(AttentionCalls(self.fused))
        return super().__enter__()

    def _see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.count(func, args)
        return func(*args, **kwargs)

    def count(self, func: Any, args: tuple[Any, ...]) -> None:
        """Count an operator that will run on `args`; for modes that also measure other things."""
        name = operator_name(func)
        if factors := factors_of(name, args):
            left, right = factors
            self.flops += 2 * left.numel() * (right.shape[-1] if name not in _TIMES_VECTOR else 1)
            if name not in _TIMES_VECTOR:
                self.shapes.append((left.shape[-2], right.shape[-1]))
        elif name == "addr":
            self.flops += 2 * args[1].numel() * args[2].numel()
        elif hides_products(name):
            self.fused.append(name)


@functools.cache  # asked at every operator
def hides_products(name: str) -> bool:
    """Whether an operator of this name multiplies matrices inside, by its kernel or by another kind of arithmetic."""
    return any(part in name for part in _HIDING) and "norm" not in name


_HIDING = (
    *("attention", "transformer", "conv", "cdist", "euclidean_dist", "trilinear", "embedding_bag", "rnn", "lstm"),
    *("gru", "_fft_", "linalg_inv", "linalg_solve", "linalg_lu", "matrix_exp", "cholesky", "inverse"),
    *("triangular_solve", "lu_solve", "_int_mm", "_scaled_mm", "pack_mm", "mm_activation", "mkldnn", "sparse"),
)
"""Parts of the names of such operators."""

_FIRST_FACTOR = {"mm": 0, "bmm": 0, "mv": 0, "dot": 0, "vdot": 0, "addmm": 1, "baddbmm": 1, "addbmm": 1, "addmv": 1}
"""Operator → which of its arguments is the left factor; the right one follows."""

_TIMES_VECTOR = ("mv", "dot", "vdot", "addmv")


def factors_of(name: str, args: tuple[Any, ...]) -> tuple[Any, Any] | None:
    """The left and the right factor of a matrix product by its operator's name; None for other operators."""
    return args[_FIRST_FACTOR[name] : _FIRST_FACTOR[name] + 2] if name in _FIRST_FACTOR else None  # type: ignore[return-value]


@functools.cache
def operator_name(func: Any) -> str:
    """An operator's name, the same for its in-place form."""
    return qualified_name(func).removeprefix("aten::").rstrip("_")
