"""The window is one key too narrow: the query's own key is not counted.

Task: window_mask
Killed by: TestWindowMask::test_pairs
Says: one key too narrow
"""


def window_mask(seq_len, window):
    _check(seq_len=seq_len, window=window)
    i, j = torch.arange(seq_len)[:, None], torch.arange(seq_len)
    return (j > i) | (j <= i - window + 1)
