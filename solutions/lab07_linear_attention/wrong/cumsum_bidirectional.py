"""Every query sees every key.

Task: causal_linear_attention_cumsum
Killed by: TestCumsum::test_worked_example
Killed by: TestCumsum::test_values
Says: bidirectional
"""


def causal_linear_attention_cumsum(q, k, v, eps=1e-6):
    return linear_attention(q, k, v, eps)
