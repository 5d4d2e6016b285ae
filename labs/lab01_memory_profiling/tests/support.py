"""The bytes of attention's arrays and their growth with the length: right, and as known mistakes have them."""

import math

import numpy as np

from labkit.testing.compare import assert_equal, assert_type, require

MEASURED = ("input_memory", "attention_matrix_memory", "output_memory", "total_memory")
ESTIMATED = ("Q_memory", "K_memory", "V_memory", "attention_matrix_memory", "output_memory", "total_memory")


def true_bytes(seq_len, d_model, batch_size=1, itemsize=4):
    """The bytes of every array, and of several together, by the names of the handout."""
    one, weights = (batch_size * seq_len * width * itemsize for width in (d_model, seq_len))
    return {
        **dict.fromkeys(("Q_memory", "K_memory", "V_memory", "output_memory"), one),
        "input_memory": 3 * one,
        "attention_matrix_memory": weights,
        "total_memory": 4 * one + weights,
    }


def assert_bytes(keys, stats, seq_len, d_model, batch_size=1, itemsize=4):
    """Fail unless `stats` holds, for each of `keys`, the bytes of attention's arrays."""
    true = true_bytes(seq_len, d_model, batch_size, itemsize)
    one, weights, total = (true[name] for name in ("Q_memory", "attention_matrix_memory", "total_memory"))
    own = {
        "input_memory": {"only one of Q, K and V is counted": one},
        "attention_matrix_memory": {
            "it has N · d elements instead of N · N": one,
            "one N · N is taken for the whole batch's (batch · N)²": batch_size * weights,
            "only the lower triangle is counted": batch_size * seq_len * (seq_len + 1) // 2 * itemsize,
        },
        "total_memory": {
            "the output is left out": total - one,
            "the inputs are left out": total - 3 * one,
            "only one of Q, K and V is counted": total - 2 * one,
        },
    }
    hints = {
        "input_memory": "Q, K and V are counted together",
        "attention_matrix_memory": "the weights are N × N for every batch entry",
        "total_memory": "inputs + weights + output",
    }
    for key in keys:
        want = true[key]
        usual = own.get(key, {}) | {
            "an array is float64: .astype(dtype) is missing, or standard_attention returns float64": 8
            * want
            / itemsize,
            "every element is counted as 4 bytes, whatever its dtype is": 4 * want / itemsize,
            "elements are counted instead of bytes": want / itemsize,
            "batch_size is ignored": want / batch_size,
            "the value is in MiB: memory is in bytes": want / 2**20,
            "the product overflowed a 32-bit integer": (want + 2**31) % 2**32 - 2**31,
        }
        assert_equal(key, stats[key], want, mistakes=usual, hint=hints.get(key, "shape × bytes of an element"))


def assert_really_run(weights, seq_len, batch_size):
    """Fail unless as many weights were computed as attention at this length has."""
    want, seen = batch_size * seq_len**2, weights.get(seq_len, 0)
    require(
        seen >= want,
        f"at N = {seq_len}, batch_size = {batch_size}, {seen:,} of {want:,} weights were computed\n"
        "Usual cause: sizes computed by formula, arrays made for show, or scaled from another length or from one entry "
        "of the batch: run attention on all",
    )


def made_up(lengths, exponent=2.0):
    """Results with a known growth, so that a fit can be checked exactly."""
    return {
        int(n): {
            "input_memory": 7 * int(n),
            "attention_matrix_memory": round(5 * n**exponent),
            "output_memory": int(n),
            "total_memory": 3 * round(5 * n**exponent),
            "seq_len": int(n),
            "d_model": 64,
        }
        for n in lengths
    }


def assert_factor(got, results, want, usual, rel=1e-3):
    """Fail unless `got` is the growth of the weights in `results` for each doubling of the length."""
    assert_type("scaling_factor", got, (float, np.floating), "a float")
    if abs(got - want) <= rel * want:
        return
    exponent = math.log2(want)
    memory = [results[n]["attention_matrix_memory"] for n in sorted(results)]
    ratios = np.divide(memory[1:], memory[:-1])
    known_mistakes = {
        **usual,
        "the square is assumed, or the exponent rounded": 4.0,
        "every step is taken for a doubling": ratios[-1],
        "every step is taken for a doubling and the ratios are averaged": np.mean(ratios),
        "it is the exponent, not the factor per doubling": exponent,
        "e is raised to the slope instead of 2": math.exp(exponent),
    }
    cause = next((text for text, value in known_mistakes.items() if abs(got - value) <= rel * abs(value)), "")
    message = f"scaling_factor is {got:.6g}, expected {want:.6g} per doubling of seq_len"
    require(False, message + (f"\nThat is exactly what comes out when {cause}" if cause else ""))
