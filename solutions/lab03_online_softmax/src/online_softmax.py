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
    ### BEGIN SOLUTION
    x = np.asarray(x)
    precise = _precise(x)
    powers = np.exp(precise - _finite(precise.max(axis=axis, keepdims=True, initial=-np.inf)))
    powers /= _divisor(powers.sum(axis=axis, keepdims=True))
    return powers.astype(_result_dtype(x), copy=False)
    ### END SOLUTION


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
    ### BEGIN SOLUTION
    m, l, dtype = -np.inf, 0.0, np.dtype(np.float64)
    for block in x_blocks:
        dtype = _result_dtype(block)
        m, l, _ = _take_in(m, l, block)
    return np.asarray(m, dtype)[()], np.asarray(l, dtype)[()]
    ### END SOLUTION


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
    ### BEGIN SOLUTION
    m, l, dtype = -np.inf, 0.0, np.dtype(np.float64)
    pieces, peaks = [], []
    for block in x_blocks:
        dtype = _result_dtype(block)
        m, l, powers = _take_in(m, l, block)
        pieces.append(powers)
        peaks.append(m)
    if not pieces:
        return np.zeros(0)
    for powers, peak in zip(pieces, peaks, strict=True):
        powers *= (np.exp(peak - _finite(m)) / _divisor(l))[..., None]
    return np.concatenate(pieces, axis=-1, dtype=dtype, casting="same_kind")
    ### END SOLUTION


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
    ### BEGIN SOLUTION
    Q_row = np.asarray(Q_row)
    q = _precise(Q_row)
    q = q * q.dtype.type(Q_row.shape[-1] ** -0.5 if scale is None else scale)
    state = None
    for K, V in zip(K_blocks, V_blocks, strict=True):
        K, V = np.asarray(K), np.asarray(V)
        if K.shape[-1] != Q_row.shape[-1]:
            raise ValueError(f"Q_row and K's block must have the same d: {Q_row.shape} and {K.shape}")
        if K.shape[-2] != V.shape[-2]:
            raise ValueError(f"K's and V's block must have the same length: {K.shape} and {V.shape}")
        m, l, o = state or (-np.inf, 0.0, 0.0)
        scores = (_precise(K) @ q[..., None])[..., 0]
        m_new, l, powers = _take_in(m, l, scores)
        kept = np.exp(m - _finite(m_new))[..., None]
        state = m_new, l, o * kept + (powers[..., None, :] @ _precise(V))[..., 0, :]
    if state is None:
        raise ValueError("K_blocks and V_blocks hold no block, so that the width of the output is unknown")
    _, l, o = state
    return (o / _divisor(l)[..., None]).astype(_result_dtype(Q_row), copy=False)
    ### END SOLUTION


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
    ### BEGIN SOLUTION
    (m_a, l_a, o_a), (m_b, l_b, o_b) = state_a, state_b
    m = np.maximum(m_a, m_b)
    w_a, w_b = np.exp(m_a - _finite(m)), np.exp(m_b - _finite(m))
    return m, l_a * w_a + l_b * w_b, o_a * w_a[..., None] + o_b * w_b[..., None]
    ### END SOLUTION


### BEGIN SOLUTION
def _take_in(m, l, block):
    """(m, l) after one more block, and the block's exp(x − m) with the new m."""
    x = _precise(block)
    m_new = np.maximum(m, x.max(axis=-1, initial=-np.inf))
    powers = np.exp(x - _finite(m_new)[..., None])
    return m_new, l * np.exp(m - _finite(m_new)) + powers.sum(axis=-1), powers


def _finite(m):
    """`m` with 0 for −inf: −inf − (−inf) would be NaN, −inf − 0 gives exp(−inf) = 0, as it should be."""
    return np.where(m == -np.inf, 0, m)


def _divisor(l):
    """`l` with 1 for 0, so that a row without keys gives 0."""
    return np.where(l == 0, 1, l)


def _precise(x):
    """`x` in the dtype to compute in: float16 has too few digits for sums."""
    x = np.asarray(x)
    return x.astype(np.result_type(_result_dtype(x), np.float32), copy=False)


def _result_dtype(x):
    """The dtype of results: that of `x`, float64 for integers."""
    dtype = np.asarray(x).dtype
    return dtype if dtype.kind == "f" else np.dtype(np.float64)


### END SOLUTION
