"""Only tiles on the diagonal are masked; those at the left edge of the window are taken as full.

Task: sliding_window_attention
Killed by: TestSlidingWindowAttention::test_output_and_gradients
Says: taken as full
"""


def _scores(q_rows, k, rows, cols, window):
    scores = q_rows @ k[..., cols, :].to(q_rows.dtype).mT
    if rows.start >= cols.stop - 1:
        return scores
    i = torch.arange(rows.start, rows.stop, device=scores.device)[:, None]
    j = torch.arange(cols.start, cols.stop, device=scores.device)
    return scores.masked_fill_((j > i) | (j <= i - window), -torch.inf)
