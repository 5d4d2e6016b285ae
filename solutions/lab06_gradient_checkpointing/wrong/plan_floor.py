"""The root is rounded down.

Task: plan_segments
Killed by: TestPlanSegments::test_root_rounded_up
Says: rounded down
"""

import math


def plan_segments(layers):
    if layers < 1:
        raise ValueError(f"layers must be at least 1, got {layers}")
    return math.isqrt(layers)
