"""d_model is not handed on.

Task: profile_memory_scaling
Killed by: TestProfileMemoryScaling::test_width_is_handed_on
Says: d_model is always 64
"""

from profiling import measure_attention_memory


def profile_memory_scaling(seq_lengths, d_model=64, batch_size=1):
    return {n: measure_attention_memory(n, 64, batch_size) for n in seq_lengths}
