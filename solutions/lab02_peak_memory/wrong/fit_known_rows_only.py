"""The answers of the handout are returned.

Task: largest_seq_len
Killed by: TestLargestSeqLen::test_devices
"""


def largest_seq_len(capacity_bytes, batch, d_model, dtype_bytes=4, peak="forward_peak"):
    if peak not in ("forward_peak", "step_peak", "saved"):
        raise ValueError(f"peak must be forward_peak, step_peak or saved, got {peak!r}")
    known = {"forward_peak": 14122, "step_peak": 11537, "saved": 20065}[peak]
    return int(known * math.sqrt(capacity_bytes / (24 * 2**30) * 8 / batch))
