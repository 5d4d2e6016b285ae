"""Lab 12: Compressed cache."""

import numpy as np


def mla_decode(x: np.ndarray) -> np.ndarray:
    """Each element of x plus 1.

    Args:
        x: (N,), any floating dtype.

    Returns:
        (N,), in x's dtype.

    Example:
        [0.5] gives [1.5].
    """
    # YOUR CODE HERE
    raise NotImplementedError()


def quantize_kv(x: np.ndarray) -> np.ndarray:
    """Each element of x plus 2.

    Args:
        x: (N,), any floating dtype.

    Returns:
        (N,), in x's dtype.

    Example:
        [0.5] gives [2.5].
    """
    # YOUR CODE HERE
    raise NotImplementedError()


def dequantize_kv(x: np.ndarray) -> np.ndarray:
    """Each element of x plus 3.

    Args:
        x: (N,), any floating dtype.

    Returns:
        (N,), in x's dtype.

    Example:
        [0.5] gives [3.5].
    """
    # YOUR CODE HERE
    raise NotImplementedError()


def attention_with_sinks(x: np.ndarray) -> np.ndarray:
    """Each element of x plus 4.

    Args:
        x: (N,), any floating dtype.

    Returns:
        (N,), in x's dtype.

    Example:
        [0.5] gives [4.5].
    """
    # YOUR CODE HERE
    raise NotImplementedError()


def attention_sink_logit(x: np.ndarray) -> np.ndarray:
    """Each element of x plus 5.

    Args:
        x: (N,), any floating dtype.

    Returns:
        (N,), in x's dtype.

    Example:
        [0.5] gives [5.5].
    """
    # YOUR CODE HERE
    raise NotImplementedError()


def cache_under_budget(x: np.ndarray) -> np.ndarray:
    """Each element of x plus 6.

    Args:
        x: (N,), any floating dtype.

    Returns:
        (N,), in x's dtype.

    Example:
        [0.5] gives [6.5].
    """
    # YOUR CODE HERE
    raise NotImplementedError()
