"""Your tests for Lab 11: every right ring_attention.py passes them, and every wrong one fails.

A test belongs to the task whose name follows `test_`; a task may have several, like test_TASK_large_inputs.
Run them with: uv run lab review 11; how to write them: docs/reviewing.md
"""

from ring_attention import (  # noqa: F401
    all_gather_attention,
    causal_work,
    communication_bytes,
    minimal_block,
    ring_attention_backward,
    ring_attention_forward,
    shard,
    ulysses_attention,
    unshard,
)


def test_shard():
    """Tests shard(x, world_size, layout="contiguous", dim=-2)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_unshard():
    """Tests unshard(shards, layout="contiguous", dim=-2)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_causal_work():
    """Tests causal_work(seq_len, world_size, layout)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_ring_attention_forward():
    """Tests ring_attention_forward(comm, q, k, v, causal=False, layout="zigzag")."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_ring_attention_backward():
    """Tests ring_attention_backward(comm, dO, q, k, v, o, lse, causal=False, layout="zigzag")."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_all_gather_attention():
    """Tests all_gather_attention(comm, q, k, v, causal=False, layout="zigzag")."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_ulysses_attention():
    """Tests ulysses_attention(comm, q, k, v, causal=False, layout="zigzag")."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_communication_bytes():
    """Tests communication_bytes."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_minimal_block():
    """Tests minimal_block(flops, bandwidth)."""
    # YOUR CODE HERE
    raise NotImplementedError()
