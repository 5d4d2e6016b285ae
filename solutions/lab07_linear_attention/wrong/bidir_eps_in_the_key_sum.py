"""eps is added to the sum of keys.

Task: linear_attention
Killed by: TestLinearAttention::test_eps
Says: multiplied by φ(q)
"""


def linear_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    q, k = feature_map(q), feature_map(k)
    state = k.mT @ v
    k_sum = k.sum(-2)
    out = q @ state
    weight_sum = q @ (k_sum[..., None] + eps)
    return out / weight_sum
