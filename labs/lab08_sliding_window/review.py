"""Your tests for Lab 08: every right sliding_window.py passes them, and every wrong one fails.

A test belongs to the task whose name follows `test_`; a task may have several, like test_TASK_large_inputs.
Run them with: uv run lab review 08; how to write them: docs/reviewing.md
"""

from sliding_window import (  # noqa: F401
    BlockMaskCache,
    classify_tiles,
    memory_breakdown,
    sliding_window_attention,
    window_mask,
)


def test_window_mask():
    """Tests window_mask(seq_len, window)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_classify_tiles():
    """Tests classify_tiles(seq_len, window, block)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_sliding_window_attention():
    """Tests sliding_window_attention(q, k, v, window, block)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_BlockMaskCache():
    """Tests BlockMaskCache(maxsize)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_memory_breakdown():
    """Tests memory_breakdown(variant, batch, heads, seq_len, head_dim, window, block, dtype, checkpointed=False)."""
    # YOUR CODE HERE
    raise NotImplementedError()
