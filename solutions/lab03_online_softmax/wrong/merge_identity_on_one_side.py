"""Only a first state without keys is recognised.

Task: merge_states
Killed by: TestMergeStates::test_no_keys_change_nothing
Killed by: TestMergeStates::test_no_keys_as_plain_numbers
"""

import numpy as np


def merge_states(state_a, state_b):
    (m_a, l_a, o_a), (m_b, l_b, o_b) = state_a, state_b
    m = np.maximum(m_a, m_b)
    shift = np.where(m_a == -np.inf, 0, m)
    w_a = np.exp(m_a - shift)
    w_b = np.where(m_a == -np.inf, 1, np.where(m_b == -np.inf, np.nan, np.exp(m_b - shift)))
    return m, l_a * w_a + l_b * w_b, o_a * w_a[..., None] + o_b * w_b[..., None]
