"""Lab 01: measure what standard attention costs in memory, and watch it grow with the square of the length."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def standard_attention(
    Q: npt.NDArray, K: npt.NDArray, V: npt.NDArray, mask: npt.NDArray[np.bool_] | None = None
) -> tuple[npt.NDArray, npt.NDArray]:
    """Scaled dot-product attention that keeps the whole weight matrix, as in the textbook.

    Row i of the weights is how much query i takes from each key: the softmax over j of
    `Q[i] · K[j] / √d`. The output's row i is the sum over j of `weights[i, j] * V[j]`. Leading axes are a batch: each
    entry is a separate attention.

    Args:
        Q: queries, (..., N_q, d).
        K: keys, (..., N_k, d).
        V: values, (..., N_k, d_v); d_v may differ from d.
        mask: None, or booleans of a shape that broadcasts to (..., N_q, N_k), True where a key is masked OUT:
            its weight is 0. A query with every key masked out has weights and output 0.

    Returns:
        (output, weights): shapes (..., N_q, d_v) and (..., N_q, N_k), both in Q's dtype (float32 stays float32),
        finite for logits of any size.

    Raises:
        ValueError: naming both shapes, when Q and K differ in d, or K and V in N_k.

    Example:
        Q = [[1, 0]], K = [[1, 0], [0, 1]], V = [[1], [0]]: the logits are 1/√2 and 0, the weights
        0.6698 and 0.3302, the output 0.6698.
    """
    ### BEGIN SOLUTION
    if Q.shape[-1] != K.shape[-1]:
        raise ValueError(f"Q and K must have the same d: Q is {Q.shape}, K is {K.shape}")
    if K.shape[-2] != V.shape[-2]:
        raise ValueError(f"K and V must have the same number of keys: K is {K.shape}, V is {V.shape}")
    logits = Q @ np.swapaxes(K, -1, -2) * Q.dtype.type(Q.shape[-1] ** -0.5)
    if mask is not None:
        logits = np.where(mask, Q.dtype.type(-np.inf), logits)
    peaks = logits.max(axis=-1, keepdims=True)
    powers = np.exp(logits - np.where(np.isneginf(peaks), 0, peaks))
    totals = powers.sum(axis=-1, keepdims=True)
    weights = powers / np.where(totals == 0, 1, totals)
    return weights @ V, weights
    ### END SOLUTION


def measure_attention_memory(
    seq_len: int, d_model: int, batch_size: int = 1, dtype: npt.DTypeLike = np.float32
) -> dict[str, int]:
    """Run attention on random input and count the bytes of its arrays.

    Makes Q, K and V of shape (batch_size, seq_len, d_model) in `dtype`, runs `standard_attention`, and reads the sizes
    of the real arrays (`nbytes`).

    Args:
        seq_len: N, the number of queries and of keys.
        d_model: d, the width of Q, K and V.
        batch_size: how many attentions at once.
        dtype: the arrays' dtype.

    Returns:
        dict, in bytes: "input_memory" (Q, K and V together), "attention_matrix_memory" (the weights),
        "output_memory", "total_memory" (the sum of the three); and "seq_len", "d_model" as given.

    Example:
        seq_len=512, d_model=64, float32: inputs 393,216, weights 1,048,576, output 131,072,
        total 1,572,864 bytes.
    """
    ### BEGIN SOLUTION
    noise = np.random.default_rng()
    Q, K, V = (noise.standard_normal((batch_size, seq_len, d_model)).astype(dtype) for _ in range(3))
    output, weights = standard_attention(Q, K, V)
    stats = {
        "input_memory": Q.nbytes + K.nbytes + V.nbytes,
        "attention_matrix_memory": weights.nbytes,
        "output_memory": output.nbytes,
    }
    return {**stats, "total_memory": sum(stats.values()), "seq_len": seq_len, "d_model": d_model}
    ### END SOLUTION


def profile_memory_scaling(
    seq_lengths: Iterable[int], d_model: int = 64, batch_size: int = 1
) -> dict[int, dict[str, int]]:
    """Measure attention at several lengths.

    Args:
        seq_lengths: the lengths, in any order; a list, a range or a generator.
        d_model: d, the same for all.
        batch_size: the same for all.

    Returns:
        dict {seq_len: what `measure_attention_memory` returns for it}, in the order given.

    Example:
        profile_memory_scaling([128, 256])[256]["attention_matrix_memory"] is 262,144 bytes.
    """
    ### BEGIN SOLUTION
    return {seq_len: measure_attention_memory(seq_len, d_model, batch_size) for seq_len in seq_lengths}
    ### END SOLUTION


def estimate_attention_memory(seq_len: int, d_model: int, dtype_bytes: int = 4, batch_size: int = 1) -> dict[str, int]:
    """Predict the bytes of attention's arrays from the shapes alone: nothing is allocated.

    Args:
        seq_len: N.
        d_model: d, the width of Q, K, V and the output.
        dtype_bytes: bytes of one element (float32: 4, float16: 2).
        batch_size: how many attentions at once.

    Returns:
        dict, in bytes (ints): "Q_memory", "K_memory", "V_memory", "attention_matrix_memory", "output_memory" and
        "total_memory", the sum of the five.

    Example:
        seq_len=4096, d_model=64: Q, K and V 1,048,576 each (3 MiB in all), weights 67,108,864 (64 MiB).
    """
    ### BEGIN SOLUTION
    rows = batch_size * seq_len * dtype_bytes
    parts = {f"{name}_memory": rows * d_model for name in "QKV"}
    parts |= {"attention_matrix_memory": rows * seq_len, "output_memory": rows * d_model}
    return {**parts, "total_memory": sum(parts.values())}
    ### END SOLUTION


def analyze_scaling(results: dict[int, dict[str, int]]) -> dict[str, Any]:
    """Find how the weight matrix grows: its factor per doubling of the length.

    Args:
        results: what `profile_memory_scaling` returns, for at least two lengths, in any order; they need not
            double from one to the next.

    Returns:
        dict: "seq_lengths" (list of ints, ascending), "attention_memory" and "total_memory" (lists of bytes in the
        same order), and "scaling_factor": the factor by which attention_memory grows when seq_len doubles, as a
        float, fitted over all lengths (a straight line through the logarithms): 4.0 for growth with the square.

    Raises:
        ValueError: when there are fewer than two lengths.

    Example:
        memory 100 at 10, 900 at 30: tripling the length gives 9 = 3² times as much, so doubling gives 4.0.
    """
    ### BEGIN SOLUTION
    if len(results) < 2:
        raise ValueError(f"a growth needs at least two lengths, results has {len(results)}")
    seq_lengths = sorted(results)
    attention_memory = [results[n]["attention_matrix_memory"] for n in seq_lengths]
    exponent = np.polyfit(np.log2(seq_lengths), np.log2(attention_memory), 1)[0]
    return {
        "seq_lengths": seq_lengths,
        "attention_memory": attention_memory,
        "total_memory": [results[n]["total_memory"] for n in seq_lengths],
        "scaling_factor": float(2.0**exponent),
    }
    ### END SOLUTION


def plot_memory_scaling(results: dict[int, dict[str, int]], ax: Axes | None = None) -> Axes:
    """Draw memory over length: one line for the weights, one for the inputs, in MiB (2²⁰ bytes).

    Both axes are logarithmic to base 2, so that growth with the square is a straight line of slope 2. The lines
    are labelled for the legend, which is shown; the axes' labels name the quantity and the unit MiB.

    Args:
        results: what `profile_memory_scaling` returns, in any order of lengths.
        ax: the matplotlib Axes to draw in; None makes a new figure.

    Returns:
        the Axes drawn in, with a line "attention weights" and a line "Q, K, V", points ascending in seq_len.

    Example:
        at seq_len 4096 the line "attention weights" is at y = 64.0.
    """
    ### BEGIN SOLUTION
    if ax is None:
        import matplotlib.pyplot as plt

        _, ax = plt.subplots()
    seq_lengths = sorted(results)
    for label, key in (("attention weights", "attention_matrix_memory"), ("Q, K, V", "input_memory")):
        ax.plot(seq_lengths, [results[n][key] / 2**20 for n in seq_lengths], "o-", label=label)
    for set_scale in (ax.set_xscale, ax.set_yscale):
        set_scale("log", base=2)
    ax.set(xlabel="sequence length N", ylabel="memory (MiB)")
    ax.legend()
    return ax
    ### END SOLUTION
