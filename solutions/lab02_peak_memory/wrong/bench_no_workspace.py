"""The simulation has no workspace.

Task: benchmark_attention
Killed by: TestBenchmarkAttention::test_the_published_table
Says: the workspace of 64 MiB is left out
"""


def _memory_of_a_step(shape, device):
    counter, held_bytes = (_StorageCounter(), 0)
    if device == "meta":
        counter, held_bytes = (_StorageCounter(round_to=ROUNDING_BYTES), 0)
    elif torch.device(device).type == "cuda":
        counter, held_bytes = (_CudaCounter(torch.device(device)), torch.cuda.memory_allocated(device))
    with counter:
        q, k, v = (torch.randn(shape, device=device, requires_grad=True) for _ in range(3))
        for _ in range(2):
            before_bytes = counter.live_bytes
            counter.reset()
            loss = attention(q, k, v).sum()
            peak_bytes, after_bytes = (counter.peak_bytes, counter.live_bytes)
            loss.backward()
    return {"mem_max_MB": (held_bytes + peak_bytes) / 2**20, "add_mem_MB": (after_bytes - before_bytes) / 2**20}
