"""Lab 10: Triton kernel."""

import numpy as np


def softmax_rows(x: np.ndarray) -> np.ndarray:
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


def flash_forward(x: np.ndarray) -> np.ndarray:
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


def flash_backward(x: np.ndarray) -> np.ndarray:
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


def paged_decode(x: np.ndarray) -> np.ndarray:
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


def choose_config(x: np.ndarray) -> np.ndarray:
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
