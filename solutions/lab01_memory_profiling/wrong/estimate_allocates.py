"""The arrays are made to read their sizes.

Task: estimate_attention_memory
Killed by: TestEstimateAttentionMemory::test_nothing_is_allocated
Says: nothing is made
"""

import numpy as np


def estimate_attention_memory(seq_len, d_model, dtype_bytes=4, batch_size=1):
    one_input = np.empty((batch_size, seq_len, d_model * dtype_bytes), np.uint8).nbytes
    weights = np.empty((batch_size, seq_len, seq_len * dtype_bytes), np.uint8).nbytes
    return {
        "Q_memory": one_input,
        "K_memory": one_input,
        "V_memory": one_input,
        "attention_matrix_memory": weights,
        "output_memory": one_input,
        "total_memory": 4 * one_input + weights,
    }
