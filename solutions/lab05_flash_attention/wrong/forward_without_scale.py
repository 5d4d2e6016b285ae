"""The scores are never divided by √d.

Task: flash_forward
Killed by: TestFlashForward::test_odd_lengths
Says: not divided by √d
"""

import torch


def flash_forward(Q, K, V, causal=False, block_q=64, block_k=64):
    _check(Q, K, V, block_q, block_k)
    N_q, N_k, scale, precise = Q.shape[-2], K.shape[-2], 1.0, _precise(Q.dtype)
    O = Q.new_empty(*Q.shape[:-1], V.shape[-1])
    L = Q.new_empty(Q.shape[:-1], dtype=precise)
    for rows in _blocks(N_q, block_q):
        Q_i = Q[..., rows, :].to(precise)
        m = Q_i.new_full(Q_i.shape[:-1], -torch.inf)
        l = torch.zeros_like(m)
        O_i = Q_i.new_zeros(*m.shape, V.shape[-1])
        for cols in _blocks(_keys_seen(rows, N_k, causal), block_k, N_k):
            S = scale * Q_i @ K[..., cols, :].to(precise).mT
            if causal:
                S = S.masked_fill(_hidden(rows, cols, S.device), -torch.inf)
            m_new = torch.maximum(m, S.amax(-1))  # finite: every query sees a key of the first tile
            P = torch.exp(S - m_new[..., None])
            alpha = torch.exp(m - m_new)
            l = alpha * l + P.sum(-1)
            O_i = alpha[..., None] * O_i + P @ V[..., cols, :].to(precise)
            m = m_new
        O[..., rows, :] = (O_i / l[..., None]).to(O.dtype) if N_k else 0
        L[..., rows] = m + l.log()
    return O, L
