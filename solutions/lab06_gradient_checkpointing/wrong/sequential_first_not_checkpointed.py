"""The first segment is run plainly, because its input is data.

Task: checkpoint_sequential
Killed by: TestCheckpointSequential::test_every_function_runs_once_more
Says: 0
"""

from itertools import pairwise


def checkpoint_sequential(functions, segments, x):
    layers = list(functions)
    if not 1 <= segments <= len(layers):
        raise ValueError(f"segments must be between 1 and the number of functions, {len(layers)}; got {segments}")
    bounds = [len(layers) * i // segments for i in range(segments + 1)]
    x = _run(layers[: bounds[1]], x)
    for start, stop in pairwise(bounds[1:]):
        x = checkpoint(_run, layers[start:stop], x)
    return x
