"""What runs next to the submission: ranks as threads, and what they send, hold and compute."""

from ring_attention import (
    all_gather_attention,
    causal_work,
    ring_attention_backward,
    ring_attention_forward,
    ulysses_attention,
)

from labkit.meters.tensors import AllocationMeter
from labkit.ranks.measure import run_measured
from labkit.testing.probes import probe

FUNCTIONS = {
    "ring_attention_forward": ring_attention_forward,
    "ring_attention_backward": ring_attention_backward,
    "all_gather_attention": all_gather_attention,
    "ulysses_attention": ulysses_attention,
}


@probe
def on_ranks(task, arguments, **options):
    """What a task returns on each rank for `arguments`, a list for each, and what that took."""
    return run_measured(FUNCTIONS[task], arguments, **options)


@probe
def peak_of_work(seq_len, world_size, layout):
    """The bytes that `causal_work` holds at its peak."""
    with AllocationMeter() as memory:
        causal_work(seq_len, world_size, layout)
    return memory.peak_bytes
