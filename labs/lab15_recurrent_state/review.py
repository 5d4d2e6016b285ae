"""Your tests for Lab 15: every right recurrent_state.py passes them, and every wrong one fails.

A test belongs to the task whose name follows `test_`; a task may have several, like test_TASK_large_inputs.
Run them with: uv run lab review 15; how to write them: docs/reviewing.md
"""

from recurrent_state import (  # noqa: F401
    HybridCache,
    accept_drafts,
    checkpoint_plan,
    gated_delta_chunked,
    gated_delta_recurrent,
    longest_common_hit,
    replay_cost,
)


def test_gated_delta_recurrent():
    """Tests gated_delta_recurrent(q, k, v, beta, g, state)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_gated_delta_chunked():
    """Tests gated_delta_chunked(q, k, v, beta, g, state, chunk)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_checkpoint_plan():
    """Tests checkpoint_plan(tokens, every, state_bytes, budget_bytes)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_longest_common_hit():
    """Tests longest_common_hit(groups, tokens, drafts=0)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_accept_drafts():
    """Tests accept_drafts(target_scores, draft_scores, drafts, u, temperature)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_HybridCache():
    """Tests HybridCache(num_blocks, block, every, heads, d_k, d_v)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_replay_cost():
    """Tests replay_cost."""
    # YOUR CODE HERE
    raise NotImplementedError()
