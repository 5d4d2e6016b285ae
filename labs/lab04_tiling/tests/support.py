"""Runs on the simulated machine, the bytes that they must move, and the values that known mistakes lead to."""

import itertools
import math

import numpy as np

from labkit.testing.compare import assert_at_most, assert_equal, assert_keys, assert_type, require
from labkit.testing.tiles.counts import tiles_with_an_entry
from labkit.testing.tiles.io_formulas import keys_outside_traffic, queries_outside_traffic

from .probes import on_machine

WASTE = 4
"""How many times what the best blocks move is still good use of SRAM."""
OTHER_BLOCKS = "Usual cause: the block sizes given are not the ones used"


def count_mistakes(N_q, N_k, block_q, block_k, causal):
    """The number of tiles as known mistakes count them."""
    found = {
        "block_q and block_k are swapped": len(tiles_with_an_entry(N_q, N_k, block_k, block_q, causal)),
        "the number of blocks of keys is rounded down": len(
            tiles_with_an_entry(N_q, N_k // block_k * block_k, block_q, block_k, causal)
        ),
        "the number of blocks of queries is rounded down": len(
            tiles_with_an_entry(N_q // block_q * block_q, N_k, block_q, block_k, causal)
        ),
        "both numbers of blocks are rounded down": (N_q // block_q) * (N_k // block_k),
    }
    if not causal:
        return found

    def tiles_where(is_visited):
        """How many tiles a rule for the first key of a tile and its queries visits."""
        tiles = itertools.product(range(0, N_q, block_q), range(0, N_k, block_k))
        return sum(is_visited(query, min(query + block_q, N_q) - 1, key) for query, key in tiles)

    return {
        "causal is ignored": len(tiles_with_an_entry(N_q, N_k, block_q, block_k, False)),
        "the first query of a tile decides, but its last one sees the most": tiles_where(
            lambda first, last, key: key <= first
        ),
        "tiles that the diagonal crosses are left out": tiles_where(
            lambda first, last, key: min(key + block_k, N_k) - 1 <= first
        ),
        "the last block of queries is taken for a full one": tiles_where(
            lambda first, last, key: key < first + block_q
        ),
        "the diagonal is counted from the bottom right": tiles_where(lambda first, last, key: key <= last + N_k - N_q),
        "a tile whose first key is the last query's own is left out": tiles_where(lambda first, last, key: key < last),
        "a tile is counted whose first key comes one after the last query": tiles_where(
            lambda first, last, key: key <= last + 1
        ),
        "tile (I, J) is counted when J ≤ I, which is right for square tiles only": tiles_where(
            lambda first, last, key: key // block_k <= first // block_q
        ),
        "the number of blocks of keys that a block of queries sees is rounded down": sum(
            min(query + block_q, N_q, N_k) // block_k for query in range(0, N_q, block_q)
        ),
        "tiles are counted up to the diagonal, even beyond the last key": len(
            tiles_with_an_entry(N_q, max(N_q, N_k), block_q, block_k, True)
        ),
    } | found


def assert_large_output(output, Q, K, V, causal=False, mask=False):
    """Compare the output of a call whose memory was bounded, 256 rows at a time."""
    N, wrong = Q.shape[-2], getattr(output, "shape", ()) != V.shape
    for start in range(0, 0 if wrong else N, 256):
        rows = np.s_[..., start : start + 256, :]
        scores = Q[rows] @ np.swapaxes(K, -1, -2) / np.float32(math.sqrt(Q.shape[-1]))
        later = np.arange(N) > np.arange(start, min(start + 256, N))[:, None]
        scores[..., np.broadcast_to(mask | (causal & later), later.shape)] = -np.inf
        powers = np.exp(scores - np.maximum(scores.max(-1, keepdims=True), np.float32(-1e30)))
        want = powers @ V / np.maximum(powers.sum(-1, keepdims=True), 1)
        wrong |= not np.allclose(output[rows], want, rtol=0, atol=1e-4)
    require(not wrong, f"memory stayed within the limit, but the output is wrong at N = {N}")


# The simulated machine


class Run:
    """One call of tiled_traffic or naive_traffic on a fresh machine: its output, and what the machine counted.

    Attributes:
        loaded, stored: bytes moved; q, k and v those loaded from each input.
        in_use: bytes of SRAM in use after the call; high_water the most at once.
        output: the result as an array.
    """

    def __init__(self, task, arrays, blocks, **options):
        self.arrays, self.blocks = arrays, blocks
        found = on_machine(task, arrays, blocks, **options)
        self.loaded, self.stored, self.output = found["loaded"], found["stored"], found["output"]
        self.q, self.k, self.v = (found[name] for name in "qkv")
        self.in_use, self.high_water = found["in_use"], found["high_water"]
        message = f"the result is {found['result']}, expected what machine.allocate returned: the output is in HBM"
        no_result = "\nUsual cause: a path through the function ends without `return`"
        require(self.output is not None, message + no_result * (found["result"] == "NoneType"))
        message = f"{found['host_read']:,} bytes were read out of HBM past the machine (np.asarray or .numpy())"
        require(found["host_read"] == 0, f"{message}: data comes by machine.load alone")
        message = "nothing was loaded from Q, K and V: the bytes are to be moved, not calculated"
        require(self.q + self.k + self.v > 0, message)
        message = "nothing was stored: what machine.allocate returned holds NaN until machine.store writes to it"
        require(self.stored > 0, message)

    @property
    def summary(self):
        """How often each array was loaded, on average over its elements, and the number of blocks."""
        (Q, K, _), (block_q, block_k) = self.arrays, self.blocks
        times = zip("QKV", (self.q, self.k, self.v), self.arrays, strict=True)
        loaded = ", ".join(f"{name} {moved / array.nbytes:.3g} ×" for name, moved, array in times)
        T_q, T_k = -(-len(Q) // block_q), -(-len(K) // block_k)
        return f"blocks of {block_q} × {block_k}, {T_q} of queries and {T_k} of keys: loaded {loaded}"


def assert_tiled_bytes(run):
    """The bytes of each array must be those of one of the two orders of the loops."""
    (Q, K, V), (block_q, block_k) = run.arrays, run.blocks
    (N_q, d), (N_k, d_v), size = Q.shape, V.shape, Q.dtype.itemsize
    T_q, T_k = -(-N_q // block_q), -(-N_k // block_k)
    if (run.k, run.v) == (K.nbytes, V.nbytes) and T_q > 1 and run.q == T_k * Q.nbytes:
        # Whether the state starts in SRAM or in HBM, and whether a last pass divides, is free; so is m and l in one.
        # That comes to twice the state and more: a state that is moved twice a visit is far above either limit.
        lean = keys_outside_traffic(N_q, N_k, d, d_v, block_q, block_k, size)
        inputs, state = run.q + run.k + run.v, N_q * (d_v + 2) * size
        visits, limit = run.loaded - inputs, lean.loaded - inputs + 6 * state
        assert_at_most("what is loaded of the state (keys in the outer loop)", visits, limit)
        assert_at_most("what is stored (keys in the outer loop)", run.stored, lean.stored + 6 * state)
        message = (
            f"{visits:,} bytes of the state were loaded: with keys in the outer loop the state of every query must go "
        )
        message += f"to HBM and back for each of {T_k} blocks of keys"
        require(visits >= (T_k - 1) * N_q * (d_v + 1) * size, message)
        return
    usual = ""
    if (run.k, run.v) == (K.nbytes, V.nbytes):
        usual = "\nUsual cause: all of K and V is loaded at once, whatever the blocks are"
    if run.q >= T_k * Q.nbytes and (run.k, run.v) == (T_q * K.nbytes, T_q * V.nbytes):
        usual = "\nUsual cause: a block of queries is loaded again for each block of keys"
    message = f"{run.summary}\nExpected Q once, K and V {T_q} times (queries in the outer loop), or K and V once, "
    message += f"Q {T_k} times"
    require((run.q, run.k, run.v) == (Q.nbytes, T_q * K.nbytes, T_q * V.nbytes), message + usual)
    want = queries_outside_traffic(N_q, N_k, d, d_v, block_q, block_k, size)
    hint = "something besides Q, K and V is loaded: a state in HBM?"
    assert_equal("the bytes loaded", run.loaded, want.loaded, hint=hint)
    output = N_q * d_v * size
    mistakes = {
        "the output is stored after every block of keys": T_k * output,
        "the output is stored after every block of keys, and at the end": (T_k + 1) * output,
        "the output is filled in HBM before it is written": 2 * output,
    }
    assert_equal("the bytes stored (queries in the outer loop)", run.stored, want.stored, mistakes=mistakes)


def assert_naive_bytes(run):
    """S and P each stored and loaded once; the products in either order of their loops."""
    (Q, K, V), (block_q, block_k) = run.arrays, run.blocks
    T_q, T_k = -(-len(Q) // block_q), -(-len(K) // block_k)
    matrix, output = len(Q) * len(K) * Q.itemsize, len(Q) * V.shape[1] * Q.itemsize
    first = (run.q, run.k) in ((Q.nbytes, T_q * K.nbytes), (T_k * Q.nbytes, K.nbytes))
    expected = f"Expected Q once, K and V {T_q} times (or, with keys outside, K or V once and Q {T_k} times)"
    require(first and run.v in (T_q * V.nbytes, V.nbytes), f"{run.summary}\n{expected}")
    again = (T_k - 1) * output if run.v == V.nbytes and T_q > 1 else 0  # with keys outside, sums of the output
    usual = {
        "S never went to HBM: softmax was computed from tiles in SRAM": matrix,
    }
    of_both = run.loaded - run.q - run.k - run.v - again
    usual |= {
        "a row of S, or of P, is loaded twice": 3 * matrix,
        "a row of S is loaded three times, or one of S and one of P twice": 4 * matrix,
    }
    about = f"the bytes loaded of S and P, {matrix:,} each,"
    assert_equal(about, of_both, 2 * matrix, mistakes=usual)
    usual = {
        "S never went to HBM": matrix + output,
        "an array is filled in HBM before it is written": 2 * matrix + 2 * output,
    }
    about = f"the bytes stored of S, P and the output, {matrix:,}, {matrix:,} and {output:,},"
    assert_equal(about, run.stored - again, 2 * matrix + output, mistakes=usual)


def assert_a_few_tiles(run):
    """Of tiled attention in float32 with d_v = d: SRAM holds what one round needs, and that much."""
    (block_q, block_k), d = run.blocks, run.arrays[0].shape[-1]
    name = f"SRAM in use at once with blocks of {block_q} × {block_k}, d = {d}"
    room = 4 * (7 * block_q * d + 4 * block_k * d + 4 * block_q * block_k + 8 * block_q)
    hint = f"That is room for 7 tiles of {block_q} × {d}, 4 of {block_k} × {d}, 4 of scores and 8 columns\n"
    hint += "Usual cause: all keys are loaded at once; or names of the last round keep its tiles alive: del them"
    assert_at_most(name, run.high_water, room, hint=hint)
    least = 4 * (block_q * d + block_k * d + block_q * block_k)
    message = f"SRAM held {run.high_water:,} bytes at most; Q's tile of {block_q} × {d}, K's of {block_k} × {d}"
    require(run.high_water >= least, f"{message} and their product take {least:,}\n{OTHER_BLOCKS}")


# Blocks that fit: what no order of the steps can do without, and how much a long sequence then moves


def assert_fits(blocks, sram_bytes, d, dtype_bytes=4, cause=""):
    """Q, the output, a block of keys or values, the scores, m and l must all be in SRAM at once.

    `cause` is the usual one, if it is known.
    """
    block_q, block_k = blocks
    least = dtype_bytes * (2 * block_q * d + block_k * d + block_q * block_k + 2 * block_q)
    name = f"what blocks of {block_q} × {block_k} need at the very least, d = {d}, {dtype_bytes} B each"
    hint = f"Q, the output, one block of keys, the scores ({dtype_bytes * block_q * block_k:,} B), m and l"
    if (block_q, block_k) == (1, 1):
        cause = "a ValueError is expected where not even 1 × 1 fits"
    hint += f". Usual cause: {cause or 'the scores or d are left out, or elements are taken for bytes'}"
    assert_at_most(name, least, sram_bytes, unit="bytes of SRAM", hint=hint)


def assert_makes_use(blocks, sram_bytes, d, dtype_bytes):
    """For a long sequence, one order of the loops must move little with these blocks."""
    N = 1 << 16
    moved = traffic_of_best_order(blocks, N, d)
    name = f"the traffic with blocks of {blocks[0]} × {blocks[1]}, {sram_bytes:,} B of SRAM, d = {d}, in units of what "
    hint = "One block size decides the traffic (block_q with queries outside): it must grow as SRAM does"
    ratio = round(moved / least_traffic(N, sram_bytes, d, dtype_bytes), 2)
    assert_at_most(f"{name}the best blocks move,", ratio, WASTE, unit="", hint=hint)


def traffic_of_best_order(blocks, N, d):
    """The bytes, of 4-byte elements, that tiled attention of N tokens moves with these blocks at the least."""
    return min(form(N, N, d, d, *blocks).total for form in (queries_outside_traffic, keys_outside_traffic))


def least_traffic(N, sram_bytes, d, dtype_bytes):
    """About the bytes, of 4-byte elements, that tiled attention of N tokens moves where SRAM is used well.

    Of its elements a query takes 3·d, for Q, output and product, and 19, for its scores with 16 keys and three columns.
    """
    n_queries_at_once = (sram_bytes / dtype_bytes - 16 * d) / (3 * d + 19)
    return 4 * 2 * N * d * (1 + N / n_queries_at_once)


# Exponents


def assert_calls(calls, grid, counter):
    """The calls that io_exponents made of tiled_traffic must be as the handout says; {(N, d, M): `counter`'s bytes}."""
    message = "tiled_traffic was never called: the exponents are to be measured on machines, not known beforehand"
    require(calls, message)
    used = any(call["before"] for call in calls)
    require(not used, "tiled_traffic was called on a machine already used: each run needs a fresh one")
    counted = {}
    for call in calls:
        N, d = (*call["shapes"][0], 1, 1)[:2]
        M, shapes = call["sram_bytes"], ", ".join(map(str, call["shapes"]))
        as_expected = set(call["shapes"]) == {(N, d)} and call["dtype"] == "float32"
        require(as_expected, f"Q, K, V are {shapes} of {call['dtype']}: expected (N, d), float32")
        message = "blocks of {} × {} are not those of choose_blocks({}, {})".format(*call["blocks"], M, d)
        require(tuple(call["blocks"]) == (M % 7 + 1, d % 5 + 1), message)
        counted[N, d, M] = call[counter]
    missing = set(itertools.product(*grid)) - set(counted)
    message = f"{len(missing)} combinations were never run, e.g. (N, d, M) = {min(missing, default=0)}"
    require(not missing, message)
    return counted


def _other_fits(settings, moved, loaded):
    """Usual mistakes in the fit → the exponents that each leads to."""

    def fit(columns, values):
        return np.linalg.lstsq(columns, values, rcond=None)[0][:3]

    with_constant = np.c_[settings, np.ones(len(settings))]
    right = fit(with_constant, moved)
    return {
        "the exponents of d and M have changed places": right[[0, 2, 1]],
        "the fit has no constant: traffic ≈ constant · N^a · d^b · M^c": fit(settings, moved),
        "the traffic itself is fitted, and not its logarithm": fit(with_constant, np.exp(moved)),
        "machine.loaded is fitted: the traffic is what was loaded and what was stored": fit(with_constant, loaded),
    }


def assert_exponents(got, calls, grid, why):
    """The exponents are those of least squares: what they leave of the logarithms is level along each of N, d and M.

    `calls` are those of every combination in `grid`, so that N, d and M vary independently.
    """
    counted, counted_loads = assert_calls(calls, grid, "traffic"), assert_calls(calls, grid, "loaded")
    got = assert_keys("io_exponents's result", got, ("N", "d", "M"))
    for name in "NdM":
        assert_type(f"the exponent of {name}", got[name], (float, np.floating), "a float")
    settings, moved, loaded = (np.log(list(each)) for each in (counted, counted.values(), counted_loads.values()))
    for text, fitted in _other_fits(settings, moved, loaded).items():
        alike = np.allclose([float(got[name]) for name in "NdM"], fitted, rtol=1e-6, atol=1e-9)
        require(not alike, f"the exponents are off\nThat is exactly what comes out when {text}")
    left = moved - settings @ [float(got[name]) for name in "NdM"]
    runs = "; ".join(f"N = {N}, d = {d}, M = {M}: {counted[N, d, M]:,} bytes" for N, d, M in (*counted,)[:3])
    for name, values in zip("NdM", settings.T - settings.mean(0)[:, None], strict=True):
        slope = float(values @ left / (values @ values))
        message = f"the exponent of {name} is {got[name]:.5f}, expected {got[name] + slope:.5f}: {why}"
        require(abs(slope) < 1e-6, f"{message}\nThe first of {len(counted)} runs: {runs}")
