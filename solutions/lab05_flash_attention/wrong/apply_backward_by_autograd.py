"""backward builds the graph of plain attention and lets autograd differentiate it.

Task: FlashAttention
Killed by: TestFlashAttention::test_no_pass_makes_an_n_by_n_tensor
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
        inputs = [x.detach().requires_grad_() for x in ctx.saved_tensors[:3]]
        with torch.enable_grad():
            q, k, v = (x.to(_precise(x.dtype)) for x in inputs)
            S = q @ k.mT * q.shape[-1] ** -0.5
            if ctx.is_causal:
                S = S.masked_fill(_hidden(slice(0, S.shape[-2]), slice(0, S.shape[-1]), S.device), -torch.inf)
            total = (S.softmax(-1) @ v * dO).sum()
        gradients = torch.autograd.grad(total, inputs)
        dQ, dK, dV = (
            gradient if needed else None for gradient, needed in zip(gradients, ctx.needs_input_grad, strict=False)
        )
        return dQ, dK, dV, None
