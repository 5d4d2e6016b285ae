"""Your tests for Lab 10: every right triton_kernel.py passes them, and every wrong one fails.

A test belongs to the task whose name follows `test_`; a task may have several, like test_TASK_large_inputs.
Run them with: uv run lab review 10; how to write them: docs/reviewing.md
"""

from triton_kernel import choose_config, flash_backward, flash_forward, paged_decode, softmax_rows  # noqa: F401


def test_softmax_rows():
    """Tests softmax_rows(x)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_flash_forward():
    """Tests flash_forward(Q, K, V, causal=False, block_q=64, block_k=64)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_flash_backward():
    """Tests flash_backward(Q, K, V, O, L, dO, causal=False, block_q=64, block_k=64)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_paged_decode():
    """Tests paged_decode(q, k_cache, v_cache, block_table, context_lens, num_splits)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_choose_config():
    """Tests choose_config(head_dim, dtype_bytes, arch)."""
    # YOUR CODE HERE
    raise NotImplementedError()
