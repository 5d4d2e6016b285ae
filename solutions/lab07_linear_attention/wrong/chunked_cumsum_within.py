"""Within a chunk every position has a state.

Task: causal_linear_attention_chunked
Killed by: TestChunked::test_one_state_and_one_chunk
Says: a state for each position of a chunk
"""


def _one_chunk(q, k, v, state, k_sum, eps):
    q, k = feature_map(q), feature_map(k)
    states = (k[..., :, None] * v[..., None, :]).cumsum(-3) + state[..., None, :, :]
    sums = k.cumsum(-2) + k_sum.mT
    piece = (q[..., None, :] @ states)[..., 0, :] / ((q * sums).sum(-1, keepdim=True) + eps)
    return piece, state + k.mT @ v, k_sum + k.sum(-2)[..., None]


def _read(q, k, v, state, k_sum, eps):
    weights = (q @ k.mT).tril_()
    out = weights @ v + q @ state
    weight_sum = weights.sum(-1, keepdim=True) + q @ k_sum
    return out / (weight_sum + eps)
