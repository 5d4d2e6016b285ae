"""Tiles above the diagonal are skipped, those left of the window are masked.

Task: sliding_window_attention
Killed by: TestSlidingWindowAttention::test_empty_tiles_are_skipped
Says: leave them out
"""


def _row_blocks(seq_len, window, block):
    for start in range(0, seq_len, block):
        rows = slice(start, min(start + block, seq_len))
        first = 0
        yield rows, [slice(at, min(at + block, seq_len)) for at in range(first, rows.stop, block)]
