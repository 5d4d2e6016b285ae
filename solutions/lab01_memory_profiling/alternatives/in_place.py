"""Softmax written over the scores, so one N × N array is alive; float16 computed in float32; bytes from shapes."""

import math

import numpy as np


def standard_attention(Q, K, V, mask=None):
    if Q.shape[-1] != K.shape[-1]:
        raise ValueError(f"Q {Q.shape} and K {K.shape} differ in their last axis")
    if K.shape[-2] != V.shape[-2]:
        raise ValueError(f"K {K.shape} and V {V.shape} differ in the number of keys")
    work = np.promote_types(Q.dtype, np.float32)
    scores = np.matmul(Q.astype(work), K.astype(work).swapaxes(-1, -2))
    scores *= 1 / math.sqrt(Q.shape[-1])
    if mask is not None:
        np.copyto(scores, -np.inf, where=mask)
    top = scores.max(axis=-1, keepdims=True)
    scores -= np.where(np.isfinite(top), top, work.type(0))
    np.exp(scores, out=scores)
    mass = scores.sum(axis=-1, keepdims=True)
    np.divide(scores, mass, out=scores, where=mass > 0)
    return (scores @ V.astype(work)).astype(Q.dtype), scores.astype(Q.dtype, copy=False)


def profile_memory_scaling(seq_lengths, d_model=64, batch_size=1):
    results = {}
    for seq_len in seq_lengths:
        results[seq_len] = measure_attention_memory(seq_len, d_model=d_model, batch_size=batch_size)
    return results


def measure_attention_memory(seq_len, d_model, batch_size=1, dtype=np.float32):
    generator = np.random.default_rng()
    Q = generator.normal(size=(batch_size, seq_len, d_model)).astype(dtype)
    K = generator.normal(size=(batch_size, seq_len, d_model)).astype(dtype)
    V = generator.normal(size=(batch_size, seq_len, d_model)).astype(dtype)
    output, weights = standard_attention(Q, K, V)
    stats = {
        "seq_len": seq_len,
        "d_model": d_model,
        "input_memory": sum(x.size * x.itemsize for x in (Q, K, V)),
        "attention_matrix_memory": weights.size * weights.itemsize,
        "output_memory": output.size * output.itemsize,
    }
    stats["total_memory"] = sum(value for key, value in stats.items() if key.endswith("_memory"))
    return stats


def estimate_attention_memory(seq_len, d_model, dtype_bytes=4, batch_size=1):
    narrow, square = (batch_size, seq_len, d_model), (batch_size, seq_len, seq_len)
    shapes = {"Q": narrow, "K": narrow, "V": narrow, "attention_matrix": square, "output": narrow}
    sizes = {f"{name}_memory": dtype_bytes * math.prod(shape) for name, shape in shapes.items()}
    sizes["total_memory"] = sum(sizes.values())
    return sizes


def plot_memory_scaling(results, ax=None):
    from matplotlib.figure import Figure

    ax = ax if ax is not None else Figure().add_subplot()
    points = sorted((n, s["attention_matrix_memory"], s["input_memory"]) for n, s in results.items())
    x, weights, inputs = (list(column) for column in zip(*points, strict=True))
    ax.loglog(x, [b / 1024**2 for b in weights], base=2, label="attention weights", marker="s")
    ax.loglog(x, [b / 1024**2 for b in inputs], base=2, label="Q, K, V", linestyle="--")
    ax.set(xlabel="N (tokens)", ylabel="MiB")
    ax.legend(loc="upper left")
    return ax
