"""The N × N weights are made.

Task: linear_attention
Killed by: TestLinearAttention::test_memory_is_linear
Killed by: TestLinearAttention::test_work_is_linear
Says: multiply φ(k)ᵀ and v first
"""


def linear_attention(q, k, v, eps=1e-6):
    weights = feature_map(q) @ feature_map(k).mT
    return weights @ v / (weights.sum(-1, keepdim=True) + eps)
