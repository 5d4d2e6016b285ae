"""The tiles of the weights are kept in a list on ctx.

Task: FlashAttention
Killed by: TestFlashAttention::test_forward_leaves_nothing_else_behind
Says: attribute of ctx
"""

import torch


class FlashAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, Q, K, V, is_causal=False):
        O, L = flash_forward(Q, K, V, is_causal)
        ctx.save_for_backward(Q, K, V, O, L)
        ctx.tiles = [
            torch.exp(Q.shape[-1] ** -0.5 * Q.to(L.dtype) @ k.to(L.dtype).mT - L[..., None]) for k in K.split(64, -2)
        ]
        ctx.is_causal = is_causal
        return O

    @staticmethod
    def backward(ctx, dO):
        gradients = flash_backward(*ctx.saved_tensors, dO, ctx.is_causal)
        dQ, dK, dV = (
            gradient if needed else None for gradient, needed in zip(gradients, ctx.needs_input_grad, strict=False)
        )
        return dQ, dK, dV, None
