"""True stands where a key is seen, as scaled_dot_product_attention wants it.

Task: window_mask
Killed by: TestWindowMask::test_pairs
Says: True and False are exchanged
"""


def window_mask(seq_len, window):
    _check(seq_len=seq_len, window=window)
    i, j = torch.arange(seq_len)[:, None], torch.arange(seq_len)
    return ~((j > i) | (j <= i - window))
