"""The forward peak is fitted to the smallest row of the table.

Task: attention_training_memory
Killed by: TestAttentionTrainingMemory::test_the_longest_row_of_the_table
"""


def attention_training_memory(batch, seq_len, d_model, dtype_bytes=4):
    sizes = {"batch": batch, "seq_len": seq_len, "d_model": d_model, "dtype_bytes": dtype_bytes}
    for name, value in sizes.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    square = _rounded(batch * seq_len**2 * dtype_bytes)
    tall = _rounded(batch * seq_len * d_model * dtype_bytes)
    scalar = _rounded(dtype_bytes)
    parts = {
        "inputs": 3 * tall,
        "gradients": 3 * tall,
        **dict.fromkeys(("scores", "shifted", "exponentials", "weights"), square),
        "argmax": _rounded(batch * seq_len * 8),
        "row_sums": _rounded(batch * seq_len * dtype_bytes),
        "loss": scalar,
        "workspace": WORKSPACE_BYTES,
    }
    columns = parts["argmax"] + parts["row_sums"]
    saved = 2 * square + columns
    always = parts["inputs"] + parts["gradients"] + parts["loss"] + parts["workspace"]
    forward_peak = always + max(saved + 2 * square, saved + tall + scalar)
    backward_peak = always + scalar + max(saved + square + tall, columns + 6 * square, square + 2 * tall)
    return {
        **parts,
        "saved": saved,
        "forward_peak": round(76308992 * seq_len**2 / 256**2 * batch / 8),
        "step_peak": max(forward_peak, backward_peak),
    }
