"""The states are those before each position.

Task: causal_linear_attention_cumsum
Killed by: TestCumsum::test_values
Says: does not see the key of its own
"""


def causal_linear_attention_cumsum(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, eps: float = 1e-6
) -> torch.Tensor:
    q, k = feature_map(q), feature_map(k)
    products = k[..., :, None] * v[..., None, :]
    states = products.cumsum(-3) - products
    k_sums = k.cumsum(-2) - k
    out = (q[..., None, :] @ states)[..., 0, :]
    weight_sum = (q[..., None, :] @ k_sums[..., :, None])[..., 0]
    return out / (weight_sum + eps)
