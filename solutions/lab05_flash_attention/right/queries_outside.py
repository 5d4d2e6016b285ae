"""The backward pass with queries outside, dQ finished row by row, in einsum, sums in float64 where it costs nothing."""

import torch


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
