"""Impossible numbers of segments are computed with.

Task: checkpoint_cost
Killed by: TestCheckpointCost::test_impossible
Says: no ValueError
"""


def checkpoint_cost(layers, segments):
    if layers < 1:
        raise ValueError(f"layers must be at least 1, got {layers}")
    return segments + -(-layers // max(segments, 1)), layers
