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
    # YOUR CODE HERE
    raise NotImplementedError()


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
    # YOUR CODE HERE
    raise NotImplementedError()


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
    # YOUR CODE HERE
    raise NotImplementedError()


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
    # YOUR CODE HERE
    raise NotImplementedError()


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
    # YOUR CODE HERE
    raise NotImplementedError()


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
    # YOUR CODE HERE
    raise NotImplementedError()
