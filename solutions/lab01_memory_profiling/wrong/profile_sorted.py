"""The lengths are sorted.

Task: profile_memory_scaling
Killed by: TestProfileMemoryScaling::test_order_is_kept
Says: the lengths are sorted
"""

from profiling import measure_attention_memory


def profile_memory_scaling(seq_lengths, d_model=64, batch_size=1):
    return {n: measure_attention_memory(n, d_model, batch_size) for n in sorted(seq_lengths)}
