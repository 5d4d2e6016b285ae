"""Lab 04's suite: attention in tiles, exact and small, and the bytes it moves on a machine that counts them."""

import itertools
import math
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import pytest
import tiling
from tiling import choose_blocks, count_tiles, tiled_attention

from labkit.meters.array_tiles import score_tiles
from labkit.meters.arrays import BOOKKEEPING_BYTES, measure_arrays
from labkit.meters.played_traffic import played_traffic
from labkit.meters.unwritten_arrays import uninitialised_is_nan
from labkit.simulated_memory import SRAMOverflow, watch_machines
from labkit.testing.attention.cases import DTYPES, Case, worked_example
from labkit.testing.attention.reference import attention, random_qkv
from labkit.testing.attention.suspects import attention_suspects
from labkit.testing.compare import (
    NAN_FROM_EMPTY,
    as_array,
    assert_at_most,
    assert_equal,
    assert_raises,
    assert_tuple,
    assert_type,
    require,
)
from labkit.testing.probes import probe
from labkit.testing.tiles.counts import count_suspects, tiles_with_an_entry
from labkit.testing.tiles.exponents import PowerLaw, StandIns, assert_exponents
from labkit.testing.tiles.traffic import (
    OTHER_BLOCKS,
    WASTE,
    Run,
    assert_a_few_tiles,
    assert_fits,
    assert_makes_use,
    assert_naive_bytes,
    assert_tiled_bytes,
    least_traffic,
    moved_on_machine,
    what_was_loaded,
)
from labkit.testing.unchanged import left_alone
from labkit.testing.work import assert_entries, assert_tile_sizes

CUTS = {
    "even": (32, 32, 8, 8),
    "wide": (24, 40, 4, 10),
    "tall": (40, 24, 10, 4),
    "ragged": (63, 129, 16, 10),
    "ragged_tall": (129, 63, 10, 16),
    "few_queries": (5, 70, 4, 16),
    "one_by_one": (7, 5, 1, 1),
    "ragged_queries": (10, 20, 8, 4),
    "rows": (9, 11, 1, 4),
    "columns": (11, 9, 4, 1),
    "larger_than_all": (6, 7, 50, 40),
}
by_cut = pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
by_bad_block = pytest.mark.parametrize(("size", "name"), [*itertools.product([0, -2], ["block_q", "block_k"])])
robust, small, refuses = (pytest.mark.kind(kind) for kind in ("robust", "small", "refuses"))
causal_or_not = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])


class TestCountTiles:
    def test_worked_example(self):
        assert_count((8, 8, 4, 2), False, 8)
        assert_count((8, 8, 4, 2), True, 6)

    @causal_or_not
    @by_cut
    def test_every_tile_with_an_entry(self, cut, causal):
        assert_count(cut, causal)

    @causal_or_not
    def test_random_sizes(self, rng, causal):
        for _ in range(60):
            assert_count(tuple(int(n) for n in (*rng.integers(1, 40, 2), *rng.integers(1, 14, 2))), causal)

    @pytest.mark.parametrize("cut", [(0, 8, 4, 4), (8, 0, 4, 4), (0, 0, 1, 1)])
    @causal_or_not
    @robust
    def test_no_queries_or_no_keys(self, cut, causal):
        assert_count(cut, causal, 0)

    def test_keys_beyond_the_last_query(self):
        assert_count((6, 1000, 4, 8), True, 2)

    @robust
    def test_result_is_an_int(self):
        for causal in (False, True):
            assert_type("the number of tiles", count_tiles(9, 7, 2, 3, causal), (int, np.integer), "an int")

    @by_bad_block
    @refuses
    def test_block_sizes_below_one(self, name, size):
        blocks = {"block_q": 4, "block_k": 4} | {name: size}
        assert_raises(ValueError, lambda: count_tiles(8, 8, **blocks), when=f"for {name}={size}", mentions=[name])


def assert_count(cut, causal, want=None):
    """Compare with going through every tile and asking whether one of its entries counts."""
    want = len(tiles_with_an_entry(*cut, causal)) if want is None else want
    name = f"count_tiles({', '.join(map(str, cut))}, causal={causal})"
    assert_equal(name, count_tiles(*cut, causal), want, suspects=count_suspects(*cut, causal))


# Attention


