"""The state without keys is looked for with an if, which rows of a batch do not allow.

Task: merge_states
Killed by: TestMergeStates::test_rows_of_a_batch
Killed by: TestMergeStates::test_no_keys_in_some_rows
"""

import numpy as np


def merge_states(state_a, state_b):
    if state_a[0] == -np.inf:
        return state_b
    if state_b[0] == -np.inf:
        return state_a
    (m_a, l_a, o_a), (m_b, l_b, o_b) = state_a, state_b
    m = np.maximum(m_a, m_b)
    shift = np.where(m == -np.inf, 0, m)
    w_a, w_b = np.exp(m_a - shift), np.exp(m_b - shift)
    return m, l_a * w_a + l_b * w_b, o_a * w_a[..., None] + o_b * w_b[..., None]
