"""Tiles are always converted to float32.

Task: flash_backward
Killed by: TestFlashBackward::test_float64_is_computed_in_float64
Says: same dtype
"""

import torch


def flash_backward(Q, K, V, O, L, dO, causal=False, block_q=64, block_k=64):
    _check(Q, K, V, block_q, block_k)
    N_q, N_k, scale, precise = Q.shape[-2], K.shape[-2], Q.shape[-1] ** -0.5, torch.float32
    D = (dO.to(precise) * O.to(precise)).sum(-1)
    dQ = torch.zeros_like(Q, dtype=precise)  # every tile of keys adds to it
    dK, dV = torch.zeros_like(K), torch.zeros_like(V)
    for cols in _blocks(N_k, block_k):
        K_j, V_j = K[..., cols, :].to(precise), V[..., cols, :].to(precise)
        dK_j, dV_j = torch.zeros_like(K_j), torch.zeros_like(V_j)
        for rows in _blocks(N_q, block_q):
            if causal and rows.stop <= cols.start:
                continue
            Q_i, dO_i = Q[..., rows, :].to(precise), dO[..., rows, :].to(precise)
            S = scale * Q_i @ K_j.mT
            if causal:
                S = S.masked_fill(_hidden(rows, cols, S.device), -torch.inf)
            P = torch.exp(S - L[..., rows, None])
            dV_j += P.mT @ dO_i
            dS = P * (dO_i @ V_j.mT - D[..., rows, None])
            dQ[..., rows, :] += scale * dS @ K_j
            dK_j += scale * dS.mT @ Q_i
        dK[..., cols, :], dV[..., cols, :] = dK_j.to(K.dtype), dV_j.to(V.dtype)
    return dQ.to(Q.dtype), dK, dV
