"""Later keys are seen: only the left edge is applied.

Task: window_mask
Killed by: TestWindowMask::test_pairs
Says: later keys are not masked out
"""


def window_mask(seq_len, window):
    _check(seq_len=seq_len, window=window)
    i, j = torch.arange(seq_len)[:, None], torch.arange(seq_len)
    return (j <= i - window) | (j < 0)
