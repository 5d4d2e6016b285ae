"""Segments by recursion, halving the number of segments; the plan and the longest segment by search."""


def checkpoint_sequential(functions, segments, x):
    functions = list(functions)
    if segments not in range(1, len(functions) + 1):
        raise ValueError(f"{segments} segments of {len(functions)} functions: must be 1 to {len(functions)}")
    return _checkpointed(functions, segments, x)


def _checkpointed(functions, segments, x):
    if segments == 1:
        return checkpoint(_apply_all, x, *functions)
    left = segments // 2
    shortest, n_longer = divmod(len(functions), segments)
    cut = left * shortest + max(0, n_longer - (segments - left))
    return _checkpointed(functions[cut:], segments - left, _checkpointed(functions[:cut], left, x))


def _apply_all(x, *functions):
    for function in functions:
        x = function(x)
    return x


def plan_segments(layers):
    if layers < 1:
        raise ValueError(f"layers: {layers}")
    segments = 1
    while segments * segments < layers:
        segments += 1
    return segments


def checkpoint_cost(layers, segments):
    if layers < 1:
        raise ValueError(f"layers: {layers}")
    if segments not in range(1, layers + 1):
        raise ValueError(f"segments: {segments}")
    lengths = [layers * (i + 1) // segments - layers * i // segments for i in range(segments)]
    return segments + max(lengths), sum(lengths)
