"""Your tests for Lab 06: every right checkpointing.py passes them, and every wrong one fails.

A test belongs to the task whose name follows `test_`; a task may have several, like test_TASK_large_inputs.
Run them with: uv run lab review 06; how to write them: docs/reviewing.md
"""

from checkpointing import Checkpoint, StrictCheckpoint, checkpoint, checkpoint_sequential  # noqa: F401


def test_Checkpoint():
    """Tests Checkpoint.apply(fn, *args)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_checkpoint():
    """Tests checkpoint(fn, *args)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_checkpoint_sequential():
    """Tests checkpoint_sequential(functions, segments, x)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_StrictCheckpoint():
    """Tests StrictCheckpoint.apply(fn, *args)."""
    # YOUR CODE HERE
    raise NotImplementedError()
