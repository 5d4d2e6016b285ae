"""backward multiplies dO in place, which the expanded gradient of a sum does not allow.

Task: FlashAttention
Killed by: TestFlashAttention::test_gradient_of_a_sum
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
        dO.mul_(1.0)
        gradients = flash_backward(*ctx.saved_tensors, dO, ctx.is_causal)
        dQ, dK, dV = (
            gradient if needed else None for gradient, needed in zip(gradients, ctx.needs_input_grad, strict=False)
        )
        return dQ, dK, dV, None
