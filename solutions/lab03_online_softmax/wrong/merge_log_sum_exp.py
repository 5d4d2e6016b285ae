"""m becomes the log-sum-exp and l becomes 1.

Task: merge_states
Killed by: TestMergeStates::test_worked_example
"""

import numpy as np


def merge_states(state_a, state_b):
    (m_a, l_a, o_a), (m_b, l_b, o_b) = state_a, state_b
    m = np.maximum(m_a, m_b)
    shift = np.where(m == -np.inf, 0, m)
    w_a, w_b = np.exp(m_a - shift), np.exp(m_b - shift)
    l, o = l_a * w_a + l_b * w_b, o_a * w_a[..., None] + o_b * w_b[..., None]
    safe = np.where(l == 0, 1, l)
    return np.where(l == 0, -np.inf, m + np.log(safe)), l / safe, o / safe[..., None]
