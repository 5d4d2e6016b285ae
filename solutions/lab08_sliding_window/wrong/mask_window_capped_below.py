"""A window larger than the sequence is cut to N − 1.

Task: window_mask
Killed by: TestWindowMask::test_pairs
Killed by: TestWindowMask::test_every_small_window
"""


def window_mask(seq_len, window):
    _check(seq_len=seq_len, window=window)
    i, j = torch.arange(seq_len)[:, None], torch.arange(seq_len)
    return (j > i) | (j <= i - min(window, max(1, seq_len - 1)))
