"""Tensors of every row are kept, so that later rows run out of memory as well.

Task: benchmark_attention
Killed by: TestBenchmarkAttention::test_nothing_stays_alive
Says: still alive
"""

_KEPT = []


def _memory_of_a_step(shape, device):
    counter, held_bytes = (_StorageCounter(), 0)
    if device == "meta":
        counter, held_bytes = (_StorageCounter(round_to=ROUNDING_BYTES), WORKSPACE_BYTES)
    elif torch.device(device).type == "cuda":
        counter, held_bytes = (_CudaCounter(torch.device(device)), torch.cuda.memory_allocated(device))
    _KEPT.append(counter)
    with counter:
        q, k, v = (torch.randn(shape, device=device, requires_grad=True) for _ in range(3))
        for _ in range(2):
            before_bytes = counter.live_bytes
            counter.reset()
            loss = attention(q, k, v).sum()
            peak_bytes, after_bytes = (counter.peak_bytes, counter.live_bytes)
            loss.backward()
            _KEPT.append((q, k, v))
    return {"mem_max_MB": (held_bytes + peak_bytes) / 2**20, "add_mem_MB": (after_bytes - before_bytes) / 2**20}
