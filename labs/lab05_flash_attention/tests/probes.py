"""What runs next to the submission: calls of both passes, measured."""

from flash_attention import flash_backward, flash_forward

from labkit.meters.calls import ScoreTiles, UninitialisedIsNaN, measured
from labkit.testing.probes import probe

FUNCTIONS = {"flash_forward": flash_forward, "flash_backward": flash_backward}


@probe
def measured_call(task, *args):
    """What `flash_forward` or `flash_backward` returns, and what it allocated and computed."""
    return measured(FUNCTIONS[task], *args)


@probe
def tiles_of_call(task, d, *args):
    """What the function returns, the tiles of scores, (queries, keys), that it computed, and kernels that did more."""
    with ScoreTiles(d) as seen:
        result = FUNCTIONS[task](*args)
    return result, seen.tiles, seen.fused


@probe
def call_on_nan(task, *args):
    """What `flash_forward` or `flash_backward` returns where uninitialised memory holds NaN."""
    with UninitialisedIsNaN():
        return FUNCTIONS[task](*args)
