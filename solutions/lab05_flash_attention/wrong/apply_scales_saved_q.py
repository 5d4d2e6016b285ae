"""backward multiplies the saved Q by 1/√d in place.

Task: FlashAttention
Killed by: TestFlashAttention::test_backward_twice
Says: changes a saved tensor in place
"""

import torch


class FlashAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, Q, K, V, is_causal=False):
        O, L = flash_forward(Q, K, V, is_causal)
        ctx.save_for_backward(Q, K, V, O, L)
        ctx.is_causal = is_causal
        return O

    @staticmethod
    def backward(ctx, dO):
        Q, K, V, O, L = ctx.saved_tensors
        gradients = flash_backward(Q, K, V, O, L, dO, ctx.is_causal)
        Q.data.mul_(Q.shape[-1] ** -0.5)
        dQ, dK, dV = (
            gradient if needed else None for gradient, needed in zip(gradients, ctx.needs_input_grad, strict=False)
        )
        return dQ, dK, dV, None
