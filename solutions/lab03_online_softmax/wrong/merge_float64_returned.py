"""The merged state is float64 whatever the states are.

Task: merge_states
Killed by: TestMergeStates::test_precisions
Says: expected float32
"""

import numpy as np


def merge_states(state_a, state_b):
    (m_a, l_a, o_a), (m_b, l_b, o_b) = ([np.float64(x) for x in state] for state in (state_a, state_b))
    m = np.maximum(m_a, m_b)
    shift = np.where(m == -np.inf, 0, m)
    w_a, w_b = np.exp(m_a - shift), np.exp(m_b - shift)
    return m, l_a * w_a + l_b * w_b, o_a * w_a[..., None] + o_b * w_b[..., None]
