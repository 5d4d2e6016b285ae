"""Only the lower triangle of the weights is counted.

Task: estimate_attention_memory
Killed by: TestEstimateAttentionMemory::test_table_of_the_handout
Says: only the lower triangle is counted
"""


def estimate_attention_memory(seq_len, d_model, dtype_bytes=4, batch_size=1):
    one_input = batch_size * seq_len * d_model * dtype_bytes
    weights = batch_size * seq_len * (seq_len + 1) // 2 * dtype_bytes
    return {
        "Q_memory": one_input,
        "K_memory": one_input,
        "V_memory": one_input,
        "attention_matrix_memory": weights,
        "output_memory": one_input,
        "total_memory": 4 * one_input + weights,
    }
