"""All leading axes are folded into one long sequence: batch entries look at each other.

Task: FlashAttention
Killed by: TestFlashAttention::test_leading_dimensions
"""

import torch


class FlashAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, Q, K, V, is_causal=False):
        O, L = flash_forward(*(x.reshape(-1, x.shape[-1]) for x in (Q, K, V)), is_causal)
        O, L = O.reshape(*Q.shape[:-1], V.shape[-1]), L.reshape(Q.shape[:-1])
        ctx.save_for_backward(Q, K, V, O, L)
        ctx.is_causal = is_causal
        return O

    @staticmethod
    def backward(ctx, dO):
        gradients = flash_backward(*ctx.saved_tensors, dO, ctx.is_causal)
        dQ, dK, dV = (
            gradient if needed else None for gradient, needed in zip(gradients, ctx.needs_input_grad, strict=False)
        )
        return dQ, dK, dV, None
