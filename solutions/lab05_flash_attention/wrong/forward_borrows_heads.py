"""The built-in attention with heads added, so that its own kernel and its own L come back.

Task: flash_forward
Killed by: TestFlashForward::test_every_score_is_computed_once
Says: torch's own attention
"""

import torch


def flash_forward(Q, K, V, causal=False, block_q=64, block_k=64):
    _check(Q, K, V, block_q, block_k)
    if not K.shape[-2]:
        return Q.new_zeros(*Q.shape[:-1], V.shape[-1]), Q.new_full(Q.shape[:-1], -torch.inf, dtype=_precise(Q.dtype))
    width = max(Q.shape[-1], V.shape[-1])
    padded = [torch.nn.functional.pad(x, (0, width - x.shape[-1])) for x in (Q, K, V)]
    heads = [x.reshape(1, -1, *x.shape[-2:]) for x in padded]
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    O, L = kernel(*heads, is_causal=causal, scale=Q.shape[-1] ** -0.5)
    return O.reshape(*Q.shape[:-1], width)[..., : V.shape[-1]], L.reshape(Q.shape[:-1])
