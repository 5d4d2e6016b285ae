"""An odd number of chunks loses what is left over.

Task: causal_linear_attention_scan
Killed by: TestScan::test_chunks
"""


def _exclusive_scan(x):
    n = x.shape[-3]
    if n == 1:
        return torch.zeros_like(x)
    if n % 2:
        return F.pad(_exclusive_scan(x[..., :-1, :, :]), (0, 0, 0, 0, 0, 1))
    first, second = x[..., 0::2, :, :], x[..., 1::2, :, :]
    before = _exclusive_scan(first + second)
    return torch.stack([before, before + first], -3).flatten(-4, -3)
