"""Sums are kept in float32, so is the output.

Task: linear_attention
Killed by: TestLinearAttention::test_inputs_stay
Says: expected their dtype
"""


def linear_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    q, k = feature_map(q.float()), feature_map(k.float())
    state = k.mT @ v.float()
    k_sum = k.sum(-2)
    out = q @ state
    weight_sum = q @ k_sum[..., None]
    return out / (weight_sum + eps)
