"""d_model and batch_size are handed on in the wrong order.

Task: profile_memory_scaling
Killed by: TestProfileMemoryScaling::test_batch_is_handed_on
Says: d_model and batch_size are swapped
"""

from profiling import measure_attention_memory


def profile_memory_scaling(seq_lengths, d_model=64, batch_size=1):
    return {n: measure_attention_memory(n, batch_size, d_model) for n in seq_lengths}
