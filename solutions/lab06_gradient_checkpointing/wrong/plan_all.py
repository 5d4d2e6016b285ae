"""A segment for every layer.

Task: plan_segments
Killed by: TestPlanSegments::test_root_rounded_up
Says: that of the layers
"""


def plan_segments(layers):
    if layers < 1:
        raise ValueError(f"layers must be at least 1, got {layers}")
    return layers
