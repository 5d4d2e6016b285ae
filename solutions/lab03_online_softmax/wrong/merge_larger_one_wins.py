"""Only the state with the larger maximum is kept.

Task: merge_states
Killed by: TestMergeStates::test_worked_example
Says: only the state with the larger maximum is kept
"""

import numpy as np


def merge_states(state_a, state_b):
    (m_a, l_a, o_a), (m_b, l_b, o_b) = state_a, state_b
    m = np.maximum(m_a, m_b)
    shift = np.where(m == -np.inf, 0, m)
    w_a, w_b = np.exp(m_a - shift), np.exp(m_b - shift)
    first = np.asarray(m_a >= m_b)
    return m, np.where(first, l_a, l_b), np.where(first[..., None], o_a, o_b)
