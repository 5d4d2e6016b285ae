"""All lengths share one dict, which the last measurement fills.

Task: profile_memory_scaling
Killed by: TestProfileMemoryScaling::test_every_length_is_measured
Says: the value of another length
"""

from profiling import measure_attention_memory


def profile_memory_scaling(seq_lengths, d_model=64, batch_size=1):
    results, stats = {}, {}
    for n in seq_lengths:
        stats.update(measure_attention_memory(n, d_model, batch_size))
        results[n] = stats
    return results
