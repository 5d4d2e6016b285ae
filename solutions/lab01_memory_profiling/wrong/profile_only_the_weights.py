"""Only the weights' bytes are kept of each measurement.

Task: profile_memory_scaling
Killed by: TestProfileMemoryScaling::test_every_length_is_measured
Says: an int, expected a dict
"""

from profiling import measure_attention_memory


def profile_memory_scaling(seq_lengths, d_model=64, batch_size=1):
    return {n: measure_attention_memory(n, d_model, batch_size)["attention_matrix_memory"] for n in seq_lengths}
