"""Fills NumPy's uninitialised memory with NaN, which it might contain by chance."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt


@contextlib.contextmanager
def uninitialised_is_nan() -> Iterator[None]:
    """Context in which `np.empty` and `np.empty_like` return NaN for floating-point dtypes."""
    ready_made = {name: getattr(np, name) for name in ("empty", "empty_like")}
    try:
        for name, make in ready_made.items():
            setattr(np, name, _filled(make))
        yield
    finally:
        for name, make in ready_made.items():
            setattr(np, name, make)


def _filled(make: Callable[..., npt.NDArray]) -> Any:
    def filled(*args: Any, **options: Any) -> npt.NDArray:
        array = make(*args, **options)
        if array.dtype.kind in "fc":
            array.fill(np.nan)
        return array

    return filled
