"""Masked N × N weights under the name of cumsum.

Task: causal_linear_attention_cumsum
Killed by: TestCumsum::test_no_weights
Says: N × N weights
"""


def causal_linear_attention_cumsum(q, k, v, eps=1e-6):
    weights = (feature_map(q) @ feature_map(k).mT).tril()
    return weights @ v / (weights.sum(-1, keepdim=True) + eps)
