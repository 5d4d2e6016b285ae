"""Everything is computed in the inputs' dtype, sums included.

Task: FlashAttention
Killed by: TestFlashAttention::test_bfloat16
"""

import torch


class FlashAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, Q, K, V, is_causal=False):
        O, L = _short_sums(Q, K, V, is_causal)
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


def _short_sums(Q, K, V, is_causal):
    rows_out, lse = [], []
    for rows in _blocks(Q.shape[-2], 16):
        q = Q.shape[-1] ** -0.5 * Q[..., rows, :]
        m, l, o = q.new_full(q.shape[:-1], -torch.inf), 0.0, 0.0
        for cols in _blocks(_keys_seen(rows, K.shape[-2], is_causal), 4, K.shape[-2]):
            S = q @ K[..., cols, :].mT
            if is_causal:
                S = S.masked_fill(_hidden(rows, cols, S.device), -torch.inf)
            m_new = torch.maximum(m, S.amax(-1))
            P, alpha = torch.exp(S - m_new[..., None]), torch.exp(m - m_new)
            l, o, m = alpha * l + P.sum(-1), alpha[..., None] * o + P @ V[..., cols, :], m_new
        rows_out.append(o / l[..., None])
        lse.append((m + l.log()).to(_precise(Q.dtype)))
    return torch.cat(rows_out, -2), torch.cat(lse, -1)
