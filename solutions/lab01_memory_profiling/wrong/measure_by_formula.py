"""The sizes come from a formula and no array is ever made.

Task: measure_attention_memory
Killed by: TestMeasureAttentionMemory::test_attention_is_really_run
Says: sizes computed by formula
"""

import numpy as np


def measure_attention_memory(seq_len, d_model, batch_size=1, dtype=np.float32):
    rows = batch_size * seq_len * np.dtype(dtype).itemsize
    sizes = {
        "input_memory": 3 * rows * d_model,
        "attention_matrix_memory": rows * seq_len,
        "output_memory": rows * d_model,
    }
    return {**sizes, "total_memory": sum(sizes.values()), "seq_len": seq_len, "d_model": d_model}
