"""The estimate is a measurement under another name.

Task: estimate_attention_memory
Killed by: TestEstimateAttentionMemory::test_nothing_is_allocated
Says: at most 16,384 are allowed
"""

import numpy as np
from profiling import measure_attention_memory


def estimate_attention_memory(seq_len, d_model, dtype_bytes=4, batch_size=1):
    dtype = {2: np.float16, 4: np.float32, 8: np.float64}[dtype_bytes]
    stats = measure_attention_memory(seq_len, d_model, batch_size, dtype)
    one_input = stats["input_memory"] // 3
    return {
        **{f"{name}_memory": one_input for name in "QKV"},
        **{key: stats[key] for key in ("attention_matrix_memory", "output_memory", "total_memory")},
    }
