"""Segments by recursion, halving their number; their best number by search."""


def checkpoint_sequential(functions, segments, x):
    functions = list(functions)
    if segments is None:
        segments = min(range(1, len(functions) + 1), key=lambda k: k + -(-len(functions) // k))
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
