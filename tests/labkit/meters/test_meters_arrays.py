"""The meter of NumPy arrays counts bytes exactly."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from labkit.meters.arrays import BOOKKEEPING_BYTES, measure_arrays, uninitialised_is_nan

ONE = 512 * 512 * 4
OBJECTS = 1024


def square(n=512):
    """One array of n × n float32."""
    return np.ones((n, n), np.float32)


def test_peak_and_what_is_kept():
    def two_then_one():
        first = square()
        second = first + 1
        del first
        return second

    memory = measure_arrays(two_then_one)
    assert 2 * ONE <= memory.peak_bytes <= 2 * ONE + OBJECTS
    assert ONE <= memory.kept_bytes <= ONE + OBJECTS
    assert memory.result.shape == (512, 512)


def test_arguments_are_not_counted():
    x = square()
    memory = measure_arrays(lambda a: float(a.sum()), x)
    assert memory.peak_bytes <= OBJECTS + 2**15


def test_in_place_and_out_of_place_differ_by_one_array():
    def in_place():
        x = square()
        np.exp(x, out=x)
        return x

    def out_of_place():
        x = square()
        return np.exp(x)

    difference = measure_arrays(out_of_place).peak_bytes - measure_arrays(in_place).peak_bytes
    assert abs(difference - ONE) <= OBJECTS


def test_the_same_from_run_to_run():
    peaks = {measure_arrays(lambda: square() @ square()).peak_bytes for _ in range(3)}
    assert max(peaks) - min(peaks) <= 256


def test_an_import_inside_is_not_counted_when_warm():
    def imports():
        import colorsys  # noqa: F401

        return 0

    import sys

    sys.modules.pop("colorsys", None)
    assert measure_arrays(imports).peak_bytes < BOOKKEEPING_BYTES


def test_a_generator_is_consumed_once():
    blocks = (square(64) for _ in range(8))
    memory = measure_arrays(lambda each: sum(float(block.sum()) for block in each), blocks, warm=False)
    assert memory.result == 8 * 64 * 64
    assert memory.peak_bytes < 3 * 64 * 64 * 4 + BOOKKEEPING_BYTES


def test_an_iterator_that_would_be_empty_is_refused():
    with pytest.raises(ValueError, match="warm=False"):
        measure_arrays(sum, iter([1, 2]))


def test_a_trace_that_is_running_changes_nothing():
    expected = measure_arrays(square, 64).peak_bytes
    tracemalloc.start()
    large = np.ones(1 << 20)
    assert measure_arrays(square, 64).peak_bytes == expected
    assert large[0] and not tracemalloc.is_tracing()


def test_stops_tracing_when_the_function_raises():
    with pytest.raises(ZeroDivisionError):
        measure_arrays(lambda: 1 / 0)
    assert not tracemalloc.is_tracing()


def test_uninitialised_memory_is_nan_and_only_there():
    made = np.empty, np.empty_like
    with uninitialised_is_nan():
        assert np.isnan(np.empty((2, 3), np.float16)).all()
        assert np.isnan(np.empty_like(np.ones(3, np.float32))).all()
        assert np.empty(3, np.int64).shape == (3,)
    assert (np.empty, np.empty_like) == made
