"""A float is returned.

Task: largest_seq_len
Killed by: TestLargestSeqLen::test_worked_example
Says: an int
"""


def largest_seq_len(capacity_bytes, batch, d_model, dtype_bytes=4, peak="forward_peak"):
    if peak not in ("forward_peak", "step_peak", "saved"):
        raise ValueError(f"peak must be forward_peak, step_peak or saved, got {peak!r}")

    def fits(seq_len):
        return attention_training_memory(batch, seq_len, d_model, dtype_bytes)[peak] <= capacity_bytes

    too_long = 1
    while fits(too_long):
        too_long *= 2
    fitting = too_long // 2
    while too_long - fitting > 1:
        middle = (fitting + too_long) // 2
        if fits(middle):
            fitting = middle
        else:
            too_long = middle
    return float(fitting)
