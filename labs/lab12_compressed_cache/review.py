"""Your tests for Lab 12: every right compressed_cache.py passes them, and every wrong one fails.

A test belongs to the task whose name follows `test_`; a task may have several, like test_TASK_large_inputs.
Run them with: uv run lab review 12; how to write them: docs/reviewing.md
"""

from compressed_cache import (  # noqa: F401
    attention_sink_logit,
    attention_with_sinks,
    cache_under_budget,
    dequantize_kv,
    mla_decode,
    quantize_kv,
)


def test_mla_decode():
    """Tests mla_decode(q_nope, q_rope, c_kv, k_rope, W_UK, W_UV)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_quantize_kv():
    """Tests quantize_kv(k, v, bits, group)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_dequantize_kv():
    """Tests dequantize_kv(cache)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_attention_with_sinks():
    """Tests attention_with_sinks(q, k, v, window, num_sinks)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_attention_sink_logit():
    """Tests attention_sink_logit(q, k, v, sink)."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_cache_under_budget():
    """Tests cache_under_budget(model, nbytes, tokens)."""
    # YOUR CODE HERE
    raise NotImplementedError()
