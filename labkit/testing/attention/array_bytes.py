"""The bytes of attention's arrays and their growth with the length: right, and as usual mistakes have them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from labkit.testing.compare import assert_equal, assert_type

MEASURED = ("input_memory", "attention_matrix_memory", "output_memory", "total_memory")
ESTIMATED = ("Q_memory", "K_memory", "V_memory", "attention_matrix_memory", "output_memory", "total_memory")


def true_bytes(seq_len: int, d_model: int, batch_size: int = 1, itemsize: int = 4) -> tuple[int, int, int]:
    """What the arrays weigh: (one of Q, K, V; the weights; the output)."""
    rows = batch_size * seq_len * itemsize
    return rows * d_model, rows * seq_len, rows * d_model


def assert_measured(
    stats: Mapping[str, Any], seq_len: int, d_model: int, batch_size: int = 1, dtype: npt.DTypeLike = np.float32
) -> None:
    """Fail unless `stats` are the bytes of attention's arrays, as `measure_attention_memory` names them."""
    itemsize = np.dtype(dtype).itemsize
    one_input, weights, output = true_bytes(seq_len, d_model, batch_size, itemsize)
    wants = {
        "input_memory": 3 * one_input,
        "attention_matrix_memory": weights,
        "output_memory": output,
        "total_memory": 3 * one_input + weights + output,
    }
    usual: dict[str, dict[str, float]] = {
        "input_memory": {"only one of Q, K and V is counted": one_input},
        "attention_matrix_memory": {
            "the inputs are right but standard_attention turns them into float64": 8 * weights / itemsize
        },
        "output_memory": {"the inputs are right but standard_attention turns them into float64": 8 * output / itemsize},
        "total_memory": {
            "the output is left out": 3 * one_input + weights,
            "the inputs are left out": weights + output,
            "only one of Q, K and V is counted": one_input + weights + output,
        },
    }
    hints = {
        "input_memory": "Q, K and V are counted together",
        "attention_matrix_memory": "the weights are N × N for every batch entry",
        "output_memory": "the output is as large as Q",
        "total_memory": "inputs + weights + output",
    }
    for key, want in wants.items():
        shared: dict[str, float] = {
            "the arrays are float64: .astype(dtype) is missing": 8 * want / itemsize,
            "the arrays are float32, whatever dtype says": 4 * want / itemsize,
            "batch_size is dropped": want / batch_size,
            "elements are counted in place of bytes": want / itemsize,
            "the value is in MiB: memory is in bytes": want / 2**20,
            "the value is in KiB: memory is in bytes": want / 2**10,
        }
        first, second = (usual[key], shared) if key != "input_memory" else (shared, usual[key])
        assert_equal(key, stats[key], want, hint=hints[key], suspects={**first, **second})


def assert_estimated(
    stats: Mapping[str, Any], seq_len: int, d_model: int, itemsize: int = 4, batch_size: int = 1
) -> None:
    """Fail unless `stats` are the bytes of attention's arrays, as `estimate_attention_memory` names them."""
    one_input, weights, output = true_bytes(seq_len, d_model, batch_size, itemsize)
    total = 3 * one_input + weights + output
    wants = dict(zip(ESTIMATED, (one_input, one_input, one_input, weights, output, total), strict=True))
    only = {
        "attention_matrix_memory": {
            "it has N · d elements in place of N · N": one_input,
            "one N · N is taken for the whole batch's (batch · N)²": batch_size * weights,
        },
        "total_memory": {
            "the output is left out": total - output,
            "Q, K and V are counted once in place of three times": total - 2 * one_input,
            "V or K is left out": total - one_input,
        },
    }
    for key, want in wants.items():
        shared = {
            "batch_size is ignored": want / batch_size,
            "dtype_bytes is ignored": 4 * want / itemsize,
            "elements are counted in place of bytes": want / itemsize,
            "the value is in MiB: memory is in bytes": want / 2**20,
            "Q, K and V are counted together": 3 * want if key[0] in "QKV" else None,
            "the product overflowed a 32-bit integer": (want + 2**31) % 2**32 - 2**31,
        }
        usual = {text: value for text, value in {**shared, **only.get(key, {})}.items() if value != want}
        hint = "the sum of the five" if key == "total_memory" else "shape × bytes of an element, for each batch entry"
        assert_equal(key, stats[key], want, suspects=usual, hint=hint)


def made_up(lengths: Iterable[int], exponent: float = 2.0, total_factor: int = 3) -> dict[int, dict[str, int]]:
    """Results with a known growth, so that a fit can be judged exactly."""
    return {
        n: {
            "input_memory": 7 * n,
            "attention_matrix_memory": round(5 * n**exponent),
            "output_memory": n,
            "total_memory": total_factor * round(5 * n**exponent),
            "seq_len": n,
            "d_model": 64,
        }
        for n in lengths
    }


def assert_factor(
    got: Any, results: Mapping[int, Mapping[str, int]], want: float, usual: Mapping[str, float], rel: float = 1e-3
) -> None:
    """Fail unless `got` is the growth of the weights in `results` for each doubling of the length."""
    assert_type("scaling_factor", got, (float, np.floating), "a float")
    if abs(got - want) <= rel * want:
        return
    exponent = math.log2(want)
    memory = [results[n]["attention_matrix_memory"] for n in sorted(results)]
    suspects: dict[str, float] = {
        **usual,
        "every step is taken for a doubling": memory[-1] / memory[-2],
        "every step is taken for a doubling and the ratios are averaged": float(
            np.mean(np.divide(memory[1:], memory[:-1]))
        ),
        "it is the exponent, not the factor per doubling": exponent,
        "e is raised to the slope in place of 2": math.exp(exponent),
        "one logarithm is natural and the other to base 2": 2 ** (exponent * math.log(2)),
    }
    cause = next((text for text, value in suspects.items() if abs(got - value) <= rel * abs(value)), "")
    said = f"\nThat is exactly what comes out when {cause}" if cause else ""
    raise AssertionError(f"scaling_factor is {got:.6g}, expected {want:.6g} per doubling of seq_len{said}")
