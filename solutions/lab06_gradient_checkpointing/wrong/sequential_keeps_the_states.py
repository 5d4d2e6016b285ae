"""The inputs of all functions are collected on the way.

Task: checkpoint_sequential
Killed by: TestCheckpointSequential::test_peak_is_the_model_s
Killed by: TestCheckpointSequential::test_between_the_passes_only_segments_inputs
"""

from itertools import pairwise


def checkpoint_sequential(functions, segments, x):
    layers = list(functions)
    if not 1 <= segments <= len(layers):
        raise ValueError(f"segments must be between 1 and the number of functions, {len(layers)}; got {segments}")
    bounds = [len(layers) * i // segments for i in range(segments + 1)]
    kept = []

    def run(functions, h):
        for function in functions:
            kept.append(h)
            h = function(h)
        return h

    for start, stop in pairwise(bounds):
        x = checkpoint(run, layers[start:stop], x)
    return x
