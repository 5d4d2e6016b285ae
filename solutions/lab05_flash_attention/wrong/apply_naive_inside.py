"""The Function computes the whole matrix in both passes and only saves little.

Task: FlashAttention
Killed by: TestFlashAttention::test_no_pass_makes_an_n_by_n_tensor
Killed by: TestFlashAttention::test_causal_leaves_tiles_out_in_both_passes
Says: whole row or column of tiles
"""

import torch


class FlashAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, Q, K, V, is_causal=False):
        S = _all_scores(Q, K, is_causal)
        L = S.logsumexp(-1)
        O = (torch.exp(S - L[..., None]) @ V.to(S.dtype)).to(Q.dtype)
        ctx.save_for_backward(Q, K, V, O, L)
        ctx.is_causal = is_causal
        return O

    @staticmethod
    def backward(ctx, dO):
        Q, K, V, O, L = ctx.saved_tensors
        P = torch.exp(_all_scores(Q, K, ctx.is_causal) - L[..., None])
        q, k, v, o, do = (x.to(L.dtype) for x in (Q, K, V, O, dO))
        dS = Q.shape[-1] ** -0.5 * P * (do @ v.mT - (do * o).sum(-1, keepdim=True))
        return (dS @ k).to(Q.dtype), (dS.mT @ q).to(K.dtype), (P.mT @ do).to(V.dtype), None


def _all_scores(Q, K, is_causal):
    S = Q.shape[-1] ** -0.5 * Q.to(_precise(Q.dtype)) @ K.to(_precise(Q.dtype)).mT
    if is_causal:
        S = S.masked_fill(_hidden(slice(0, S.shape[-2]), slice(0, S.shape[-1]), S.device), -torch.inf)
    return S
