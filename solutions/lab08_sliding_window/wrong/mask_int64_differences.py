"""i − j is made for all pairs, 8 bytes each.

Task: window_mask
Killed by: TestWindowMask::test_is_made_from_bytes
Says: int64
"""


def window_mask(seq_len, window):
    _check(seq_len=seq_len, window=window)
    i, j = torch.arange(seq_len)[:, None], torch.arange(seq_len)
    return (i - j < 0) | (i - j >= window)
