"""A batch counts as without keys only when all its rows are: a row alone gives NaN.

Task: merge_states
Killed by: TestMergeStates::test_no_keys_in_some_rows
Says: NaN
"""

import numpy as np


def merge_states(state_a, state_b):
    if np.all(np.isneginf(state_a[0])):
        return state_b
    if np.all(np.isneginf(state_b[0])):
        return state_a
    (m_a, l_a, o_a), (m_b, l_b, o_b) = state_a, state_b
    m = np.maximum(m_a, m_b)
    shift = m
    w_a, w_b = np.exp(m_a - shift), np.exp(m_b - shift)
    return m, l_a * w_a + l_b * w_b, o_a * w_a[..., None] + o_b * w_b[..., None]
