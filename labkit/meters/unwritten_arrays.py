"""NumPy's uninitialised memory, filled with NaN, which on another day may be there by itself."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt


@contextlib.contextmanager
def uninitialised_is_nan() -> Iterator[None]:
    """`np.empty` and `np.empty_like` hand out NaN where their numbers are floating-point ones."""
    ready_made = np.empty, np.empty_like
    np.empty, np.empty_like = map(_filled, ready_made)
    try:
        yield
    finally:
        np.empty, np.empty_like = ready_made


def _filled(make: Callable[..., npt.NDArray]) -> Any:
    def filled(*args: Any, **options: Any) -> npt.NDArray:
        array = make(*args, **options)
        if array.dtype.kind in "fc":
            array.fill(np.nan)
        return array

    return filled
