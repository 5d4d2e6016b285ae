"""The numbers are predicted, not measured.

Task: benchmark_attention
Killed by: TestBenchmarkAttention::test_simulated_rows_are_measured
Says: worked out by a formula
"""


def _memory_of_a_step(shape, device):
    predicted = attention_training_memory(*shape)
    return {"mem_max_MB": predicted["forward_peak"] / 2**20, "add_mem_MB": predicted["saved"] / 2**20}
