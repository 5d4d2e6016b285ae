"""FlexAttention's block mask is made for every batch entry and head.

Task: memory_breakdown
Killed by: TestMemoryBreakdown::test_flex_block_mask
Says: eight small ones
"""


def _variant(variant, seq_len, window, block):

    def nothing():
        return None

    def visible(_batch, _head, i, j):
        return (j <= i) & (j > i - window)

    def block_mask():
        from torch.nn.attention.flex_attention import create_block_mask

        return create_block_mask(visible, 2, 2, seq_len, seq_len, device="cpu", BLOCK_SIZE=block)

    def flex(q, k, v, mask):
        from torch.nn.attention.flex_attention import flex_attention

        return flex_attention(q, k, v, block_mask=mask)

    def naive(q, k, v, mask):
        scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(mask, -torch.inf)
        return scores.softmax(-1) @ v

    return {
        "naive_mask": (lambda: window_mask(seq_len, window), naive),
        "flex_block_mask": (block_mask, flex),
        "causal_sdpa": (nothing, lambda q, k, v, _: F.scaled_dot_product_attention(q, k, v, is_causal=True)),
        "tiled_window": (nothing, lambda q, k, v, _: sliding_window_attention(q, k, v, window, block)),
    }[variant]
