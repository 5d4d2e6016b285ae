"""checkpointed is not looked at.

Task: memory_breakdown
Killed by: TestMemoryBreakdown::test_checkpointed
Says: saved of 'naive_mask' with checkpointed=True
"""

_with_checkpoints = memory_breakdown


def memory_breakdown(variant, batch, heads, seq_len, head_dim, window, block, dtype, checkpointed=False):
    return _with_checkpoints(variant, batch, heads, seq_len, head_dim, window, block, dtype)
