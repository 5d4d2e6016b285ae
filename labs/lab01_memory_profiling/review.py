"""Your tests for Lab 01: every right profiling.py passes them, and every wrong one fails.

A test belongs to the task whose name follows `test_`; a task may have several, like test_TASK_large_inputs.
Run them with: uv run lab review 01; how to write them: docs/reviewing.md
"""

from profiling import (  # noqa: F401
    analyze_scaling,
    estimate_attention_memory,
    measure_attention_memory,
    plot_memory_scaling,
    profile_memory_scaling,
    standard_attention,
)


def test_standard_attention():
    """Tests standard_attention(Q, K, V, mask=None)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_measure_attention_memory():
    """Tests measure_attention_memory(seq_len, d_model, batch_size=1, dtype=np.float32)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_profile_memory_scaling():
    """Tests profile_memory_scaling(seq_lengths, d_model=64, batch_size=1)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_estimate_attention_memory():
    """Tests estimate_attention_memory(seq_len, d_model, dtype_bytes=4, batch_size=1)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_analyze_scaling():
    """Tests analyze_scaling(results)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_plot_memory_scaling():
    """Tests plot_memory_scaling(results, ax=None)."""
    # YOUR CODE HERE
    raise NotImplementedError()
