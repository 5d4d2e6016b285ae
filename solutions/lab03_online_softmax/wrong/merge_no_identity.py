"""Two states without keys give −inf − (−inf), which is NaN.

Task: merge_states
Killed by: TestMergeStates::test_no_keys_on_both_sides
Killed by: TestMergeStates::test_no_keys_in_some_rows
Says: NaN
"""

import numpy as np


def merge_states(state_a, state_b):
    (m_a, l_a, o_a), (m_b, l_b, o_b) = state_a, state_b
    m = np.maximum(m_a, m_b)
    shift = m
    w_a, w_b = np.exp(m_a - shift), np.exp(m_b - shift)
    return m, l_a * w_a + l_b * w_b, o_a * w_a[..., None] + o_b * w_b[..., None]
