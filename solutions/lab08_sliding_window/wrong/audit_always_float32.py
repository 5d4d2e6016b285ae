"""The inputs are float32 whatever dtype was asked for.

Task: memory_breakdown
Killed by: TestMemoryBreakdown::test_output_and_gradients
Says: of the dtype
"""

_of_any_dtype = memory_breakdown


def memory_breakdown(variant, batch, heads, seq_len, head_dim, window, block, dtype, checkpointed=False):
    return _of_any_dtype(variant, batch, heads, seq_len, head_dim, window, block, torch.float32, checkpointed)
