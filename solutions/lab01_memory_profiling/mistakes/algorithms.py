"""Mistakes that are other algorithms: they stand on the names of the solution and take the place of its own."""

import numpy as np
from profiling import measure_attention_memory


def measure_by_formula(seq_len, d_model, batch_size=1, dtype=np.float32):
    rows = batch_size * seq_len * np.dtype(dtype).itemsize
    sizes = {
        "input_memory": 3 * rows * d_model,
        "attention_matrix_memory": rows * seq_len,
        "output_memory": rows * d_model,
    }
    return {**sizes, "total_memory": sum(sizes.values()), "seq_len": seq_len, "d_model": d_model}


def profile_by_index(seq_lengths, d_model=64, batch_size=1):
    results = {}
    for i in range(len(seq_lengths)):
        results[seq_lengths[i]] = measure_attention_memory(seq_lengths[i], d_model, batch_size)
    return results


def profile_one_dict_for_all(seq_lengths, d_model=64, batch_size=1):
    results, stats = {}, {}
    for n in seq_lengths:
        stats.update(measure_attention_memory(n, d_model, batch_size))
        results[n] = stats
    return results


def profile_scaled_from_the_first(seq_lengths, d_model=64, batch_size=1):
    lengths = list(seq_lengths)
    results = {}
    for n in lengths:
        first = measure_attention_memory(lengths[0], d_model, batch_size)
        stats = {key: first[key] * n // lengths[0] for key in ("input_memory", "output_memory")}
        stats["attention_matrix_memory"] = first["attention_matrix_memory"] * n * n // lengths[0] ** 2
        results[n] = {**stats, "total_memory": sum(stats.values()), "seq_len": n, "d_model": d_model}
    return results


def profile_scaled_from_the_longest(seq_lengths, d_model=64, batch_size=1):
    lengths = list(seq_lengths)
    results = {}
    for n in lengths:
        longest = measure_attention_memory(max(lengths), d_model, batch_size)
        stats = {key: longest[key] * n // max(lengths) for key in ("input_memory", "output_memory")}
        stats["attention_matrix_memory"] = longest["attention_matrix_memory"] * n * n // max(lengths) ** 2
        results[n] = {**stats, "total_memory": sum(stats.values()), "seq_len": n, "d_model": d_model}
    return results


def estimate_borrows_the_measurement(seq_len, d_model, dtype_bytes=4, batch_size=1):
    dtype = {2: np.float16, 4: np.float32, 8: np.float64}[dtype_bytes]
    stats = measure_attention_memory(seq_len, d_model, batch_size, dtype)
    one_input = stats["input_memory"] // 3
    return {
        **{f"{name}_memory": one_input for name in "QKV"},
        **{key: stats[key] for key in ("attention_matrix_memory", "output_memory", "total_memory")},
    }
