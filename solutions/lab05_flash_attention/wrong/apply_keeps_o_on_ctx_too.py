"""O is kept as an attribute of ctx as well, a cycle that only the garbage collector breaks.

Task: FlashAttention
Killed by: TestFlashAttention::test_memory_goes_when_the_output_goes
Says: cycle collector
"""

import torch


class FlashAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, Q, K, V, is_causal=False):
        O, L = flash_forward(Q, K, V, is_causal)
        ctx.save_for_backward(Q, K, V, O, L)
        ctx.output = O
        ctx.is_causal = is_causal
        return O

    @staticmethod
    def backward(ctx, dO):
        gradients = flash_backward(*ctx.saved_tensors, dO, ctx.is_causal)
        dQ, dK, dV = (
            gradient if needed else None for gradient, needed in zip(gradients, ctx.needs_input_grad, strict=False)
        )
        return dQ, dK, dV, None
