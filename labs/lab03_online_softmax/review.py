"""Your tests for Lab 03: every right online_softmax.py passes them, and every wrong one fails.

A test belongs to the task whose name follows `test_`; a task may have several, like test_TASK_large_inputs.
Run them with: uv run lab review 03; how to write them: docs/reviewing.md
"""

from online_softmax import (  # noqa: F401
    merge_states,
    online_attention,
    online_softmax,
    online_softmax_stats,
    safe_softmax,
)


def test_safe_softmax():
    """Tests safe_softmax(x, axis=-1)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_online_softmax_stats():
    """Tests online_softmax_stats(x_blocks)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_online_softmax():
    """Tests online_softmax(x_blocks)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_online_attention():
    """Tests online_attention(Q_row, K_blocks, V_blocks, scale=None)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_merge_states():
    """Tests merge_states(state_a, state_b)."""
    # YOUR CODE HERE
    raise NotImplementedError()
