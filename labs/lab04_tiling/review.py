"""Your tests for Lab 04: every right tiling.py passes them, and every wrong one fails.

A test belongs to the task whose name follows `test_`; a task may have several, like test_TASK_large_inputs.
Run them with: uv run lab review 04; how to write them: docs/reviewing.md
"""

from tiling import choose_blocks, count_tiles, io_exponents, naive_traffic, tiled_attention, tiled_traffic  # noqa: F401


def test_count_tiles():
    """Tests count_tiles(N_q, N_k, block_q, block_k, causal=False)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_tiled_attention():
    """Tests tiled_attention(Q, K, V, block_q, block_k, causal=False, mask=None)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_tiled_traffic():
    """Tests tiled_traffic(machine, Q, K, V, block_q, block_k)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_naive_traffic():
    """Tests naive_traffic(machine, Q, K, V, block_q, block_k)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_choose_blocks():
    """Tests choose_blocks(sram_bytes, d, dtype_bytes=4)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_io_exponents():
    """Tests io_exponents(Ns, ds, sram_sizes)."""
    # YOUR CODE HERE
    raise NotImplementedError()
