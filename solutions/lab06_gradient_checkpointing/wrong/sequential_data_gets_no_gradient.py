"""Checkpoint.apply in place of checkpoint: with data as input the first segment's parameters get no gradient.

Task: checkpoint_sequential
Killed by: TestCheckpointSequential::test_first_parameters_when_x_is_data
Says: checkpoint handles that
"""

from itertools import pairwise


def checkpoint_sequential(functions, segments, x):
    layers = list(functions)
    if not 1 <= segments <= len(layers):
        raise ValueError(f"segments must be between 1 and the number of functions, {len(layers)}; got {segments}")
    bounds = [len(layers) * i // segments for i in range(segments + 1)]
    for start, stop in pairwise(bounds):
        x = Checkpoint.apply(_run, layers[start:stop], x)
    return x
