"""backward empties O when it is done with it, though O is the caller's too.

Task: FlashAttention
Killed by: TestFlashAttention::test_arguments_are_left_alone
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
        gradients = flash_backward(*ctx.saved_tensors, dO, ctx.is_causal)
        ctx.saved_tensors[3].data.zero_()
        dQ, dK, dV = (
            gradient if needed else None for gradient, needed in zip(gradients, ctx.needs_input_grad, strict=False)
        )
        return dQ, dK, dV, None
