"""A list is returned in place of a dict by length.

Task: profile_memory_scaling
Killed by: TestProfileMemoryScaling::test_every_length_is_measured
Says: a list, expected a dict
"""

from profiling import measure_attention_memory


def profile_memory_scaling(seq_lengths, d_model=64, batch_size=1):
    return [measure_attention_memory(n, d_model, batch_size) for n in seq_lengths]
