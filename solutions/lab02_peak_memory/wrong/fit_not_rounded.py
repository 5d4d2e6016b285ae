"""The prediction is made without rounding.

Task: largest_seq_len
Killed by: TestLargestSeqLen::test_a_total_of_exactly_the_capacity_fits
Killed by: TestLargestSeqLen::test_lengths_that_take_the_same_memory
"""


def largest_seq_len(capacity_bytes, batch, d_model, dtype_bytes=4, peak="forward_peak"):
    if peak not in ("forward_peak", "step_peak", "saved"):
        raise ValueError(f"peak must be forward_peak, step_peak or saved, got {peak!r}")

    def total(n):
        always = 6 * batch * n * d_model * dtype_bytes + dtype_bytes + WORKSPACE_BYTES
        columns, square, tall = (
            batch * n * (8 + dtype_bytes),
            batch * n * n * dtype_bytes,
            batch * n * d_model * dtype_bytes,
        )
        saved = 2 * square + columns
        forward = always + max(saved + 2 * square, saved + tall + dtype_bytes)
        backward = always + dtype_bytes + max(saved + square + tall, columns + 6 * square, square + 2 * tall)
        return {"saved": saved, "forward_peak": forward, "step_peak": max(forward, backward)}[peak]

    low, high = 0, 1
    while total(high) <= capacity_bytes:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if total(middle) <= capacity_bytes else (low, middle)
    return low
