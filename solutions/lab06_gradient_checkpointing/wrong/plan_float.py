"""The result is a float.

Task: plan_segments
Killed by: TestPlanSegments::test_is_a_whole_number
Says: an int
"""

import math


def plan_segments(layers):
    if layers < 1:
        raise ValueError(f"layers must be at least 1, got {layers}")
    return float(math.ceil(math.sqrt(layers)))
