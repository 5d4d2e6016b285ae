"""The window is one key too wide.

Task: sliding_window_attention
Killed by: TestSlidingWindowAttention::test_worked_example
Killed by: TestSlidingWindowAttention::test_output_and_gradients
Says: one key too wide
"""


def sliding_window_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int, block: int
) -> torch.Tensor:
    _check(window=window, block=block)
    if q.shape != k.shape:
        raise ValueError(f"q and k must have one shape, got {tuple(q.shape)} and {tuple(k.shape)}")
    if k.shape[:-1] != v.shape[:-1]:
        raise ValueError(f"k and v must agree but for the last axis, got {tuple(k.shape)} and {tuple(v.shape)}")
    return _WindowAttention.apply(q, k, v, window + 1, block)
