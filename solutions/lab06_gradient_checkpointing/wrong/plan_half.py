"""Half of the layers.

Task: plan_segments
Killed by: TestPlanSegments::test_root_rounded_up
Says: half
"""


def plan_segments(layers):
    if layers < 1:
        raise ValueError(f"layers must be at least 1, got {layers}")
    return max(1, layers // 2)
