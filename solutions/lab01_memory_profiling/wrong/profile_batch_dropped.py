"""batch_size is not handed on.

Task: profile_memory_scaling
Killed by: TestProfileMemoryScaling::test_batch_is_handed_on
Says: batch_size is dropped
"""

from profiling import measure_attention_memory


def profile_memory_scaling(seq_lengths, d_model=64, batch_size=1):
    return {n: measure_attention_memory(n, d_model) for n in seq_lengths}
