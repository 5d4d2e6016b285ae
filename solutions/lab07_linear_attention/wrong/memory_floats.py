"""Bytes are floats.

Task: linear_attention_memory
Killed by: TestMemoryModel::test_whole_numbers
Says: an int
"""


def linear_attention_memory(batch: int, heads: int, seq_len: int, d: int, dtype_bytes: int) -> dict[str, int]:
    n, c = seq_len, min(seq_len, 64)
    state = d * d + d
    chunked = max(
        (n - c) * d + state + 5 * c * d + c * c,
        n * d + 2 * c * d + state + 2 * d * d,
        2 * n * d + state,
    )
    elements = {
        "inputs": 3 * n * d,
        "standard_peak": 2 * n * n + n * d,
        "linear_bidir_peak": 4 * n * d + state + 2 * n,
        "linear_causal_peak": 2 * n * d * d + 5 * n * d + 2 * n,
        "linear_chunked_peak": chunked,
    }
    return {name: batch * heads * count * float(dtype_bytes) for name, count in elements.items()}
