"""Each chunk leaves out its last key for the state.

Task: causal_linear_attention_chunked
Killed by: TestChunked::test_chunks
"""


def _one_chunk(q, k, v, state, k_sum, eps):
    q, k = feature_map(q), feature_map(k)
    piece = _read(q, k, v, state, k_sum, eps)
    return piece, state + k[..., :-1, :].mT @ v[..., :-1, :], k_sum + k.sum(-2)[..., None]
