"""The window is one key too wide: FlashAttention's window_size=(window, 0).

Task: window_mask
Killed by: TestWindowMask::test_worked_example
Killed by: TestWindowMask::test_pairs
Says: one key too wide
"""


def window_mask(seq_len, window):
    _check(seq_len=seq_len, window=window)
    i, j = torch.arange(seq_len)[:, None], torch.arange(seq_len)
    return (j > i) | (j < i - window)
