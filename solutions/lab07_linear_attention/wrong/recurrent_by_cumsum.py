"""The cumulative sums under the name of the recurrence.

Task: causal_linear_attention_recurrent
Killed by: TestRecurrent::test_one_state
Says: is kept for every position
"""


def causal_linear_attention_recurrent(q, k, v, eps=1e-6):
    return causal_linear_attention_cumsum(q, k, v, eps)
