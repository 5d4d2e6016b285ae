"""All products of keys and values are made before they are summed.

Task: linear_attention
Killed by: TestLinearAttention::test_memory_is_linear
Says: is one matrix product
"""


def linear_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    q, k = feature_map(q), feature_map(k)
    state = (k[..., :, None] * v[..., None, :]).sum(-3)
    k_sum = k.sum(-2)
    out = q @ state
    weight_sum = q @ k_sum[..., None]
    return out / (weight_sum + eps)
