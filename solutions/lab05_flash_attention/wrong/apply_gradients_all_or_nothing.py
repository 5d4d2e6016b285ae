"""No gradient is returned unless Q needs one.

Task: FlashAttention
Killed by: TestFlashAttention::test_inputs_that_need_no_gradient
Says: never arrived
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
        return (*gradients, None) if ctx.needs_input_grad[0] else (None, None, None, None)
