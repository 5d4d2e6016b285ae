"""The weights are saved for the backward pass.

Task: FlashAttention
Killed by: TestFlashAttention::test_saved_are_q_k_v_o_and_one_l
Killed by: TestFlashAttention::test_forward_leaves_nothing_else_behind
Says: N_q × N_k matrix
"""

import torch


class FlashAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, Q, K, V, is_causal=False):
        O, L = flash_forward(Q, K, V, is_causal)
        S = Q.shape[-1] ** -0.5 * Q.to(L.dtype) @ K.to(L.dtype).mT
        if is_causal:
            S = S.masked_fill(_hidden(slice(0, S.shape[-2]), slice(0, S.shape[-1]), S.device), -torch.inf)
        ctx.save_for_backward(Q, K, V, O, torch.exp(S - L[..., None]))
        return O

    @staticmethod
    def backward(ctx, dO):
        Q, K, V, O, P = ctx.saved_tensors
        q, k, v, o, do = (x.to(P.dtype) for x in (Q, K, V, O, dO))
        dS = Q.shape[-1] ** -0.5 * P * (do @ v.mT - (do * o).sum(-1, keepdim=True))
        return (dS @ k).to(Q.dtype), (dS.mT @ q).to(K.dtype), (P.mT @ do).to(V.dtype), None
