"""Counts the bytes NumPy code allocates, exactly, with tracemalloc; and fills uninitialised arrays with NaN."""

from __future__ import annotations

import contextlib
import gc
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

BOOKKEEPING_BYTES = 16_384
"""What Python objects around the arrays (tuples, views, frames, lists of blocks) may add to a peak."""


class ArrayMemory(NamedTuple):
    """What one call allocated, in bytes, without what was allocated before it."""

    peak_bytes: int
    kept_bytes: int
    result: Any


def measure_arrays(function: Callable[..., Any], *args: Any, warm: bool = True, **kwargs: Any) -> ArrayMemory:
    """Call `function(*args, **kwargs)` and count the bytes it allocates.

    `peak_bytes` is the most that was allocated at one moment during the call, `kept_bytes` what is still allocated
    after it (the result). The arguments, made before, are not counted. NumPy reports every array buffer to
    tracemalloc, so the figures are exact up to a few hundred bytes of Python objects, and equal from run to run.

    With `warm`, the function is called once before the measured call: an import inside it would add megabytes.
    Pass `warm=False` when an argument can be consumed only once. A trace that is running, as one that a submission has
    started, ends.

    Raises:
        ValueError: with `warm` an argument is an iterator, which would be empty in the measured call.
    """
    if warm:
        if any(isinstance(each, Iterator) for each in (*args, *kwargs.values())):
            raise ValueError("an iterator is empty after the first call: pass warm=False, or a function that makes it")
        function(*args, **kwargs)
    tracemalloc.stop()
    gc.collect()
    with collector_waits():
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            result = function(*args, **kwargs)
            after, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    return ArrayMemory(peak - before, after - before, result)


@contextlib.contextmanager
def collector_waits() -> Iterator[None]:
    """Context in which the garbage collector runs only when it is called.

    A collection in between would free at a moment that differs from run to run.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


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
