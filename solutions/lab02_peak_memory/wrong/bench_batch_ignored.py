"""The batch is always 8.

Task: benchmark_attention
Killed by: TestBenchmarkAttention::test_the_cpu_rounds_nothing
"""


def benchmark_attention(d_models, seq_lens, batch_size=8, warmup_steps=5, steps=100, device="cpu"):
    MemoryTracker(device)
    rows = []
    for d_model in d_models:
        for seq_len in seq_lens:
            shape = (8, seq_len, d_model)
            row = {
                "d_model": d_model,
                "seq_len": seq_len,
                "batch_size": batch_size,
                "warmup_steps": warmup_steps,
                "steps": steps,
                "device": device,
                **dict.fromkeys(("fwd_ms", "bwd_ms", "mem_max_MB", "add_mem_MB")),
                "status": "oom",
            }
            rows.append(row)
            try:
                numbers = _memory_of_a_step(shape, device)
                if torch.device(device).type != "meta":
                    numbers |= _times_of_a_step(shape, device, warmup_steps, steps)
            except RuntimeError as error:
                if not _is_out_of_memory(error):
                    raise
            else:
                row.update(numbers, status="success")
    return rows
