"""Counts the bytes NumPy code allocates, exactly, with tracemalloc."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any, NamedTuple

from labkit.meters.collector import collector_waits

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
    Pass `warm=False` when an argument can be consumed only once. A function that lives in another process says so by a
    method `__beside__`, and is measured there. A trace that is running, as one that a submission has started, ends.
    """
    if hasattr(function, "__beside__"):
        return ArrayMemory(*function.__beside__(measure_arrays, *args, warm=warm, **kwargs))
    if warm:
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
