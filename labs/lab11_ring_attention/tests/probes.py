"""What runs next to the submission: ranks as threads, and what they send, hold and compute."""

import ring_attention

from labkit.meters.tensors import AllocationMeter
from labkit.ranks.measure import run_measured
from labkit.testing.probes import probe


@probe
def on_ranks(task, arguments, **options):
    """What a task returns on each rank for `arguments`, a list for each, and what that took."""
    return run_measured(getattr(ring_attention, task), arguments, **options)


class Silent:
    """The connection of one of two ranks, through which nothing may be sent."""

    rank, world_size = 0, 2

    def send_recv(self, tensors, to, from_):
        raise RuntimeError("send_recv is called before the arguments are checked")

    def all_gather(self, tensor):
        raise RuntimeError("all_gather is called before the arguments are checked")

    def all_to_all(self, tensors):
        raise RuntimeError("all_to_all is called before the arguments are checked")


@probe
def on_silent_rank(task, arguments, **options):
    """What a task returns on a rank that may send nothing."""
    return getattr(ring_attention, task)(Silent(), *arguments, **options)


@probe
def peak_of_work(seq_len, world_size, layout):
    """The bytes that `causal_work` holds at its peak."""
    with AllocationMeter() as memory:
        ring_attention.causal_work(seq_len, world_size, layout)
    return memory.peak_bytes
