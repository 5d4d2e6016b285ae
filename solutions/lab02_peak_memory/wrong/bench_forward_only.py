"""Only the forward pass is run and timed.

Task: benchmark_attention
Killed by: TestBenchmarkAttention::test_the_steps_are_those_asked_for
"""


def _times_of_a_step(shape, device, warmup_steps, steps):

    def now():
        if torch.device(device).type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    q, k, v = (torch.randn(shape, device=device, requires_grad=True) for _ in range(3))
    forward_ms, backward_ms = ([], [])
    for _ in range(warmup_steps + steps):
        start = now()
        loss = attention(q, k, v).sum()
        between = now()
        loss.detach()
        forward_ms.append(1000.0 * (between - start))
        backward_ms.append(1000.0 * (now() - between))
    return {
        "fwd_ms": statistics.median(forward_ms[warmup_steps:]),
        "bwd_ms": statistics.median(backward_ms[warmup_steps:]),
    }
