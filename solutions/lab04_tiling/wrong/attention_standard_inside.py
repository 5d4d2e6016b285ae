"""Standard attention is called inside, and the tiles are only spoken of.

Task: tiled_attention
Killed by: TestTiledAttention::test_memory
Killed by: TestTiledAttention::test_memory_at_4096
Killed by: TestTiledAttention::test_memory_of_a_batch
Says: one N × N array
"""

import numpy as np


def tiled_attention(Q, K, V, block_q, block_k, causal=False, mask=None):
    _check_blocks(block_q, block_k)
    batch, mask = _check_shapes(Q, K, V, mask)
    N_q, N_k = Q.shape[-2], K.shape[-2]
    if N_k == 0:
        return np.zeros((*batch, N_q, V.shape[-1]), Q.dtype)
    precise = np.result_type(Q, np.float32)
    S = (Q.astype(precise) * Q.shape[-1] ** -0.5) @ K.astype(precise).swapaxes(-1, -2)
    if causal:
        S[..., ~np.tri(N_q, N_k, dtype=bool)] = -np.inf
    if mask is not None:
        S = np.where(mask, -np.inf, S)
    m = S.max(axis=-1, keepdims=True)
    S -= np.where(m == -np.inf, 0, m)
    np.exp(S, out=S)
    l = S.sum(axis=-1, keepdims=True)
    return (S @ V.astype(precise) / np.where(l == 0, 1, l)).astype(Q.dtype)
