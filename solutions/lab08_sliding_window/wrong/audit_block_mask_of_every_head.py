"""FlexAttention's block mask is made for every batch entry and head.

Task: memory_breakdown
Killed by: TestMemoryBreakdown::test_flex_block_mask
Says: eight small ones
"""

_of_one_head = _variant


def _variant(variant, seq_len, window, block):
    if variant != "flex_block_mask":
        return _of_one_head(variant, seq_len, window, block)

    def visible(_batch, _head, i, j):
        return (j <= i) & (j > i - window)

    def block_mask():
        from torch.nn.attention.flex_attention import create_block_mask

        return create_block_mask(visible, 2, 2, seq_len, seq_len, device="cpu", BLOCK_SIZE=block)

    return block_mask, _of_one_head(variant, seq_len, window, block)[1]
