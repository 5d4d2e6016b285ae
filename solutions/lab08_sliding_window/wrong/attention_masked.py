"""All scores are made and masked: right values, N² work and memory.

Task: sliding_window_attention
Killed by: TestSlidingWindowAttention::test_empty_tiles_are_skipped
Killed by: TestSlidingWindowAttention::test_work_grows_with_n
Killed by: TestSlidingWindowAttention::test_memory_grows_with_n
Says: all N² scores
"""


def sliding_window_attention(q, k, v, window, block):
    _check(window=window, block=block)
    precise = _precise(q.dtype)
    scores = q.to(precise) @ k.to(precise).mT * q.shape[-1] ** -0.5
    scores = scores.masked_fill(window_mask(q.shape[-2], window), -torch.inf)
    return (scores.softmax(-1) @ v.to(precise)).to(q.dtype)
