"""Forward rescales by a diagonal matrix, as formulas do; backward has queries outside, dQ row by row, in einsum."""

import torch


def flash_forward(Q, K, V, causal=False, block_q=64, block_k=64):
    _check(Q, K, V, block_q, block_k)
    N_k, scale, precise = K.shape[-2], Q.shape[-1] ** -0.5, _precise(Q.dtype)
    O = Q.new_zeros(*Q.shape[:-1], V.shape[-1])
    L = Q.new_full(Q.shape[:-1], -torch.inf, dtype=precise)
    for rows in _blocks(Q.shape[-2], block_q):
        q = Q[..., rows, :].to(precise) * scale
        m, l = L[..., rows].clone(), torch.zeros_like(L[..., rows])
        o = torch.zeros_like(O[..., rows, :], dtype=precise)
        for cols in _blocks(_keys_seen(rows, N_k, causal), block_k, N_k):
            S = q @ K[..., cols, :].to(precise).mT
            if causal:
                S = S.masked_fill(_hidden(rows, cols, S.device), -torch.inf)
            m_new = torch.maximum(m, S.amax(-1))
            P, alpha = torch.exp(S - m_new[..., None]), torch.exp(m - m_new)
            l = alpha * l + P.sum(-1)
            o = torch.diag_embed(alpha) @ o + P @ V[..., cols, :].to(precise)
            m = m_new
        if N_k:
            O[..., rows, :] = (torch.diag_embed(1 / l) @ o).to(O.dtype)
            L[..., rows] = m + l.log()
    return O, L


def flash_backward(Q, K, V, O, L, dO, causal=False, block_q=64, block_k=64):
    _check(Q, K, V, block_q, block_k)
    precise, scale = L.dtype, Q.shape[-1] ** -0.5
    dQ = torch.empty_like(Q)
    dK, dV = torch.zeros_like(K, dtype=precise), torch.zeros_like(V, dtype=precise)
    for rows in _blocks(Q.shape[-2], block_q):
        q, o, do = (x[..., rows, :].to(precise) for x in (Q, O, dO))
        D = torch.einsum("...ic,...ic->...i", do, o)
        dq = torch.zeros_like(q)
        for cols in _blocks(_keys_seen(rows, K.shape[-2], causal), block_k, K.shape[-2]):
            k, v = K[..., cols, :].to(precise), V[..., cols, :].to(precise)
            S = torch.einsum("...id,...jd->...ij", q, k) * scale
            P = torch.exp(S - L[..., rows, None])
            if causal:
                P = torch.where(_hidden(rows, cols, P.device), 0, P)
            dP = torch.einsum("...ic,...jc->...ij", do, v)
            dS = P * (dP - D[..., None]) * scale
            dq += torch.einsum("...ij,...jd->...id", dS, k)
            dK[..., cols, :] += torch.einsum("...ij,...id->...jd", dS, q)
            dV[..., cols, :] += torch.einsum("...ij,...ic->...jc", P, do)
        dQ[..., rows, :] = dq.to(Q.dtype)
    return dQ, dK.to(K.dtype), dV.to(V.dtype)
