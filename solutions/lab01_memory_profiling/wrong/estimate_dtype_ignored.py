"""An element always has 4 bytes.

Task: estimate_attention_memory
Killed by: TestEstimateAttentionMemory::test_bytes_of_an_element_count
Killed by: TestEstimateAttentionMemory::test_dtype_bytes_is_the_third_argument
Says: dtype_bytes is ignored
"""


def estimate_attention_memory(seq_len, d_model, dtype_bytes=4, batch_size=1):
    one_input = batch_size * seq_len * d_model * 4
    weights = batch_size * seq_len * seq_len * 4
    return {
        "Q_memory": one_input,
        "K_memory": one_input,
        "V_memory": one_input,
        "attention_matrix_memory": weights,
        "output_memory": one_input,
        "total_memory": 4 * one_input + weights,
    }
