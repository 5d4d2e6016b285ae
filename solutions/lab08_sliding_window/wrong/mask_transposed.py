"""Rows are keys and columns are queries.

Task: window_mask
Killed by: TestWindowMask::test_pairs
Says: rows and columns are exchanged
"""


def window_mask(seq_len, window):
    _check(seq_len=seq_len, window=window)
    i, j = torch.arange(seq_len)[:, None], torch.arange(seq_len)
    return (i > j) | (i <= j - window)
