"""Algorithm 1 of the first paper to the letter: the state starts in HBM, where the output is always normalised."""

import numpy as np


def count_tiles(N_q, N_k, block_q, block_k, causal=False):
    _check_blocks(block_q, block_k)
    first_rows, first_columns = np.arange(0, N_q, block_q), np.arange(0, N_k, block_k)
    last_rows = np.minimum(first_rows + block_q, N_q) - 1
    return int(np.sum((first_columns <= last_rows[:, None]) | (not causal)))


def tiled_traffic(machine, Q, K, V, block_q, block_k):
    _check_blocks(block_q, block_k)
    N_q, N_k, d_v = Q.shape[0], K.shape[0], V.shape[1]
    m, l, O = (machine.allocate((N_q, width), Q.dtype) for width in (1, 1, d_v))
    for rows in _blocks(N_q, block_q):
        for part, fill in ((m, -np.inf), (l, 0), (O, 0)):
            machine.store(part, rows, machine.new((len(range(N_q)[rows]), part.shape[1]), fill, Q.dtype))
    for cols in _blocks(N_k, block_k):
        K_tile, V_tile = machine.load(K, cols), machine.load(V, cols)
        for rows in _blocks(N_q, block_q):
            _visit(machine, Q, K_tile, V_tile, m, l, O, rows)
        del K_tile, V_tile
    return O


def _visit(machine, Q, K_tile, V_tile, m, l, O, rows):
    Q_tile, O_tile, m_tile, l_tile = (machine.load(array, rows) for array in (Q, O, m, l))
    S = Q_tile @ K_tile.T
    S *= Q.shape[1] ** -0.5
    m_new = np.maximum(m_tile, S.max(axis=1, keepdims=True))
    P = np.exp(S - m_new)
    kept = l_tile * np.exp(m_tile - m_new)
    l_new = kept + P.sum(axis=1, keepdims=True)
    O_tile = (kept * O_tile + P @ V_tile) / l_new
    for array, tile in ((O, O_tile), (m, m_new), (l, l_new)):
        machine.store(array, rows, tile)


def naive_traffic(machine, Q, K, V, block_q, block_k):
    """Keys outside in both products, softmax instead of S."""
    _check_blocks(block_q, block_k)
    N_q, N_k = Q.shape[0], K.shape[0]
    S = machine.allocate((N_q, N_k), Q.dtype)
    O = machine.allocate((N_q, V.shape[1]), Q.dtype)
    for cols in _blocks(N_k, block_k):
        K_tile = machine.load(K, cols)
        for rows in _blocks(N_q, block_q):
            machine.store(S, (rows, cols), machine.load(Q, rows) @ K_tile.T * Q.shape[1] ** -0.5)
    for i in range(N_q):
        row = machine.load(S, i)
        row = np.exp(row - row.max())
        machine.store(S, i, row / row.sum())
    for cols in _blocks(N_k, block_k):
        V_tile = machine.load(V, cols)
        for rows in _blocks(N_q, block_q):
            product = machine.load(S, (rows, cols)) @ V_tile
            if cols.start:
                product += machine.load(O, rows)
            machine.store(O, rows, product)
    return O


def choose_blocks(sram_bytes, d, dtype_bytes=4):
    """The largest power of two for block_k, with the 8 queries or fewer that leave room for it."""
    capacity = sram_bytes // dtype_bytes
    for block_q in (8, 4, 2, 1):
        for block_k in (1 << k for k in range(20, -1, -1)):
            if 2 * block_k * d + 5 * block_q * d + 3 * block_q * block_k + 8 * block_q <= capacity:
                return block_q, block_k
    raise ValueError(f"an SRAM of {sram_bytes} B holds no 1 × 1 blocks of width d={d}")


def io_exponents(Ns, ds, sram_sizes):
    given = {"N": (Ns, 0), "d": (ds, 1), "M": (sram_sizes, 2)}
    for name, (values, _) in given.items():
        if np.unique(values).size < 2:
            raise ValueError(f"{ {'N': 'Ns', 'd': 'ds', 'M': 'sram_sizes'}[name] }: two different values at least")
    traffic = np.empty((len(Ns), len(ds), len(sram_sizes)))
    for place in np.ndindex(traffic.shape):
        N, d, M = Ns[place[0]], ds[place[1]], sram_sizes[place[2]]
        machine = Machine(M, sealed=True)
        Q, K, V = (machine.hbm(np.zeros((N, d), np.float32)) for _ in "QKV")
        tiled_traffic(machine, Q, K, V, *choose_blocks(M, d))
        traffic[place] = machine.loaded + machine.stored
    slopes = {}
    for name, (values, axis) in given.items():
        x = np.log(values) - np.log(values).mean()
        y = np.moveaxis(np.log(traffic), axis, 0).reshape(len(values), -1).mean(axis=1)
        slopes[name] = float(x @ y / (x @ x))
    return slopes
