"""Each state is rescaled by the other's factor.

Task: merge_states
Killed by: TestMergeStates::test_worked_example
Killed by: TestMergeStates::test_no_keys_change_nothing
"""

import numpy as np


def merge_states(state_a, state_b):
    (m_a, l_a, o_a), (m_b, l_b, o_b) = state_a, state_b
    m = np.maximum(m_a, m_b)
    shift = np.where(m == -np.inf, 0, m)
    w_a, w_b = np.exp(m_a - shift), np.exp(m_b - shift)
    return m, l_a * w_b + l_b * w_a, o_a * w_b[..., None] + o_b * w_a[..., None]
