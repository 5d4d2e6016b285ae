"""The mask dies when it is made: attention makes its own, within the forward pass.

Task: memory_breakdown
Killed by: TestMemoryBreakdown::test_naive_mask
Says: mask of 'naive_mask'
"""

_with_mask = _variant


def _variant(variant, seq_len, window, block):
    make_mask, attention = _with_mask(variant, seq_len, window, block)

    def make_and_drop():
        make_mask()

    return make_and_drop, lambda q, k, v, _: attention(q, k, v, make_mask())
