"""torch's own attention under another name.

Task: FlashAttention
Killed by: TestFlashAttention::test_no_pass_makes_an_n_by_n_tensor
Killed by: TestFlashAttention::test_causal_leaves_tiles_out_in_both_passes
Says: torch's own attention
"""

import torch


class FlashAttention:
    @staticmethod
    def apply(Q, K, V, is_causal=False):
        heads = (x.reshape(1, -1, *x.shape[-2:]) for x in (Q, K, V))
        O = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=is_causal)
        return O.reshape(*Q.shape[:-1], V.shape[-1])
