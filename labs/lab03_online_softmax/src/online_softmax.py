"""Lab 03: softmax and attention in one pass over blocks of scores, and partial results that can be merged."""

from collections.abc import Iterable

import numpy as np

State = tuple[np.ndarray | float, np.ndarray | float, np.ndarray | float]


def safe_softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    """Softmax along one axis, finite for numbers of any size.

    Along `axis`, `softmax(x)[i] = exp(x[i]) / sum over j of exp(x[j])`: weights between 0 and 1 that add up to 1.
    The formula overflows as it stands; the result must not.

    Args:
        x: numbers of any shape, finite or −inf (masked out: weight 0), float16, float32 or float64.
        axis: the axis along which the weights add up to 1.

    Returns:
        the weights, in x's shape and dtype. Where a whole row is −inf, all its weights are 0.

    Raises:
        ValueError: when x has no such axis (NumPy's own AxisError is one).

    Example:
        [1000, 1001, −inf] gives [0.2689, 0.7311, 0].
    """
    # YOUR CODE HERE
    raise NotImplementedError()


def online_softmax_stats(x_blocks: Iterable[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The two numbers about a row that softmax needs, from one pass over its blocks.

    With x the blocks joined along the last axis: `m = max over j of x[j]` and `l = sum over j of exp(x[j] − m)`.

    Args:
        x_blocks: blocks (..., n_j) of one row, in order; a list or a generator. Leading axes, the same in all blocks,
            are separate rows. The n_j may differ and may be 0; entries may be −inf. A block is valid only until the
            next one is requested: after that its memory is reused.

    Returns:
        (m, l): shapes (...), in the blocks' dtype (numbers, or arrays without axes, for blocks (n_j,)). A row of only
        −inf, or of length 0, has m = −inf and l = 0. Without any block: −inf and 0.0.

    Memory: a few blocks, however many there are.

    Example:
        [1, 2], [4], [3, −inf] gives m = 4 and l = e⁻³ + e⁻² + 1 + e⁻¹ + 0 = 1.5530.
    """
    # YOUR CODE HERE
    raise NotImplementedError()


def online_softmax(x_blocks: Iterable[np.ndarray]) -> np.ndarray:
    """Softmax of a row that comes in blocks, each of which is read once.

    With x the blocks joined along the last axis, the result is `safe_softmax(x)`.

    Args:
        x_blocks: as in `online_softmax_stats`: a list or a generator of blocks (..., n_j), each valid only until the
            next one is requested.

    Returns:
        the weights of all blocks, joined: (..., N) with N the sum of the n_j, in the blocks' dtype. Rows of only −inf
        give 0. Without any block: an array of shape (0,).

    Memory: at most 2.5 times the result's bytes, and a few blocks.

    Example:
        [1, 2], [4] gives [0.0420, 0.1142, 0.8438].
    """
    # YOUR CODE HERE
    raise NotImplementedError()


def online_attention(
    Q_row: np.ndarray,
    K_blocks: Iterable[np.ndarray],
    V_blocks: Iterable[np.ndarray],
    scale: float | None = None,
) -> np.ndarray:
    """Attention of one query over keys and values that come in blocks, in one pass, keeping none of them.

    With K and V the blocks joined, the result is the sum over j of `w[j] * V[j]`, where w is the softmax over j of
    `scale * (Q_row · K[j])`.

    Args:
        Q_row: the query, (..., d). Leading axes are heads, each a separate attention.
        K_blocks: blocks of keys (..., n_j, d), a list or a generator.
        V_blocks: blocks of values (..., n_j, d_v) of the same lengths; d_v may differ from d. A block of K and a block
            of V are requested in turn. A block is valid only until the next one is requested. n_j may be 0.
        scale: the factor of the scores; None means 1/√d.

    Returns:
        the output, (..., d_v), in Q_row's dtype. A score of −inf (from a key with −inf in it) has weight 0; when all
        scores are −inf, or all blocks are empty, the output is 0.

    Raises:
        ValueError: naming both shapes, when a block of K differs from Q_row in d or from its block of V in n_j; when
            there are more blocks of one than of the other; when there is no block at all (d_v is unknown).

    Memory: a few blocks, however many there are; nothing as long as all keys together, not even their scores.

    Example:
        Q_row = [1, 0], K = [[1, 0]] and [[0, 1]], V = [[1]] and [[0]]: the scores are 0.7071 and 0, the output 0.6698.
    """
    # YOUR CODE HERE
    raise NotImplementedError()


def merge_states(state_a: State, state_b: State) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The state of a row after two sets of keys, from the states after each.

    The state of a set of keys with scores s[j] and values v[j] is (m, l, o): `m = max over j of s[j]`,
    `l = sum over j of exp(s[j] − m)` and `o = sum over j of exp(s[j] − m) * v[j]`, not yet divided by l. The result is
    the state of both sets together. Merging is associative and commutative up to rounding, and the state of no keys,
    (−inf, 0, 0), changes nothing.

    Args:
        state_a: (m, l, o) of shapes (...), (...) and (..., d_v). Leading axes are separate rows. Where a row has seen
            no key, or only scores of −inf, its m is −inf and its l and o are 0. A state without keys may be given as
            the plain numbers (−inf, 0.0, 0.0).
        state_b: likewise, for other keys.

    Returns:
        (m, l, o) of the two together, in the dtype of the arrays given; never NaN.

    Example:
        (2, 1, [10]) and (3, 2, [40]) give m = 3, l = e⁻¹ + 2 = 2.3679 and o = [10 e⁻¹ + 40] = [43.6788].
    """
    # YOUR CODE HERE
    raise NotImplementedError()
