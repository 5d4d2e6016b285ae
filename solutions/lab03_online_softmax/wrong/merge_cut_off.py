"""A state far below the other is taken to be next to nothing, at a distance where it still counts.

Task: merge_states
Killed by: TestMergeStates::test_precisions
Killed by: TestMergeStates::test_associative
"""

import numpy as np


def merge_states(state_a, state_b):
    (m_a, l_a, o_a), (m_b, l_b, o_b) = state_a, state_b
    m = np.maximum(m_a, m_b)
    shift = np.where(m == -np.inf, 0, m)
    w_a, w_b = np.exp(m_a - shift), np.exp(m_b - shift)
    w_a, w_b = np.where(m_a < m - 2, 0, w_a), np.where(m_b < m - 2, 0, w_b)
    return m, l_a * w_a + l_b * w_b, o_a * w_a[..., None] + o_b * w_b[..., None]
