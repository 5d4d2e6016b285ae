"""MiB in the columns of MB.

Task: profile_attention_memory
Killed by: TestProfile::test_rows_of_the_cpu
Says: the unit is MiB
"""


def _profile_row(n, shape, dtype, device, capacity_bytes):
    q, k, v = (torch.randn(shape, dtype=dtype, device=device) for _ in range(3))
    predicted = linear_attention_memory(*shape, dtype.itemsize)
    room = float("inf") if capacity_bytes is None else capacity_bytes - predicted["inputs"]
    row = {"seq_len": n, "input_memory_mb": predicted["inputs"] / 2**20}
    for name, route in _routes().items():
        peak = _peak_or_nan(route, q, k, v)
        row[f"{name}_memory_mb"] = peak / 2**20 if peak <= room else float("nan")
    for name in _routes():
        row[f"{name}_theoretical_mb"] = predicted[f"{name}_peak"] / 2**20
    row["savings_bidir"] = row["standard_memory_mb"] / row["linear_bidir_memory_mb"]
    return row
