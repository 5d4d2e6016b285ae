"""Sizes are given in MiB.

Task: measure_attention_memory
Killed by: TestMeasureAttentionMemory::test_worked_example
Says: the value is in MiB
"""

import numpy as np
from profiling import standard_attention


def measure_attention_memory(seq_len, d_model, batch_size=1, dtype=np.float32):
    shape = (batch_size, seq_len, d_model)
    Q, K, V = (np.random.default_rng(seed).standard_normal(shape).astype(dtype) for seed in range(3))
    output, weights = standard_attention(Q, K, V)
    inputs = (Q.nbytes + K.nbytes + V.nbytes) / 2**20
    return {
        "input_memory": inputs,
        "attention_matrix_memory": weights.nbytes / 2**20,
        "output_memory": output.nbytes / 2**20,
        "total_memory": inputs + (weights.nbytes + output.nbytes) / 2**20,
        "seq_len": seq_len,
        "d_model": d_model,
    }
