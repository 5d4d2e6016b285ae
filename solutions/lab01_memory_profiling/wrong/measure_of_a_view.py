"""The weights are a broadcast view that claims bytes it does not hold.

Task: measure_attention_memory
Killed by: TestMeasureAttentionMemory::test_attention_is_really_run
Says: less than the weights alone
"""

import numpy as np


def measure_attention_memory(seq_len, d_model, batch_size=1, dtype=np.float32):
    shape = (batch_size, seq_len, d_model)
    Q, K, V = (np.random.default_rng(seed).standard_normal(shape).astype(dtype) for seed in range(3))
    output = np.zeros_like(Q)
    weights = np.broadcast_to(np.zeros(1, dtype), (batch_size, seq_len, seq_len))
    inputs = Q.nbytes + K.nbytes + V.nbytes
    return {
        "input_memory": inputs,
        "attention_matrix_memory": weights.nbytes,
        "output_memory": output.nbytes,
        "total_memory": inputs + weights.nbytes + output.nbytes,
        "seq_len": seq_len,
        "d_model": d_model,
    }
