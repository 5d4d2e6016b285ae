"""A chain without layers is taken for one of one.

Task: plan_segments
Killed by: TestPlanSegments::test_no_layers
Says: no ValueError
"""

import math


def plan_segments(layers):
    return math.isqrt(max(layers, 1) - 1) + 1