def case_of(Q, K, V, block_k, causal=False, mask=None):
    """A call of attention in blocks of keys, each of which may round once more."""
    return Case(Q, K, V, causal=causal, mask=mask, n_steps=-(-K.shape[-2] // block_k))


def assert_attention(Q, K, V, block_q, block_k, causal=False, mask=None, got=None, usual=None, **hints):
    """Compare an output (by default the student's, from tiled_attention) with attention computed in float64."""
    options = {"causal": causal} | ({} if mask is None else {"mask": mask})
    got = tiled_attention(Q, K, V, block_q, block_k, **options) if got is None else got
    case = case_of(Q, K, V, block_k, causal, mask)
    found = lambda: attention_suspects(case, block_q, block_k) | (usual or {})  # noqa: E731
    case.check("the output", got, suspects=found, dtype=Q.dtype, **hints)


@probe
def tiles_computed(*args, **options):
    """The output of tiled_attention, and the tiles of its scores, (queries, keys)."""
    return score_tiles(tiling.tiled_attention, *args, **options)


@probe
def attention_on_nan(*args):
    """The output of tiled_attention where uninitialised memory holds NaN."""
    with uninitialised_is_nan():
        return tiling.tiled_attention(*args)


TILES_TOO_MANY = (
    "tiles without a visible entry are computed and then masked; a block of keys is left out one too late;\n"
    "the rule for leaving them out holds for square tiles only; or other block sizes are used than the ones given"
)


def assert_far(output, Q, K, V, causal=False, mask=False):
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


class TestTiledAttention:
    def test_worked_example(self):
        assert_attention(*worked_example(), 1, 1)

    @causal_or_not
    @by_cut
    def test_shapes(self, rng, cut, causal):
        Q, K, V = random_qkv(rng, n_queries=cut[0], n_keys=cut[1], d=5, d_v=3)
        hint = "the last tiles are smaller: a buffer has block_q or block_k rows, the tile fewer"
        if causal:
            hint = "position i + row of the tile against j + column; the last query of a tile decides what it visits"
        assert_attention(Q, K, V, *cut[2:], causal=causal, hint=hint)

    @pytest.mark.parametrize("d_v", [20, 4, 1])
    def test_values_of_another_width(self, rng, d_v):
        Q, K, V = random_qkv(rng, n_queries=21, n_keys=33, d=8, d_v=d_v)
        assert_attention(Q, K, V, 8, 5, hint="d is taken for d_v somewhere")

    def test_maximum_moves_at_every_tile(self, rng):
        Q, K, V = random_qkv(rng, n_queries=12, n_keys=40, d=4, d_v=6, logit_scale=2)
        Q[:, 0] = np.abs(Q[:, 0]) + 2
        K[:, 0] = np.sort(K[:, 0]) * 3
        assert_attention(Q, K, V, 5, 8, hint="a new maximum in a row: everything summed before belongs to the old one")

    def test_last_keys_count_most(self, rng):
        Q, K, V = random_qkv(rng, n_queries=10, n_keys=23, d=4)
        Q[:, 0], K[:, 0] = 4, np.where(np.arange(23) > 20, 4, 0)
        assert_attention(Q, K, V, 4, 5)

    @pytest.mark.parametrize(
        ("of_Q", "of_K"),
        [((3,), (3,)), ((2, 3), (2, 3)), ((1, 1), (1, 1)), ((1, 1), (2, 3)), ((2, 3), (2, 1)), ((), (3,))],
    )
    @causal_or_not
    def test_batch(self, rng, of_Q, of_K, causal):
        Q, K, V = random_qkv(rng, n_queries=13, n_keys=18, d=4, d_v=6, batch=(2, 3))
        Q, K, V = (
            x[tuple(slice(n) for n in batch) if len(batch) == 2 else (0, slice(3)) if batch else (0, 0)]
            for x, batch in ((Q, of_Q), (K, of_K), (V, of_K))
        )
        hint = "each head has rows of m and l of its own; the output has the leading axes of all three, broadcast"
        assert_attention(Q, K, V, 5, 7, causal=causal, hint=hint)

    @pytest.mark.parametrize("dtype", DTYPES)
    @causal_or_not
    def test_precisions(self, rng, dtype, causal):
        Q, K, V = random_qkv(rng, n_queries=33, n_keys=41, d=8, d_v=12, dtype=dtype)
        assert_attention(Q, K, V, 10, 12, causal=causal)

    @pytest.mark.parametrize("logit_scale", [30, -100])
    @causal_or_not
    @robust
    def test_large_logits(self, rng, logit_scale, causal):
        Q, K, V = random_qkv(rng, n_queries=31, n_keys=45, d=16, logit_scale=logit_scale)
        assert_attention(Q, K, V, 8, 16, causal=causal, hint="take the maximum from the scores before exp")

    @pytest.mark.parametrize("sign", [-1, 1])
    @robust
    def test_all_logits_far_from_zero(self, rng, sign):
        Q, K, V = random_qkv(rng, n_queries=10, n_keys=17, d=16)
        Q[:, 0], K[:, 0] = 64, sign * 64
        assert_attention(Q, K, V, 4, 5, hint="m must start below every score: at −inf")

    @pytest.mark.parametrize(
        "shape",
        [(19, 30), (1, 30), (30,), (19, 1), (2, 3, 19, 30), (2, 1, 19, 30), (3, 19, 30), (2, 1, 1, 30), (1, 3, 19, 1)],
        ids=str,
    )
    @causal_or_not
    def test_mask(self, rng, shape, causal):
        batch = (2, 3) if len(shape) > 2 else ()
        Q, K, V = random_qkv(rng, n_queries=19, n_keys=30, d=6, d_v=4, batch=batch)
        mask = rng.random(shape) < 0.4
        assert_attention(Q, K, V, 5, 8, causal=causal, mask=mask, hint=f"the mask has shape {shape} and broadcasts")

    @pytest.mark.parametrize("masked", ["first", "middle", "last", "all"])
    @robust
    def test_whole_tiles_masked(self, rng, masked):
        Q, K, V = random_qkv(rng, n_queries=12, n_keys=24, d=6, d_v=5)
        mask = np.zeros((12, 24), bool)
        mask[:, {"first": np.s_[:8], "middle": np.s_[8:16], "last": np.s_[16:], "all": np.s_[:]}[masked]] = True
        assert_attention(Q, K, V, 4, 8, mask=mask, hint="−inf − (−inf): a tile of such scores changes nothing")

    @causal_or_not
    @robust
    def test_rows_without_a_key(self, rng, causal):
        Q, K, V = random_qkv(rng, n_queries=14, n_keys=20, d=6, d_v=5, batch=(2,))
        mask = rng.random((2, 14, 20)) < 0.3
        mask[0, 3] = mask[1, 7:9] = True
        mask[:, 0, 0] = True
        assert_attention(Q, K, V, 4, 6, causal=causal, mask=mask, hint="0/0 or −inf − (−inf): then the output is 0")

    @robust
    def test_mask_with_large_logits(self, rng):
        Q, K, V = random_qkv(rng, n_queries=14, n_keys=20, d=16, logit_scale=60)
        mask = rng.random((14, 20)) < 0.5
        mask[:, 0] = False
        assert_attention(Q, K, V, 4, 6, mask=mask, hint="masked scores are −inf: no finite number is below every score")

    @robust
    def test_row_with_every_key_masked_beside_large_logits(self, rng):
        Q, K, V = random_qkv(rng, n_queries=14, n_keys=20, d=16, logit_scale=1_000)
        mask = np.zeros((14, 20), bool)
        mask[5] = True
        hint = (
            "a query without keys must leave the others of its tile theirs: every row takes its own maximum before exp"
        )
        assert_attention(Q, K, V, 4, 6, mask=mask, hint=hint, nan_hint=hint)

    @robust
    def test_uninitialised_memory_is_written_over(self, rng):
        Q, K, V = random_qkv(rng, n_queries=21, n_keys=37, d=8, d_v=5, batch=(2,))
        assert_attention(Q, K, V, 8, 16, got=attention_on_nan(Q, K, V, 8, 16), nan_hint=NAN_FROM_EMPTY)

    @robust
    def test_arguments_are_left_alone(self, rng):
        Q, K, V = random_qkv(rng, n_queries=9, n_keys=11, d=4)
        mask = rng.random((9, 11)) < 0.3
        with left_alone(("Q", "K", "V", "mask"), (Q, K, V, mask)):
            tiled_attention(Q, K, V, 4, 4, causal=True, mask=mask)

    @robust
    def test_no_keys_and_no_queries(self, rng):
        Q, K, V = random_qkv(rng, n_queries=5, n_keys=6, d=4, d_v=3)
        got = as_array("the output", tiled_attention(Q, K[:0], V[:0], 4, 4))
        require(got.shape == (5, 3) and not got.any(), f"without keys the output is zeros of (5, 3), got {got.shape}")
        assert_equal("the output's shape without queries", tiled_attention(Q[:0], K, V, 4, 4).shape, (0, 3))

    @pytest.mark.parametrize("blocks", [(6, 10), (10, 6), (8, 8), (7, 3), (3, 7), (16, 4), (4, 16)], ids=str)
    @pytest.mark.parametrize("sizes", [(40, 40), (23, 50), (50, 23)], ids=str)
    @small
    def test_causal_tiles_are_skipped(self, rng, blocks, sizes):
        (block_q, block_k), (N_q, N_k) = blocks, sizes
        Q, K, V = random_qkv(rng, n_queries=N_q, n_keys=N_k, d=4)
        assert_attention(Q, K, V, block_q, block_k, causal=True)
        for start in range(0, N_q, block_q):
            stop = min(start + block_q, N_q)
            unseen = -(-stop // block_k) * block_k  # the first key of the first tile that these queries do not visit
            K_trap, V_trap = K.copy(), V.copy()
            K_trap[unseen:] = V_trap[unseen:] = np.nan
            with np.errstate(all="ignore"):
                got = as_array("the output", tiled_attention(Q, K_trap, V_trap, block_q, block_k, causal=True))
            n_spoilt = int(np.isnan(got[:stop]).any(axis=-1).sum())
            told = f"NaN laid into keys {unseen} and up reaches {n_spoilt} of the queries 0 to {stop - 1}, whose tiles "
            told += f"of {block_q} × {block_k} end at key {unseen - 1}"
            require(not n_spoilt, f"{told}\nUsual cause: {TILES_TOO_MANY}")
            assert_attention(Q[:stop], K, V, block_q, block_k, causal=True, got=got[:stop])

    @pytest.mark.parametrize("mode", ["", "causal", "mask", "causal and mask"])
    @pytest.mark.parametrize("cut", [(40, 40, 6, 10), (23, 50, 16, 4), (9, 300, 4, 16), (300, 9, 16, 4)], ids=str)
    @small
    def test_tiles_are_those_asked_for(self, rng, cut, mode):
        N_q, N_k, *blocks = cut
        causal, where = "causal" in mode, f"for N_q = {N_q}, N_k = {N_k}, blocks of {blocks[0]} × {blocks[1]}"
        Q, K, V = random_qkv(rng, n_queries=N_q, n_keys=N_k, d=11, d_v=5)
        Q, K = np.abs(Q) + np.float32(0.1), -np.abs(K) - np.float32(0.1)
        mask = np.arange(N_k) >= 4 if "mask" in mode else None  # whole tiles of it are hidden, and yet computed
        output, found = tiles_computed(Q, K, V, *blocks, causal, mask)
        assert_attention(Q, K, V, *blocks, causal=causal, mask=mask, got=output)
        if not found:
            return  # computed from copies: then memory alone tells
        assert_tile_sizes("tiled_attention" + f" with {mode}" * bool(mode), found, N_q, N_k, blocks, causal)
        assert_entries(f"the scores computed {where}{mode and ', '}{mode}", found, cut, causal)

    @pytest.mark.parametrize(
        ("N", "d", "batch", "blocks", "mode"),
        [
            *((1024, 64, (), (64, 64), mode) for mode in ("causal", "mask", "causal and mask")),
            (2048, 64, (), (256, 128), ""),
            (512, 32, (2, 3), (32, 64), ""),
        ],
        ids=["causal", "mask", "causal and mask", "long", "batch"],
    )
    @small
    def test_memory(self, rng, N, d, batch, blocks, mode):
        Q, K, V = (rng.standard_normal((*batch, N, d), dtype=np.float32) for _ in "QKV")
        options = {"causal": "causal" in mode} | ({"mask": rng.random(N) < 0.1} if "mask" in mode else {})
        small = {name: value[:8] if name == "mask" else value for name, value in options.items()}
        tiled_attention(Q[..., :8, :], K[..., :8, :], V[..., :8, :], 4, 4, **small)
        measured = measure_arrays(tiled_attention, Q, K, V, *blocks, warm=False, **options)
        matrix = 4 * math.prod(batch) * N * N
        name = f"the peak at N = {N}, d = {d}, blocks of {blocks[0]} × {blocks[1]}{mode and ', '}{mode}"
        hint = "The limit is 4·N·d elements, the output included; one N × N array of the scores would be "
        assert_at_most(
            name, measured.peak_bytes, 4 * Q.nbytes, hint=f"{hint}{matrix:,} bytes, one of booleans {matrix // 4:,}"
        )
        assert_far(measured.result, Q, K, V, **options)

    @pytest.mark.parametrize(
        "cut", [(256, 256, 8, 256), (256, 256, 256, 8), (64, 2048, 64, 16), (2048, 64, 16, 64)], ids=str
    )
    @small
    def test_small_blocks_need_little(self, rng, cut):
        N_q, N_k, *blocks = cut
        Q, K, V = random_qkv(rng, n_queries=N_q, n_keys=N_k, d=2, dtype=np.float64)
        tiled_attention(Q, K, V, *blocks)
        peak, _, output = measure_arrays(tiled_attention, Q, K, V, *blocks, warm=False)
        assert_attention(Q, K, V, *blocks, got=output)
        tile, copies = 8 * math.prod(blocks), 6 * 8 * 4 * (max(N_q, N_k) + sum(blocks))
        name = f"the peak at N_q = {N_q}, N_k = {N_k}, d = 2, blocks of {blocks[0]} × {blocks[1]}, float64"
        cause = "block sizes of your own, one of the two used for both, or whole rows of scores"
        hint = f"A tile of scores has {tile:,} bytes\nUsual cause: {cause}"
        assert_at_most(name, peak, 6 * tile + copies + BOOKKEEPING_BYTES, hint=hint)

    @small
    def test_one_block_is_one_tile(self, rng):
        N = 512
        Q, K, V = random_qkv(rng, n_queries=N, d=4, dtype=np.float64)
        tiled_attention(Q[:8], K, V, 8, 8)
        peak, _, output = measure_arrays(tiled_attention, Q, K, V, N, N, warm=False)
        assert_attention(Q, K, V, N, N, got=output)
        told = f"the peak with blocks of {N} × {N} is {peak:,} bytes, but one tile of scores has {8 * N * N:,}"
        require(peak >= 8 * N * N, f"{told}\n{OTHER_BLOCKS}")

    @by_bad_block
    @refuses
    def test_block_sizes_below_one(self, rng, name, size):
        Q, K, V = random_qkv(rng, n_queries=6, d=4)
        blocks = {"block_q": 4, "block_k": 4} | {name: size}
        when = f"for {name}={size}"
        assert_raises(ValueError, lambda: tiled_attention(Q, K, V, **blocks), when=when, mentions=[name])

    @pytest.mark.parametrize(
        ("shapes", "mask", "mentions"),
        [
            (((6, 4), (8, 5), (8, 3)), None, ("(6, 4)", "(8, 5)")),
            (((6, 4), (8, 4), (7, 3)), None, ("(8, 4)", "(7, 3)")),
            (((6, 4), (8, 4), (1, 3)), None, ("(8, 4)", "(1, 3)")),
            *((((6, 4), (8, 4), (8, 3)), mask, (str(mask),)) for mask in ((6, 7), (5, 8), (2,), (9, 8))),
        ],
    )
    @refuses
    def test_shapes_that_do_not_fit(self, shapes, mask, mentions):
        Q, K, V = (np.ones(shape, np.float32) for shape in shapes)
        options = {} if mask is None else {"mask": np.zeros(mask, bool)}
        when = "for shapes that do not fit" + f": a mask of {mask} and scores of (6, 8)" * bool(options)
        assert_raises(ValueError, lambda: tiled_attention(Q, K, V, 4, 4, **options), when=when, mentions=mentions)

    @pytest.mark.kind("small")
    @pytest.mark.outside(mib=16)
    def test_no_matrix_seen_from_outside(self, rng, outside):
        Q, K, V = (rng.standard_normal((4096, 64), dtype=np.float32) for _ in "QKV")
        output = outside(tiled_attention, Q, K, V, 256, 256)
        assert_far(output, Q, K, V)


# The machine: inputs in a sealed HBM, so that nothing can be computed from what was not loaded


def on_machine(function, *args, **options):
    """Call tiled_traffic or naive_traffic, by its name, on a fresh machine: see `labkit.testing.tiles.traffic`."""
    return moved_on_machine(getattr(tiling, function), *args, **options)


AMPLE = 1 << 20
TRIPS = {
    "ragged": (23, 31, 6, 5, 6, 4),
    "ragged_wide": (20, 50, 4, 7, 7, 16),
    "even": (24, 32, 8, 8, 8, 8),
    "columns": (15, 12, 5, 3, 5, 1),
    "rows": (9, 20, 3, 4, 1, 5),
}
by_trip = pytest.mark.parametrize("trip", TRIPS.values(), ids=TRIPS)


def trip_arrays(rng, trip, dtype=np.float32, **options):
    N_q, N_k, d, d_v, *_ = trip
    return random_qkv(rng, n_queries=N_q, n_keys=N_k, d=d, d_v=d_v, dtype=dtype, **options)


class EitherTraffic:
    """What is asked of tiled and of standard attention on the machine alike."""

    function: ClassVar[str]
    assert_bytes: ClassVar[Callable[[Run], None]]

    def run(self, arrays, blocks, sram_bytes=AMPLE, used=False):
        return Run(on_machine(self.function, arrays, blocks, sram_bytes, used=used), arrays, blocks)

    def check(self, arrays, blocks, **options):
        assert_attention(*arrays, *blocks, got=self.run(arrays, blocks).output, **options)

    @by_trip
    def test_output(self, rng, trip):
        arrays = (Q, K, V) = trip_arrays(rng, trip)
        swapped = attention(K, Q, Q)
        powers = np.exp(swapped.lse)[:, None] * swapped.weights
        usual = {"the weights are not divided by their sum": lambda: (powers / powers.max(0)).T @ V}
        self.check(arrays, trip[4:], usual=usual)

    def test_output_in_float64(self, rng):
        self.check(trip_arrays(rng, TRIPS["ragged"], np.float64), (6, 4))

    def test_maximum_moves_at_every_tile(self, rng):
        Q, K, V = random_qkv(rng, n_queries=12, n_keys=40, d=4, d_v=6, logit_scale=2)
        Q[:, 0], K[:, 0] = np.abs(Q[:, 0]) + 2, np.sort(K[:, 0]) * 3
        self.check((Q, K, V), (5, 8))

    @pytest.mark.parametrize("logit_scale", [30, -100])
    @robust
    def test_large_logits(self, rng, logit_scale):
        arrays = trip_arrays(rng, (23, 31, 16, 5), logit_scale=logit_scale)
        self.check(arrays, (6, 4), hint="the maximum comes first")

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    @by_trip
    @small
    def test_bytes(self, rng, trip, dtype):
        self.assert_bytes(self.run(trip_arrays(rng, trip, dtype), trip[4:]))

    @small
    def test_worked_example(self, rng):
        run = self.run(trip_arrays(rng, (8, 8, 4, 4)), (4, 2))
        self.assert_bytes(run)
        if run.k == run.v == 2 * run.arrays[1].nbytes:
            want = {"tiled_traffic": 768, "naive_traffic": 1792}[self.function]
            assert_equal("the traffic with queries in the outer loops", run.loaded + run.stored, want)

    @small
    def test_a_machine_in_use_goes_on_counting(self, rng):
        self.assert_bytes(self.run(trip_arrays(rng, TRIPS["ragged"]), (6, 4), used=True))

    def test_plain_arrays_in_hbm(self, rng):
        arrays = trip_arrays(rng, TRIPS["ragged"])
        with left_alone("QKV", arrays):
            told = on_machine(self.function, arrays, (6, 4), AMPLE, sealed=False)
            assert_attention(*arrays, 6, 4, got=told["output"])
            stored = told["stored_to_output"] >= told["output"].nbytes  # in an array here, in which anybody may write
            require(stored, "the output was not written by machine.store")

    @small
    def test_sram_is_empty_afterwards(self, rng):
        run = self.run(trip_arrays(rng, TRIPS["ragged"]), (6, 4))
        assert_equal("the bytes of SRAM still in use after the call", run.in_use, 0, hint="a tile is kept somewhere")

    @small
    def test_blocks_too_large_overflow(self, rng):
        arrays = trip_arrays(rng, (64, 64, 8, 8))
        self.run(arrays, (4, 4), sram_bytes=8192)
        when = "for blocks of 64 × 64 in an SRAM of 8192 B, where the scores alone take 16,384"
        assert_raises(SRAMOverflow, lambda: self.run(arrays, (64, 64), sram_bytes=8192), when=when)

    @by_bad_block
    @refuses
    def test_block_sizes_below_one(self, rng, name, size):
        arrays = trip_arrays(rng, (6, 6, 4, 4))
        blocks = {"block_q": 4, "block_k": 4} | {name: size}
        call = lambda: on_machine(self.function, arrays, blocks, AMPLE, sealed=False)["output"]  # noqa: E731
        assert_raises(ValueError, call, when=f"for {name}={size}", mentions=[name])


class TestTiledTraffic(EitherTraffic):
    function, assert_bytes = "tiled_traffic", staticmethod(assert_tiled_bytes)

    @small
    def test_smaller_blocks_move_more(self, rng):
        arrays = trip_arrays(rng, (48, 48, 8, 8))
        moved = [run.loaded + run.stored for run in (self.run(arrays, (b, b)) for b in (4, 8, 16, 24))]
        told = f"blocks of 4, 8, 16 and 24 move {moved} bytes: smaller blocks must move more"
        require(sorted(set(moved), reverse=True) == moved, f"{told}\n{OTHER_BLOCKS}")

    @small
    def test_sram_does_not_grow_with_the_sequence(self, rng):
        few, many = (self.run(trip_arrays(rng, (n, n, 4, 4)), (8, 8)).high_water for n in (24, 96))
        hint = f"With 3 blocks of the same size it was {few:,}. Usual cause: tiles are kept from round to round"
        assert_at_most("SRAM in use at once with 12 blocks", many, few, hint=hint)

    @pytest.mark.parametrize("blocks", [(16, 16), (16, 4), (4, 16)], ids=str)
    @small
    def test_a_few_tiles_at_a_time(self, rng, blocks):
        assert_a_few_tiles(self.run(trip_arrays(rng, (64, 64, 8, 8)), blocks))


class TestNaiveTraffic(EitherTraffic):
    function, assert_bytes = "naive_traffic", staticmethod(assert_naive_bytes)

    @small
    def test_runs_where_the_matrix_does_not_fit(self, rng):
        arrays = trip_arrays(rng, (80, 80, 8, 8))
        run = self.run(arrays, (8, 8), sram_bytes=4096)
        assert_attention(*arrays, 8, 8, got=run.output)
        self.assert_bytes(run)


# Blocks that fit: what no order of the steps can do without, and how much a long sequence then moves

SRAMS = [(8_192, 16), (32_768, 64), (65_536, 64), (100_001, 32), (131_072, 128), (1 << 20, 64)]
by_sram = pytest.mark.parametrize(("sram_bytes", "d"), SRAMS)


def blocks_of(sram_bytes, d, **options):
    """The student's blocks, as two ints of at least 1."""
    got = assert_tuple("choose_blocks's result", choose_blocks(sram_bytes, d, **options), ("block_q", "block_k"))
    for name, block in zip(("block_q", "block_k"), got, strict=True):
        assert_type(name, block, (int, np.integer), "an int")
        require(block >= 1, f"{name} is {block} for sram_bytes={sram_bytes}, d={d}: expected at least 1")
    return got


class TestChooseBlocks:
    @refuses
    def test_worked_example(self):
        when = "for 768 B, in which d=64 leaves no room for a temporary"
        assert_raises(ValueError, lambda: choose_blocks(768, 64), when=when, mentions=["768", "64"])

    @pytest.mark.parametrize("dtype_bytes", [2, 4, 8])
    @by_sram
    def test_fits(self, sram_bytes, d, dtype_bytes):
        assert_fits(blocks_of(sram_bytes, d, dtype_bytes=dtype_bytes), sram_bytes, d, dtype_bytes)

    @robust
    def test_float32_is_the_default(self):
        assert_equal("choose_blocks(65536, 64)", choose_blocks(65_536, 64), choose_blocks(65_536, 64, 4))

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    @pytest.mark.parametrize(("sram_bytes", "d"), SRAMS[:-1])
    def test_fits_with_every_temporary(self, sram_bytes, d, dtype):
        size = np.dtype(dtype).itemsize
        block_q, block_k = blocks_of(sram_bytes, d, dtype_bytes=size)
        assert_fits((block_q, block_k), sram_bytes, d, size)
        Q, K = np.ones((2 * block_q + 1, d), dtype), np.ones((2 * block_k + 1, d), dtype)
        try:
            on_machine("tiled_traffic", (Q, K, K), (block_q, block_k), sram_bytes, sealed=False)
        except SRAMOverflow as overflow:
            told = f"your tiled_traffic overflows with your blocks of {block_q} × {block_k}, d = {d}:\n{overflow}"
            cause = "a temporary is not counted, like the product of weights and values before it is added"
            require(False, f"{told}\nUsual cause: {cause}")

    @pytest.mark.parametrize("dtype_bytes", [2, 4])
    @by_sram
    def test_makes_use_of_sram(self, sram_bytes, d, dtype_bytes):
        self.assert_well_used(sram_bytes, d, dtype_bytes)

    def test_memories_drawn_at_random(self, rng):
        for _ in range(4):
            self.assert_well_used(int(rng.integers(1 << 15, 1 << 20)), int(rng.integers(12, 96)), 4)

    def assert_well_used(self, sram_bytes, d, dtype_bytes):
        blocks = blocks_of(sram_bytes, d, dtype_bytes=dtype_bytes)
        assert_fits(blocks, sram_bytes, d, dtype_bytes)
        assert_makes_use(blocks, sram_bytes, d, dtype_bytes)

    def test_serves_your_own_loop(self):
        sram_bytes, d, N = 65_536, 32, 1024
        blocks = blocks_of(sram_bytes, d)
        Q = np.ones((N, d), np.float32)
        told = on_machine("tiled_traffic", (Q, Q, Q), blocks, sram_bytes, sealed=False)
        name = (
            f"what your tiled_traffic moves with your blocks of {blocks[0]} × {blocks[1]} in {sram_bytes:,} B of SRAM"
        )
        limit = round(WASTE * least_traffic(N, sram_bytes, d, 4))
        hint = "Usual cause: the wrong one of the two block sizes is large. Which one decides how often K and V "
        hint += "(or Q) are loaded in your order of the loops?"
        assert_at_most(name, told["loaded"] + told["stored"], limit, hint=hint)

    @pytest.mark.parametrize("d", [8, 64, 128])
    @robust
    def test_small_srams(self, d):
        """Too little for 1 × 1 is an error, twelve rows of d are enough; between, either, but blocks must fit."""
        for sram_bytes in range(4, 4 * 12 * d + 64, 52):
            try:
                blocks = choose_blocks(sram_bytes, d)
            except ValueError:
                enough = 4 * 12 * d
                told = f"a ValueError for sram_bytes={sram_bytes}, d={d}: {enough} B are enough for 1 × 1"
                require(sram_bytes < enough, told)
            else:
                assert_tuple("choose_blocks's result", blocks, ("block_q", "block_k"))
                require(min(blocks) >= 1, f"choose_blocks({sram_bytes}, {d}) is {blocks}: expected ValueError")
                assert_fits(blocks, sram_bytes, d)

    @pytest.mark.parametrize(("sram_bytes", "dtype_bytes"), [(1, 4), (256, 4), (1024, 8)])
    @refuses
    def test_not_even_one_by_one(self, sram_bytes, dtype_bytes):
        call, when = lambda: choose_blocks(sram_bytes, 64, dtype_bytes), f"for {sram_bytes=}, d=64, {dtype_bytes=}"
        assert_raises(ValueError, call, when=when, mentions=[str(sram_bytes), "64"])


# Exponents: the student's loop over machines, with stand-ins for the functions it calls


@probe
def exponents_of_stand_ins(arguments, called, chosen):
    """io_exponents, its arguments by name, with stand-ins for the two functions that it calls."""
    with played_traffic(tiling, called, chosen):
        return tiling.io_exponents(**arguments)


def exponents_and_machines(Ns, ds, sram_sizes):
    """io_exponents, and of each machine it used (shape of the first input loaded from, sram_bytes, traffic)."""
    with watch_machines() as machines:
        exponents = tiling.io_exponents(Ns, ds, sram_sizes)
    return exponents, what_was_loaded(machines)


def exponents_of(stand_ins, Ns, ds, sram_sizes):
    """What the student's io_exponents makes of stand-ins."""
    arguments = {"Ns": Ns, "ds": ds, "sram_sizes": sram_sizes}
    return exponents_of_stand_ins(arguments, stand_ins.called, stand_ins.choose_blocks)


@pytest.fixture
def stand_ins(rng):
    return StandIns(rng)


GRID = ([40, 64, 96], [4, 8, 12], [1024, 1536, 4096])


class TestIoExponents:
    def test_fits_what_was_counted(self, stand_ins):
        got = exponents_of(stand_ins, *GRID)
        stand_ins.assert_ran(GRID)
        assert_exponents(got, stand_ins.bytes, "least squares on the logarithms of what was counted")

    def test_two_values_each(self, stand_ins):
        grid = ([32, 128], [16, 4], [2048, 1024])
        got = exponents_of(stand_ins, *grid)
        stand_ins.assert_ran(grid)
        assert_exponents(got, stand_ins.bytes, "the fit of what was counted, whatever order the values come in")

    @small
    def test_every_combination_once(self, stand_ins):
        exponents_of(stand_ins, *GRID)
        seen = sorted(stand_ins.calls)
        want = sorted(itertools.product(*GRID))
        require(seen == want, f"{len(seen)} runs of {len(set(seen))} combinations, expected {len(want)}, each once")

    def test_a_power_law(self, rng):
        stand_ins = PowerLaw(rng)
        got = exponents_of(stand_ins, [32, 64], [4, 8, 16], [1024, 2048, 4096])
        assert_exponents(got, stand_ins.bytes, "the traffic is N²·d/M exactly")

    def test_your_own_traffic(self):
        grid = ([96, 192], [8, 16], [4096, 16384])
        got, machines = exponents_and_machines(*grid)
        # The first array loaded from is Q or K: every order of the loops begins with one of them.
        counted = {(*shape, sram_bytes): traffic for shape, sram_bytes, traffic in machines}
        missing = set(itertools.product(*grid)) - set(counted)
        require(not missing, f"{len(missing)} of 8 combinations moved no bytes on a machine of their own")
        wanted = {setting: counted[setting] for setting in itertools.product(*grid)}
        assert_exponents(got, wanted, "the fit of what was counted")
        told = f"the exponents are N {got['N']:.2f} and M {got['M']:.2f}; the paper's theorem has 2 and −1"
        cause = "choose_blocks does not use what SRAM there is, or the block sizes have no influence"
        require(1.5 < got["N"] < 2.1 and -1.5 < got["M"] < -0.4, f"{told}\nUsual cause: {cause}")

    @pytest.mark.parametrize("name", ["Ns", "ds", "sram_sizes"])
    @pytest.mark.parametrize("values", [[64], [64, 64], []], ids=["one", "equal", "none"])
    @refuses
    def test_fewer_than_two_different_values(self, stand_ins, name, values):
        arguments = {"Ns": [32, 64], "ds": [4, 8], "sram_sizes": [1024, 2048]} | {name: values}
        when = f"for {name}={values}: no line through one point"
        assert_raises(ValueError, lambda: exponents_of(stand_ins, **arguments), when=when, mentions=[name])
