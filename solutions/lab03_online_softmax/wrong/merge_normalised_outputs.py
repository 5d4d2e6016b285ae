"""The outputs are merged as if they were divided by their sums.

Task: merge_states
Killed by: TestMergeStates::test_worked_example
"""

import numpy as np


def merge_states(state_a, state_b):
    (m_a, l_a, o_a), (m_b, l_b, o_b) = state_a, state_b
    m = np.maximum(m_a, m_b)
    shift = np.where(m == -np.inf, 0, m)
    w_a, w_b = np.exp(m_a - shift), np.exp(m_b - shift)
    l = l_a * w_a + l_b * w_b
    o = o_a * (l_a * w_a)[..., None] + o_b * (l_b * w_b)[..., None]
    return m, l, o / np.where(l == 0, 1, l)[..., None]
