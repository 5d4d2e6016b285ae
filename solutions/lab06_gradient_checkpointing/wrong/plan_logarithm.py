"""The logarithm, which belongs to recursion.

Task: plan_segments
Killed by: TestPlanSegments::test_root_rounded_up
Says: logarithm
"""

import math


def plan_segments(layers):
    if layers < 1:
        raise ValueError(f"layers must be at least 1, got {layers}")
    return max(1, math.ceil(math.log2(layers)))
