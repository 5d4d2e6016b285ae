"""No backward pass of its own: autograd differentiates the tiled loop and keeps every tile.

Task: FlashAttention
Killed by: TestFlashAttention::test_saved_are_q_k_v_o_and_one_l
"""

import torch


class FlashAttention:
    @staticmethod
    def apply(Q, K, V, is_causal=False):
        precise, rows_out = _precise(Q.dtype), []
        for rows in _blocks(Q.shape[-2], 64):
            q = Q.shape[-1] ** -0.5 * Q[..., rows, :].to(precise)
            m, l, o = q.new_full(q.shape[:-1], -torch.inf), 0.0, 0.0
            for cols in _blocks(_keys_seen(rows, K.shape[-2], is_causal), 64, K.shape[-2]):
                S = q @ K[..., cols, :].to(precise).mT
                if is_causal:
                    S = S.masked_fill(_hidden(rows, cols, S.device), -torch.inf)
                m_new = torch.maximum(m, S.amax(-1)).detach()
                P, alpha = torch.exp(S - m_new[..., None]), torch.exp(m - m_new)
                l, o, m = alpha * l + P.sum(-1), alpha[..., None] * o + P @ V[..., cols, :].to(precise), m_new
            rows_out.append(o / l[..., None])
        return torch.cat(rows_out, -2).to(Q.dtype)
