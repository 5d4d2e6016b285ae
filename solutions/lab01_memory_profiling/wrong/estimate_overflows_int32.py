"""The products are formed in 32-bit integers.

Task: estimate_attention_memory
Killed by: TestEstimateAttentionMemory::test_large_sizes_do_not_overflow
Says: overflowed a 32-bit integer
"""

import numpy as np


def estimate_attention_memory(seq_len, d_model, dtype_bytes=4, batch_size=1):
    one_input = int(np.prod([batch_size, seq_len, d_model, dtype_bytes], dtype=np.int32))
    weights = int(np.prod([batch_size, seq_len, seq_len, dtype_bytes], dtype=np.int32))
    return {
        "Q_memory": one_input,
        "K_memory": one_input,
        "V_memory": one_input,
        "attention_matrix_memory": weights,
        "output_memory": one_input,
        "total_memory": 4 * one_input + weights,
    }
