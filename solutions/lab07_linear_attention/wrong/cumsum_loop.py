"""A loop over the positions.

Task: causal_linear_attention_cumsum
Killed by: TestCumsum::test_no_loop
Says: a loop over positions
"""


def causal_linear_attention_cumsum(q, k, v, eps=1e-6):
    return causal_linear_attention_recurrent(q, k, v, eps)
