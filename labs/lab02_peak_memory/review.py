"""Your tests for Lab 02: every right peak_memory.py passes them, and every wrong one fails.

A test belongs to the task whose name follows `test_`; a task may have several, like test_TASK_large_inputs.
Run them with: uv run lab review 02; how to write them: docs/reviewing.md
"""

from peak_memory import (  # noqa: F401
    MemoryTracker,
    attention_training_memory,
    benchmark_attention,
    largest_seq_len,
    measure_memory,
    saved_for_backward,
)


def test_MemoryTracker():
    """Tests MemoryTracker(device="cpu")."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_measure_memory():
    """Tests measure_memory(fn, *args, **kwargs)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_saved_for_backward():
    """Tests saved_for_backward(fn, *args)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_attention_training_memory():
    """Tests attention_training_memory(batch, seq_len, d_model, dtype_bytes=4)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_largest_seq_len():
    """Tests largest_seq_len(capacity_bytes, batch, d_model, dtype_bytes=4, peak="forward_peak")."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_benchmark_attention():
    """Tests benchmark_attention(d_models, seq_lens, batch_size=8, warmup_steps=5, steps=100, device="cpu")."""
    # YOUR CODE HERE
    raise NotImplementedError()
