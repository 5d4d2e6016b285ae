"""The sums are added without rescaling.

Task: merge_states
Killed by: TestMergeStates::test_worked_example
Says: l is added without rescaling
"""

import numpy as np


def merge_states(state_a, state_b):
    (m_a, l_a, o_a), (m_b, l_b, o_b) = state_a, state_b
    m = np.maximum(m_a, m_b)
    shift = np.where(m == -np.inf, 0, m)
    w_a, w_b = np.exp(m_a - shift), np.exp(m_b - shift)
    return m, l_a + l_b + 0 * w_a, o_a * w_a[..., None] + o_b * w_b[..., None]
