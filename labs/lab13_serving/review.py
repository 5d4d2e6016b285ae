"""Your tests for Lab 13: every right serving.py passes them, and every wrong one fails.

A test belongs to the task whose name follows `test_`; a task may have several, like test_TASK_large_inputs.
Run them with: uv run lab review 13; how to write them: docs/reviewing.md
"""

from serving import BlockManager, QuantizedBlocks, Scheduler, Server, cache_plan  # noqa: F401


def test_cache_plan():
    """Tests cache_plan(spec, nbytes, block_size, bits)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_BlockManager():
    """Tests BlockManager(num_blocks, block_size)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_QuantizedBlocks():
    """Tests QuantizedBlocks(num_blocks, block_size, layers, kv_heads, head_dim, bits)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_Scheduler():
    """Tests Scheduler(num_blocks, block_size, max_tokens)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_Server():
    """Tests Server(spec, nbytes, max_tokens)."""
    # YOUR CODE HERE
    raise NotImplementedError()
