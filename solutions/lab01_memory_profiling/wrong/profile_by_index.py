"""The lengths are taken by index, so that a generator will not do.

Task: profile_memory_scaling
Killed by: TestProfileMemoryScaling::test_any_iterable_of_lengths
"""

from profiling import measure_attention_memory


def profile_memory_scaling(seq_lengths, d_model=64, batch_size=1):
    results = {}
    for i in range(len(seq_lengths)):
        results[seq_lengths[i]] = measure_attention_memory(seq_lengths[i], d_model, batch_size)
    return results
