"""The chunked peak is taken at the end only.

Task: linear_attention_memory
Killed by: TestMemoryModel::test_every_size
Says: only the end is looked at
"""


def linear_attention_memory(batch: int, heads: int, seq_len: int, d: int, dtype_bytes: int) -> dict[str, int]:
    n, c = seq_len, min(seq_len, 64)
    state = d * d + d
    chunked = max(
        0,
        0,
        2 * n * d + state,
    )
    elements = {
        "inputs": 3 * n * d,
        "standard_peak": 2 * n * n + n * d,
        "linear_bidir_peak": 4 * n * d + state + 2 * n,
        "linear_causal_peak": 2 * n * d * d + 5 * n * d + 2 * n,
        "linear_chunked_peak": chunked,
    }
    return {name: batch * heads * count * dtype_bytes for name, count in elements.items()}
