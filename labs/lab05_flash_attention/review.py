"""Your tests for Lab 05: every right flash_attention.py passes them, and every wrong one fails.

A test belongs to the task whose name follows `test_`; a task may have several, like test_TASK_large_inputs.
Run them with: uv run lab review 05; how to write them: docs/reviewing.md
"""

from flash_attention import FlashAttention, flash_backward, flash_forward  # noqa: F401


def test_flash_forward():
    """Tests flash_forward(Q, K, V, causal=False, block_q=64, block_k=64)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_flash_backward():
    """Tests flash_backward(Q, K, V, O, L, dO, causal=False, block_q=64, block_k=64)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_FlashAttention():
    """Tests FlashAttention.apply(Q, K, V, is_causal=False)."""
    # YOUR CODE HERE
    raise NotImplementedError()
