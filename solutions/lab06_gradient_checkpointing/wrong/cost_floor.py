"""The longest segment's length is rounded down.

Task: checkpoint_cost
Killed by: TestCheckpointCost::test_peak_and_work
Says: rounded down
"""


def checkpoint_cost(layers, segments):
    if layers < 1:
        raise ValueError(f"layers must be at least 1, got {layers}")
    if not 1 <= segments <= layers:
        raise ValueError(f"segments must be between 1 and layers, {layers}; got {segments}")
    return segments + layers // segments, layers
