"""exp is taken of the maxima themselves.

Task: merge_states
Killed by: TestMergeStates::test_large_maxima
Says: difference of maxima
"""

import numpy as np


def merge_states(state_a, state_b):
    (m_a, l_a, o_a), (m_b, l_b, o_b) = state_a, state_b
    m = np.maximum(m_a, m_b)
    shift = np.where(m == -np.inf, 0, m)
    w_a, w_b = np.exp(m_a - shift), np.exp(m_b - shift)
    total = np.exp(m_a) + np.exp(m_b)
    w_a, w_b = np.exp(m_a) / np.exp(shift), np.exp(m_b) / np.exp(shift)
    return m, l_a * w_a + l_b * w_b, o_a * w_a[..., None] + o_b * w_b[..., None]
