"""Of the numbers with the lowest cost the smallest, which is not always the root.

Task: plan_segments
Killed by: TestPlanSegments::test_every_small_chain
"""


def plan_segments(layers):
    if layers < 1:
        raise ValueError(f"layers must be at least 1, got {layers}")
    return min(range(1, layers + 1), key=lambda k: k + -(-layers // k))
