"""Your tests for Lab 14: every right selected_attention.py passes them, and every wrong one fails.

A test belongs to the task whose name follows `test_`; a task may have several, like test_TASK_large_inputs.
Run them with: uv run lab review 14; how to write them: docs/reviewing.md
"""

from selected_attention import (  # noqa: F401
    block_sparse_attention,
    index_top_tokens,
    page_bounds,
    page_scores,
    select_pages,
    selected_decode,
    selection_bytes,
)


def test_page_bounds():
    """Tests page_bounds(K, page)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_page_scores():
    """Tests page_scores(q, lows, highs)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_select_pages():
    """Tests select_pages(scores, kv_heads, budget, current)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_selected_decode():
    """Tests selected_decode(q, K, V, pages, page)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_block_sparse_attention():
    """Tests block_sparse_attention(Q, K, V, block, top)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_index_top_tokens():
    """Tests index_top_tokens(q_index, w, k_index, top)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_selection_bytes():
    """Tests selection_bytes(method, tokens, token_bytes, window=0, sinks=0, page=64, budget=0, index_bytes=0)."""
    # YOUR CODE HERE
    raise NotImplementedError()
