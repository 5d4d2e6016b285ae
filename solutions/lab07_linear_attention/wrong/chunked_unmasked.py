"""Within a chunk nothing is masked.

Task: causal_linear_attention_chunked
Killed by: TestChunked::test_chunks
Says: within a chunk nothing is masked
"""


def _read(q, k, v, state, k_sum, eps):
    weights = q @ k.mT
    out = weights @ v + q @ state
    weight_sum = weights.sum(-1, keepdim=True) + q @ k_sum
    return out / (weight_sum + eps)
