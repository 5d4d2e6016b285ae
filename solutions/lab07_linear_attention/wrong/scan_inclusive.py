"""The scan is inclusive: a chunk's own keys count twice.

Task: causal_linear_attention_scan
Killed by: TestScan::test_chunks
Says: count twice
"""


def causal_linear_attention_scan(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, chunk: int = 64, eps: float = 1e-6
) -> torch.Tensor:
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1, got {chunk}")
    n = q.shape[-2]
    chunk = min(chunk, n)
    q, k, v = _in_chunks(feature_map(q), chunk), _in_chunks(feature_map(k), chunk), _in_chunks(v, chunk)
    states = _exclusive_scan(k.mT @ v) + k.mT @ v
    k_sums = _exclusive_scan(k.sum(-2)[..., None]) + k.sum(-2)[..., None]
    weights = (q @ k.mT).tril_()
    out = weights @ v + q @ states
    weight_sum = weights.sum(-1, keepdim=True) + q @ k_sums
    return (out / (weight_sum + eps)).flatten(-3, -2)[..., :n, :]
