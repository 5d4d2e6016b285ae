"""Reading the states makes a third array of all products.

Task: causal_linear_attention_cumsum
Killed by: TestCumsum::test_two_arrays_of_states
Says: a third array
"""


def causal_linear_attention_cumsum(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, eps: float = 1e-6
) -> torch.Tensor:
    q, k = feature_map(q), feature_map(k)
    products = k[..., :, None] * v[..., None, :]
    states = products.cumsum(-3)
    k_sums = k.cumsum(-2)
    out = (q[..., :, None] * states).sum(-2)
    weight_sum = (q[..., None, :] @ k_sums[..., :, None])[..., 0]
    return out / (weight_sum + eps)
