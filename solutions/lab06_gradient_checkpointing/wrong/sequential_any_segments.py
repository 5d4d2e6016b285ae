"""The number of segments is not checked, but cut to what is possible.

Task: checkpoint_sequential
Killed by: TestCheckpointSequential::test_impossible_segments
Says: no ValueError
"""

from itertools import pairwise


def checkpoint_sequential(functions, segments, x):
    layers = list(functions)
    segments = max(1, min(segments, len(layers)))
    bounds = [len(layers) * i // segments for i in range(segments + 1)]
    for start, stop in pairwise(bounds):
        x = checkpoint(_run, layers[start:stop], x)
    return x
