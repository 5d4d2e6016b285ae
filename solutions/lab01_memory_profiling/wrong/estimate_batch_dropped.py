"""batch_size is ignored.

Task: estimate_attention_memory
Killed by: TestEstimateAttentionMemory::test_batch_counts
Says: batch_size is ignored
"""


def estimate_attention_memory(seq_len, d_model, dtype_bytes=4, batch_size=1):
    one_input = seq_len * d_model * dtype_bytes
    weights = seq_len * seq_len * dtype_bytes
    return {
        "Q_memory": one_input,
        "K_memory": one_input,
        "V_memory": one_input,
        "attention_matrix_memory": weights,
        "output_memory": one_input,
        "total_memory": 4 * one_input + weights,
    }
