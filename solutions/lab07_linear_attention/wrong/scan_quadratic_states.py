"""The scan is a product with a triangle of chunks by chunks ones.

Task: causal_linear_attention_scan
Killed by: TestScan::test_work_is_linear
Says: goes back to all the keys
"""


def _exclusive_scan(x):
    n = x.shape[-3]
    earlier = torch.ones(n, n, dtype=x.dtype, device=x.device).tril(-1)
    return (earlier @ x.flatten(-2)).unflatten(-1, x.shape[-2:])
