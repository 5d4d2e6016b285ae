"""The window reaches to both sides, as in an encoder.

Task: window_mask
Killed by: TestWindowMask::test_pairs
Says: both sides
"""


def window_mask(seq_len, window):
    _check(seq_len=seq_len, window=window)
    i, j = torch.arange(seq_len)[:, None], torch.arange(seq_len)
    return (i - j >= window) | (j - i >= window)
