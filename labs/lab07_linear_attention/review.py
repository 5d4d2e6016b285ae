"""Your tests for Lab 07: every right linear_attention.py passes them, and every wrong one fails.

A test belongs to the task whose name follows `test_`; a task may have several, like test_TASK_large_inputs.
Run them with: uv run lab review 07; how to write them: docs/reviewing.md
"""

from linear_attention import (  # noqa: F401
    causal_linear_attention_chunked,
    causal_linear_attention_cumsum,
    causal_linear_attention_recurrent,
    causal_linear_attention_scan,
    feature_map,
    linear_attention,
    linear_attention_memory,
    profile_attention_memory,
)


def test_feature_map():
    """Tests feature_map(x)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_linear_attention():
    """Tests linear_attention(q, k, v, eps=1e-6)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_causal_linear_attention_cumsum():
    """Tests causal_linear_attention_cumsum(q, k, v, eps=1e-6)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_causal_linear_attention_recurrent():
    """Tests causal_linear_attention_recurrent(q, k, v, eps=1e-6)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_causal_linear_attention_chunked():
    """Tests causal_linear_attention_chunked(q, k, v, chunk=64, eps=1e-6)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_causal_linear_attention_scan():
    """Tests causal_linear_attention_scan(q, k, v, chunk=64, eps=1e-6)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_linear_attention_memory():
    """Tests linear_attention_memory(batch, heads, seq_len, d, dtype_bytes)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_profile_attention_memory():
    """Tests profile_attention_memory."""
    # YOUR CODE HERE
    raise NotImplementedError()
