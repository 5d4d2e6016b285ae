"""Sizes are given in MiB.

Task: estimate_attention_memory
Killed by: TestEstimateAttentionMemory::test_worked_example
Killed by: TestEstimateAttentionMemory::test_odd_sizes
Says: the value is in MiB
"""


def estimate_attention_memory(seq_len, d_model, dtype_bytes=4, batch_size=1):
    one_input = batch_size * seq_len * d_model * dtype_bytes / 2**20
    weights = batch_size * seq_len * seq_len * dtype_bytes / 2**20
    return {
        "Q_memory": one_input,
        "K_memory": one_input,
        "V_memory": one_input,
        "attention_matrix_memory": weights,
        "output_memory": one_input,
        "total_memory": 4 * one_input + weights,
    }
