"""The output is not divided by the sum of the weights.

Task: linear_attention
Killed by: TestLinearAttention::test_worked_example
Killed by: TestLinearAttention::test_values
Says: is not divided
"""


def linear_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    q, k = feature_map(q), feature_map(k)
    state = k.mT @ v
    k_sum = k.sum(-2)
    out = q @ state
    weight_sum = q @ k_sum[..., None]
    return out
