"""What runs next to the submission: blocks made when they are asked for, memory meters, uninitialised memory."""

import numpy as np
from online_softmax import online_attention

from labkit.meters.arrays import measure_arrays, uninitialised_is_nan
from labkit.testing.probes import probe


def passing(blocks):
    """Copies of `blocks`, each filled with NaN as soon as the next one is asked for."""
    for block in blocks:
        copy = block.copy()
        yield copy
        copy.fill(np.nan)


def drawn(shape, seeds):
    """A random float32 block for each seed, made when it is asked for."""
    for seed in seeds:
        yield np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


@probe
def given_blocks_that_pass(task, *arguments):
    """What a task returns when each list of blocks among its arguments becomes an iterator of blocks that pass."""
    return task(*(passing(each) if isinstance(each, list) else each for each in arguments))


@probe
def given_drawn_blocks(task, *arguments):
    """What a task returns when each (shape, seeds) among its arguments becomes an iterator of blocks."""
    return task(*(drawn(*each) if isinstance(each, tuple) else each for each in arguments))


@probe
def peak_over_drawn_blocks(task, *arguments):
    """The peak bytes of such a call, and how many blocks were asked for."""
    n_asked = 0

    def counted(blocks):
        nonlocal n_asked
        for block in blocks:
            n_asked += 1
            yield block

    task(*(drawn(each[0], each[1][:3]) if isinstance(each, tuple) else each for each in arguments))
    given = [counted(drawn(*each)) if isinstance(each, tuple) else each for each in arguments]
    return measure_arrays(task, *given, warm=False).peak_bytes, n_asked


@probe
def attention_on_nan(q, K_blocks, V_blocks):
    """What online_attention returns where uninitialised memory holds NaN."""
    with uninitialised_is_nan():
        return online_attention(q, K_blocks, V_blocks)


@probe
def attention_and_order(q, K_blocks, V_blocks):
    """What online_attention returns, and from which of its iterators, K or V, each block was asked for."""
    asked = []

    def noted(name, blocks):
        for block in blocks:
            asked.append(name)
            yield block

    return online_attention(q, noted("K", K_blocks), noted("V", V_blocks)), "".join(asked)
