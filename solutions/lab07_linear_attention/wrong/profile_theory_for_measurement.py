"""What should be measured is predicted.

Task: profile_attention_memory
Killed by: TestProfile::test_out_of_memory_is_a_value
"""


def _profile_row(n, shape, dtype, device, capacity_bytes):
    predicted = linear_attention_memory(*shape, dtype.itemsize)
    room = float("inf") if capacity_bytes is None else capacity_bytes - predicted["inputs"]
    row = {"seq_len": n, "input_memory_mb": predicted["inputs"] / MB}
    for name in _routes():
        peak = predicted[f"{name}_peak"]
        row[f"{name}_memory_mb"] = peak / MB if peak <= room else float("nan")
    for name in _routes():
        row[f"{name}_theoretical_mb"] = predicted[f"{name}_peak"] / MB
    row["savings_bidir"] = row["standard_memory_mb"] / row["linear_bidir_memory_mb"]
    return row
