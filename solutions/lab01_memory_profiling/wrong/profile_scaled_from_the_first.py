"""Only the first length is measured; the others are scaled from it.

Task: profile_memory_scaling
Killed by: TestProfileMemoryScaling::test_attention_is_really_run
Says: sizes computed by formula
"""

from profiling import measure_attention_memory


def profile_memory_scaling(seq_lengths, d_model=64, batch_size=1):
    lengths = list(seq_lengths)
    results = {}
    for n in lengths:
        first = measure_attention_memory(lengths[0], d_model, batch_size)
        stats = {key: first[key] * n // lengths[0] for key in ("input_memory", "output_memory")}
        stats["attention_matrix_memory"] = first["attention_matrix_memory"] * n * n // lengths[0] ** 2
        results[n] = {**stats, "total_memory": sum(stats.values()), "seq_len": n, "d_model": d_model}
    return results
