"""The first state's output is rescaled in place.

Task: merge_states
Killed by: TestMergeStates::test_states_are_left_alone
Says: was changed in place
"""

import numpy as np


def merge_states(state_a, state_b):
    (m_a, l_a, o_a), (m_b, l_b, o_b) = state_a, state_b
    m = np.maximum(m_a, m_b)
    shift = np.where(m == -np.inf, 0, m)
    w_a, w_b = np.exp(m_a - shift), np.exp(m_b - shift)
    o = o_a
    if isinstance(o, np.ndarray):
        o *= w_a[..., None]
        o += o_b * w_b[..., None]
    else:
        o = o_b * w_b[..., None]
    return m, l_a * w_a + l_b * w_b, o
