"""Functions are checkpointed within checkpointed segments: they run three times.

Task: checkpoint_sequential
Killed by: TestCheckpointSequential::test_every_function_runs_once_more
Says: more than once more
"""

from itertools import pairwise


def checkpoint_sequential(functions, segments, x):
    layers = list(functions)
    if not 1 <= segments <= len(layers):
        raise ValueError(f"segments must be between 1 and the number of functions, {len(layers)}; got {segments}")
    bounds = [len(layers) * i // segments for i in range(segments + 1)]
    for start, stop in pairwise(bounds):
        x = checkpoint(_run, [lambda h, f=f: checkpoint(f, h) for f in layers[start:stop]], x)
    return x
