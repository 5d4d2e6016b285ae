"""FlashAttention-1's order: keys outside, queries inside, O divided at every step; the backward pass alike."""

import torch


def flash_forward(Q, K, V, causal=False, block_q=64, block_k=64):
    _check(Q, K, V, block_q, block_k)
    precise = _precise(Q.dtype)
    O = torch.zeros(*Q.shape[:-1], V.shape[-1], dtype=precise, device=Q.device)
    m = torch.full(Q.shape[:-1], -torch.inf, dtype=precise, device=Q.device)
    l = torch.zeros_like(m)
    for cols in _blocks(K.shape[-2], block_k):
        for rows in _blocks(Q.shape[-2], block_q):
            if causal and rows.stop <= cols.start:
                continue
            S = Q[..., rows, :].to(precise) @ K[..., cols, :].to(precise).mT / Q.shape[-1] ** 0.5
            if causal:
                S = S.masked_fill(_hidden(rows, cols, S.device), -torch.inf)
            m_tile = S.amax(-1).clamp(min=torch.finfo(precise).min)  # a row of the tile may see no key
            P = torch.exp(S - m_tile[..., None])
            m_new = torch.maximum(m[..., rows], m_tile)
            old, new = torch.exp(m[..., rows] - m_new), torch.exp(m_tile - m_new)
            l_new = old * l[..., rows] + new * P.sum(-1)
            kept = (l[..., rows] * old / l_new)[..., None] * O[..., rows, :]
            O[..., rows, :] = kept + (new / l_new)[..., None] * (P @ V[..., cols, :].to(precise))
            m[..., rows], l[..., rows] = m_new, l_new
    return O.to(Q.dtype), m + l.log()
