"""Tiled attention tuned for NumPy: every tile in buffers made once, and no maximum where the scores cannot overflow."""

import numpy as np

SAFE_SCORE = 40  # exp(±40) is far from the ends of float32's range, whatever N is


def tiled_attention(Q, K, V, block_q, block_k, causal=False, mask=None):
    _check_blocks(block_q, block_k)
    batch, mask = _check_shapes(Q, K, V, mask)
    (N_q, d), (N_k, d_v) = Q.shape[-2:], V.shape[-2:]
    dtype = np.result_type(Q, K, V, np.float16)
    O = np.empty((*batch, N_q, d_v), dtype)
    buffers = _Buffers(min(block_q, N_q), min(block_k, N_k), d, d_v, np.result_type(dtype, np.float32))
    Q, K, V = (np.broadcast_to(array, (*batch, *array.shape[-2:])) for array in (Q, K, V))
    for head in np.ndindex(batch):
        largest_key = np.sqrt(_largest_square(K[head]))
        for rows in _blocks(N_q, block_q):
            _attend_rows(
                O[head][rows],
                Q[head][rows],
                K[head],
                V[head],
                buffers,
                _blocks(min(rows.stop, N_k) if causal else N_k, block_k, end=N_k),
                largest_key,
                rows.start if causal else None,
                None if mask is None else mask[head][rows],
            )
    return O


class _Buffers:
    """The arrays that every tile of every head uses again."""

    def __init__(self, block_q, block_k, d, d_v, dtype):
        self.Q = np.empty((block_q, d), dtype)
        self.S = np.empty(block_q * block_k, dtype)
        self.V = np.ones((block_k, d_v + 1), dtype)
        self.O = np.empty((block_q, d_v + 1), dtype)
        self.product = np.empty((block_q, d_v + 1), dtype)
        self.m = np.empty((block_q, 1), dtype)


def _attend_rows(O, Q, K, V, buffers, key_blocks, largest_key, first_row, mask):
    """Write the output of one head's block of queries to O; `first_row` is its number when causal, else None."""
    n_rows, d = Q.shape
    Q = np.multiply(Q, buffers.Q.dtype.type(d**-0.5), out=buffers.Q[:n_rows])
    # |q · k| ≤ |q| |k|: if that bound is small, no score can overflow exp, and no maximum has to be subtracted.
    safe = np.sqrt(_largest_square(Q)) * largest_key < SAFE_SCORE
    m = buffers.m[:n_rows]
    m[...] = np.finfo(m.dtype).min / 2  # finite, so that a row without keys makes no -inf - (-inf)
    total = buffers.O[:n_rows]  # the last column becomes the row sum l: V has a column of ones there
    total[...] = 0
    for cols in key_blocks:
        n_cols = cols.stop - cols.start
        S = buffers.S[: n_rows * n_cols].reshape(n_rows, n_cols)
        np.matmul(Q, K[cols].T.astype(S.dtype, copy=False), out=S)
        hidden = _hidden(cols, n_rows, first_row, mask)
        if not safe:
            _hide(S, hidden, -np.inf)
            _follow_maximum(S, m, total)
            S -= m
        np.exp(S, out=S)
        if safe:
            _hide(S, hidden, 0)
        V_tile = buffers.V[:n_cols]
        V_tile[:, :-1] = V[cols]
        total += np.matmul(S, V_tile, out=buffers.product[:n_rows])
    weights, l = total[:, :-1], total[:, -1:]
    l[l == 0] = 1
    np.divide(weights, l, out=O, casting="same_kind")


def _follow_maximum(S, m, total):
    """Rescale what was summed so far, where the maximum of some row moves."""
    peaks = S.max(axis=1, keepdims=True)
    if (peaks > m).any():
        np.maximum(m, peaks, out=peaks)
        np.subtract(m, peaks, out=m)
        total *= np.exp(m, out=m)
        m[...] = peaks


def _hidden(cols, n_rows, first_row, mask):
    """The masks that hide something in this tile."""
    hidden = [] if mask is None else [mask[:, cols]]
    if first_row is not None and cols.stop > first_row + 1:
        hidden.append(np.arange(cols.start, cols.stop) > np.arange(first_row, first_row + n_rows)[:, None])
    return hidden


def _hide(S, hidden, value):
    for where in hidden:
        np.copyto(S, value, where=where)


def _largest_square(rows):
    """The largest squared length of a row, without an array of the rows' size."""
    return np.einsum("ij,ij->i", rows, rows, dtype=np.result_type(rows, np.float32)).max(initial=0)
