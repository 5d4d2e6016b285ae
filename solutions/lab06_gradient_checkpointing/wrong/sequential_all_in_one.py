"""All functions are one segment, whatever segments says.

Task: checkpoint_sequential
Killed by: TestCheckpointSequential::test_segments_are_contiguous_and_equal
Says: in one segment
"""


def checkpoint_sequential(functions, segments, x):
    layers = list(functions)
    if not 1 <= segments <= len(layers):
        raise ValueError(f"segments must be between 1 and the number of functions, {len(layers)}; got {segments}")
    x = checkpoint(_run, layers, x)
    return x
