"""Your tests for Lab 09: every right decoding.py passes them, and every wrong one fails.

A test belongs to the task whose name follows `test_`; a task may have several, like test_TASK_large_inputs.
Run them with: uv run lab review 09; how to write them: docs/reviewing.md
"""

from decoding import (  # noqa: F401
    BlockManager,
    KVCache,
    RollingKVCache,
    grouped_query_attention,
    kv_cache_bytes,
    num_splits_heuristic,
    paged_attention,
    split_kv_decode,
)


def test_kv_cache_bytes():
    """Tests kv_cache_bytes."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_grouped_query_attention():
    """Tests grouped_query_attention(q, k, v, causal=False, scale=None)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_KVCache():
    """Tests KVCache(max_len, kv_heads, head_dim, dtype)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_RollingKVCache():
    """Tests RollingKVCache(window, kv_heads, head_dim, dtype)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_split_kv_decode():
    """Tests split_kv_decode(q, k, v, num_splits)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_num_splits_heuristic():
    """Tests num_splits_heuristic(total_mblocks, num_sms, num_n_blocks, max_splits=128)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_BlockManager():
    """Tests BlockManager(num_blocks, block_size)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_paged_attention():
    """Tests paged_attention(q, k_cache, v_cache, block_table, context_lens)."""
    # YOUR CODE HERE
    raise NotImplementedError()
