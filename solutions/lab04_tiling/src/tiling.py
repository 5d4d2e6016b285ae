"""Lab 04: attention in tiles, and the bytes it moves between a large memory and a small one."""

import numpy as np

from labkit.simulated_memory import HBMArray, Machine


def count_tiles(N_q: int, N_k: int, block_q: int, block_k: int, causal: bool = False) -> int:
    """Count the tiles of the score matrix that tiled attention must visit.

    The N_q × N_k scores are cut into tiles of block_q rows and block_k columns, from the top left; the last ones may
    be smaller. A tile is visited when at least one of its entries counts. Without `causal` all entries count; with it
    only those with j ≤ i (row i, column j, both from 0, whatever N_q and N_k are).

    Args:
        N_q: number of queries, 0 or more.
        N_k: number of keys, 0 or more.
        block_q: rows of a tile, at least 1.
        block_k: columns of a tile, at least 1.
        causal: leave out the tiles that are entirely above the diagonal.

    Returns:
        the number of tiles, an int.

    Raises:
        ValueError: naming the argument, when a block size is below 1.

    Example:
        N_q = N_k = 8 in tiles of 4 × 2: 8 tiles. Causal: 6, because rows 0 to 3 need columns 0 to 3 only.
    """
    ### BEGIN SOLUTION
    _check_blocks(block_q, block_k)
    n_visible = [min(rows.stop, N_k) if causal else N_k for rows in _blocks(N_q, block_q)]
    return sum(-(-n // block_k) for n in n_visible)
    ### END SOLUTION


def tiled_attention(
    Q: np.ndarray,
    K: np.ndarray,
    V: np.ndarray,
    block_q: int,
    block_k: int,
    causal: bool = False,
    mask: np.ndarray | None = None,
) -> np.ndarray:
    """Exact scaled dot-product attention that never holds more than one tile of the scores.

    The result is that of the standard formula, softmax(Q Kᵀ / √d) V, up to rounding. Only the memory differs: besides
    the output, arrays of block_q × block_k, block_q × d_v and the like, and nothing of N_q × N_k. Exactly
    `count_tiles(N_q, N_k, block_q, block_k, causal)` tiles are computed; a mask leaves none out.

    Args:
        Q: queries, (..., N_q, d).
        K: keys, (..., N_k, d).
        V: values, (..., N_k, d_v); d_v may differ from d, N_k from N_q. Leading axes broadcast.
        block_q: queries in a tile, at least 1; need not divide N_q, may exceed it.
        block_k: keys in a tile, likewise.
        causal: query i sees key j only when j ≤ i, both counted from 0, whatever N_q and N_k are.
        mask: None, or booleans that broadcast to (..., N_q, N_k), True where a key is masked OUT; with `causal`, a key
            counts when neither hides it. A query that sees no key has output 0.

    Returns:
        the output, (..., N_q, d_v), in the dtype of the inputs (float32 stays float32), finite for logits of any size.

    Raises:
        ValueError: naming the argument, when a block size is below 1; naming both shapes, when Q and K differ in d,
            K and V in N_k, or the mask does not broadcast.

    Example:
        Q = [[1, 0]], K = [[1, 0], [0, 1]], V = [[1], [0]], blocks of 1 × 1: two tiles with the scores 0.7071 and 0;
        the output is e^0.7071 / (e^0.7071 + 1) = 0.6698.
    """
    ### BEGIN SOLUTION
    _check_blocks(block_q, block_k)
    batch, mask = _check_shapes(Q, K, V, mask)
    N_q, N_k, d_v = Q.shape[-2], K.shape[-2], V.shape[-1]
    dtype = np.result_type(Q, K, V, np.float16)
    precise = np.result_type(dtype, np.float32)  # float16 is too short to sum in
    scale = Q.shape[-1] ** -0.5

    O = np.zeros((*batch, N_q, d_v), dtype)
    for rows in _blocks(N_q, block_q):
        Q_tile = Q[..., rows, :].astype(precise) * scale
        n_rows = Q_tile.shape[-2]
        m = np.full((*batch, n_rows, 1), -np.inf, precise)
        l = np.zeros((*batch, n_rows, 1), precise)
        O_tile = np.zeros((*batch, n_rows, d_v), precise)
        for cols in _blocks(min(rows.stop, N_k) if causal else N_k, block_k, end=N_k):
            S = Q_tile @ K[..., cols, :].astype(precise).swapaxes(-1, -2)
            if causal and cols.stop > rows.start + 1:
                S = np.where(np.arange(cols.start, cols.stop) > np.arange(rows.start, rows.stop)[:, None], -np.inf, S)
            if mask is not None:
                S = np.where(mask[..., rows, cols], -np.inf, S)
            m_new = np.maximum(m, S.max(axis=-1, keepdims=True))
            shift = np.where(m_new == -np.inf, 0, m_new)  # -inf - (-inf) would be NaN
            P = np.exp(S - shift)
            alpha = np.exp(m - shift)
            l = l * alpha + P.sum(axis=-1, keepdims=True)
            O_tile = O_tile * alpha + P @ V[..., cols, :].astype(precise)
            m = m_new
        O[..., rows, :] = O_tile / np.where(l == 0, 1, l)
    return O
    ### END SOLUTION


def tiled_traffic(
    machine: Machine,
    Q: np.ndarray | HBMArray,
    K: np.ndarray | HBMArray,
    V: np.ndarray | HBMArray,
    block_q: int,
    block_k: int,
) -> np.ndarray | HBMArray:
    """Tiled attention of one head on the simulated machine, which counts every byte that moves.

    The same result as `tiled_attention(Q, K, V, block_q, block_k)`. Q, K and V are in HBM, and so is the output, made
    with `machine.allocate`; scores are never stored there. Only `machine.load`, `machine.store` and `machine.new` make
    tiles. Do all arithmetic on tiles, and drop those no longer needed: SRAM is small.

    Args:
        machine: a `labkit.simulated_memory.Machine`; its counters are not reset.
        Q: queries in HBM, (N_q, d): an array or a handle, to be used through `machine.load` alone.
        K: keys in HBM, (N_k, d).
        V: values in HBM, (N_k, d_v).
        block_q: queries in a tile, at least 1; need not divide N_q.
        block_k: keys in a tile, likewise.

    Returns:
        the output in HBM, (N_q, d_v), Q's dtype: what `machine.allocate` returned.

    Raises:
        ValueError: naming the argument, when a block size is below 1.
        SRAMOverflow: from the machine, when the tiles do not fit.

    Example:
        N_q = N_k = 8, d = d_v = 4, float32, blocks of 4 × 2: each element of Q is loaded and each of the output stored
        once, 128 B and 128 B. With queries in the outer loop K and V are loaded twice, 512 B: 768 B of traffic.
    """
    ### BEGIN SOLUTION
    _check_blocks(block_q, block_k)
    O = machine.allocate((Q.shape[0], V.shape[1]), Q.dtype)
    for rows in _blocks(Q.shape[0], block_q):
        machine.store(O, rows, _attend(machine, Q, K, V, rows, block_k))
    return O
    ### END SOLUTION


### BEGIN SOLUTION
def _attend(machine, Q, K, V, rows, block_k):
    """The output tile of the queries `rows`. All tiles but the result are freed on return."""
    Q_tile = machine.load(Q, rows)
    n_rows, d = Q_tile.shape
    Q_tile *= d**-0.5
    m = machine.new((n_rows, 1), -np.inf, Q.dtype)
    l = machine.new((n_rows, 1), 0, Q.dtype)
    O_tile = machine.new((n_rows, V.shape[1]), 0, Q.dtype)
    for cols in _blocks(K.shape[0], block_k):
        S = Q_tile @ machine.load(K, cols).T
        m_new = np.maximum(m, S.max(axis=1, keepdims=True))
        alpha = _exp_of_difference(m, m_new)
        P = _exp_of_difference(S, m_new)
        l *= alpha
        l += P.sum(axis=1, keepdims=True)
        O_tile *= alpha
        O_tile += P @ machine.load(V, cols)
        m = m_new
        del S, P, alpha, m_new  # or they would be alive beside the next tile's
    O_tile /= l
    return O_tile


def _exp_of_difference(tile, peaks):
    """exp(tile − peaks), in the tile's own memory."""
    tile -= peaks
    return np.exp(tile, out=tile)


### END SOLUTION


def naive_traffic(
    machine: Machine,
    Q: np.ndarray | HBMArray,
    K: np.ndarray | HBMArray,
    V: np.ndarray | HBMArray,
    block_q: int,
    block_k: int,
) -> np.ndarray | HBMArray:
    """Standard attention of one head on the simulated machine: three passes with the whole matrix in HBM.

    First the scores S = Q Kᵀ / √d, tile by tile, are stored to HBM; then the weights P, the softmax of each row of S;
    then the output P V (algorithm 0 of Dao et al. 2022). Each pass reads from HBM what the pass before stored there.

    Args:
        machine: a `labkit.simulated_memory.Machine`; its counters are not reset. SRAM must hold a row of the scores.
        Q: queries in HBM, (N_q, d): an array or a handle, to be used through `machine.load` alone.
        K: keys in HBM, (N_k, d).
        V: values in HBM, (N_k, d_v).
        block_q: rows of a tile in both products, at least 1; need not divide N_q.
        block_k: keys in a tile, likewise.

    Returns:
        the output in HBM, (N_q, d_v), Q's dtype: what `machine.allocate` returned.

    Raises:
        ValueError: naming the argument, when a block size is below 1.
        SRAMOverflow: from the machine, when the tiles or a row of scores do not fit.

    Example:
        N_q = N_k = 8, d = d_v = 4, float32, blocks of 4 × 2: S and P are each stored and loaded once, 4 · 256 B; Q and
        the output move once, 256 B; K and V are loaded once for each of two row blocks, 512 B: 1792 B of traffic.
    """
    ### BEGIN SOLUTION
    _check_blocks(block_q, block_k)
    N_q, N_k = Q.shape[0], K.shape[0]
    S = machine.allocate((N_q, N_k), Q.dtype)
    P = machine.allocate((N_q, N_k), Q.dtype)
    O = machine.allocate((N_q, V.shape[1]), Q.dtype)
    for rows in _blocks(N_q, block_q):
        _store_scores(machine, Q, K, S, rows, block_k)
    for row in _blocks(N_q, 1):
        machine.store(P, row, _softmax_of_row(machine, S, row))
    for rows in _blocks(N_q, block_q):
        machine.store(O, rows, _weigh(machine, P, V, rows, block_k))
    return O
    ### END SOLUTION


### BEGIN SOLUTION
def _store_scores(machine, Q, K, S, rows, block_k):
    Q_tile = machine.load(Q, rows)
    Q_tile *= Q.shape[1] ** -0.5
    for cols in _blocks(K.shape[0], block_k):
        machine.store(S, (rows, cols), Q_tile @ machine.load(K, cols).T)


def _softmax_of_row(machine, S, row):
    tile = machine.load(S, row)
    tile = _exp_of_difference(tile, tile.max(axis=1, keepdims=True))
    tile /= tile.sum(axis=1, keepdims=True)
    return tile


def _weigh(machine, P, V, rows, block_k):
    O_tile = machine.new((len(range(P.shape[0])[rows]), V.shape[1]), 0, V.dtype)
    for cols in _blocks(V.shape[0], block_k):
        O_tile += machine.load(P, (rows, cols)) @ machine.load(V, cols)
    return O_tile


### END SOLUTION


def choose_blocks(sram_bytes: int, d: int, dtype_bytes: int = 4) -> tuple[int, int]:
    """Choose block sizes for `tiled_traffic` that fit into SRAM and move few bytes.

    With them, `tiled_traffic` runs on `Machine(sram_bytes)` for any N_q and N_k, d_v = d, without SRAMOverflow: every
    tile that is alive at once is counted, temporaries too. And they make use of SRAM: the traffic of a long sequence
    roughly halves when sram_bytes doubles.

    Args:
        sram_bytes: the machine's capacity in bytes.
        d: width of Q, K and V.
        dtype_bytes: bytes of one element (float32: 4, float16: 2).

    Returns:
        (block_q, block_k), ints of at least 1.

    Raises:
        ValueError: when not even blocks of 1 × 1 fit; the message names sram_bytes and d.

    Example:
        d = 64, float32: 1 × 1 blocks need at least Q, K or V, and the output, 768 B, before any temporary; so
        choose_blocks(768, 64) raises ValueError.
    """
    ### BEGIN SOLUTION
    # Alive at once in _attend, in elements, while P V is added to the output: Q, the output and the product
    # (block_q × d each), P (block_q × block_k), V (block_k × d), and m_new, l, alpha (block_q each).
    # block_q alone decides the traffic; block_k gets an eighth of SRAM for its tile, and at most 16 keys.
    n_elements = sram_bytes // dtype_bytes
    block_k = min(max(1, n_elements // (8 * d)), 16)
    block_q = (n_elements - block_k * d) // (3 * d + block_k + 3)
    if block_q < 1:
        raise ValueError(f"sram_bytes={sram_bytes} is too small for d={d}: 1 × 1 needs {(4 * d + 4) * dtype_bytes} B")
    return block_q, block_k
    ### END SOLUTION


def io_exponents(Ns: list[int], ds: list[int], sram_sizes: list[int]) -> dict[str, float]:
    """Measure how the traffic of tiled attention grows with N, with d and with the size M of SRAM.

    Runs `tiled_traffic` on a fresh `Machine(M)` for every combination of N (= N_q = N_k), d (= d_v) and M, float32 with
    the blocks of `choose_blocks(M, d)`, and fits traffic ≈ constant · N^a · d^b · M^c to the counted bytes: least
    squares on the logarithms, with equal weight for all combinations.

    Args:
        Ns: sequence lengths, at least two different ones.
        ds: widths, likewise.
        sram_sizes: capacities of SRAM in bytes, likewise.

    Returns:
        dict of floats: "N" the exponent a, "d" the exponent b, "M" the exponent c.

    Raises:
        ValueError: naming the argument that has fewer than two different values; or from `choose_blocks`.

    Example:
        if the traffic were exactly 3 N² d² / M, the result would be {"N": 2.0, "d": 2.0, "M": -1.0}.
    """
    ### BEGIN SOLUTION
    for name, values in (("Ns", Ns), ("ds", ds), ("sram_sizes", sram_sizes)):
        if len(set(values)) < 2:
            raise ValueError(f"{name} needs at least two different values to fit an exponent, got {list(values)}")
    settings = [(N, d, M) for N in Ns for d in ds for M in sram_sizes]
    traffic = []
    for N, d, M in settings:
        machine = Machine(M)
        Q = K = V = np.ones((N, d), np.float32)
        tiled_traffic(machine, Q, K, V, *choose_blocks(M, d))
        traffic.append(machine.traffic)
    powers = np.c_[np.log(settings), np.ones(len(settings))]
    (a, b, c, _), *_ = np.linalg.lstsq(powers, np.log(traffic), rcond=None)
    return {"N": float(a), "d": float(b), "M": float(c)}
    ### END SOLUTION


### BEGIN SOLUTION
def _blocks(length, block, end=None):
    """The slices that cut `range(length)` into blocks; the last is cut at `end`, by default at `length`."""
    end = length if end is None else end
    return [slice(start, min(start + block, end)) for start in range(0, length, block)]


def _check_blocks(block_q, block_k):
    for name, block in (("block_q", block_q), ("block_k", block_k)):
        if block < 1:
            raise ValueError(f"{name} must be at least 1, got {block}")


def _check_shapes(Q, K, V, mask):
    """The leading axes of the output, and the mask as a view of shape (..., N_q, N_k)."""
    if Q.shape[-1] != K.shape[-1]:
        raise ValueError(f"Q and K must have the same d: Q is {Q.shape}, K is {K.shape}")
    if K.shape[-2] != V.shape[-2]:
        raise ValueError(f"K and V must have the same number of keys: K is {K.shape}, V is {V.shape}")
    batch = np.broadcast_shapes(Q.shape[:-2], K.shape[:-2], V.shape[:-2])
    if mask is None:
        return batch, None
    scores = (Q.shape[-2], K.shape[-2])
    try:
        batch = np.broadcast_shapes(batch, mask.shape[:-2])
        return batch, np.broadcast_to(mask, (*batch, *scores))
    except ValueError:
        raise ValueError(f"mask of shape {mask.shape} does not broadcast to {(*batch, *scores)}") from None


### END SOLUTION
