"""The chunk's own keys are added to the state before it is read.

Task: causal_linear_attention_chunked
Killed by: TestChunked::test_chunks
Says: count twice
"""


def _one_chunk(q, k, v, state, k_sum, eps):
    q, k = feature_map(q), feature_map(k)
    state, k_sum = state + k.mT @ v, k_sum + k.sum(-2)[..., None]
    return _read(q, k, v, state, k_sum, eps), state, k_sum
