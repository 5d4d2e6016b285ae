"""Lab 04's suite: attention in tiles, exact and small, and the bytes it moves on a machine that counts them."""

import functools
import itertools
import math
from typing import ClassVar

import numpy as np
import pytest
from tiling import choose_blocks, count_tiles, tiled_attention

from labkit.meters.arrays import BOOKKEEPING_BYTES
from labkit.simulated_memory import SRAMOverflow
from labkit.testing.attention.cases import Case, array_case, worked_example
from labkit.testing.attention.mistakes import attention_mistakes
from labkit.testing.attention.table import attention_cases, mismatched_shapes
from labkit.testing.compare import (
    NAN_FROM_EMPTY,
    as_array,
    assert_at_most,
    assert_equal,
    assert_raises,
    assert_refused,
    assert_tuple,
    assert_type,
    require,
    require_at_most,
)
from labkit.testing.tiles.counts import tiles_with_an_entry
from labkit.testing.unchanged import copied, report_mutation_first, unchanged
from labkit.testing.work import assert_entries, assert_tile_sizes

from .probes import attention_and_tiles, attention_on_nan, exponents_of_stand_ins, on_machine, peak_and_output
from .support import (
    WASTE,
    Run,
    assert_a_few_tiles,
    assert_exponents,
    assert_fits,
    assert_large_output,
    assert_makes_use,
    assert_naive_bytes,
    assert_tiled_bytes,
    count_mistakes,
    least_traffic,
    traffic_of_best_order,
)

CUTS = [(24, 40, 4, 10), (40, 24, 10, 4), (63, 129, 16, 10), (5, 70, 4, 16), (7, 5, 1, 1), (6, 7, 50, 40)]
"""N_q, N_k, block_q and block_k."""


def sizes(cut):
    """A cut in a test's name."""
    return "N{}x{}-blocks{}x{}".format(*cut)


causal_or_not = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
by_bad_block = pytest.mark.parametrize(
    "blocks", [(0, 4), (-2, 4), (4, 0), (4, -2)], ids=["block_q0", "block_q-2", "block_k0", "block_k-2"]
)


def assert_blocks_refused(call, blocks):
    """Expect a ValueError that names the block size below 1; the other one is 4."""
    name = "block_q" if blocks[0] < 1 else "block_k"
    assert_raises(ValueError, lambda: call(*blocks), when=f"for {name}={min(blocks)}", mentions={name: min(blocks)})


class TestCountTiles:
    def check(self, cut, causal, want=None):
        """Compare with going through every entry of the scores."""
        want = len(tiles_with_an_entry(*cut, causal)) if want is None else want
        name, got = f"count_tiles({', '.join(map(str, cut))}, causal={causal})", count_tiles(*cut, causal)
        assert_equal(name, got, want, mistakes=count_mistakes(*cut, causal))
        assert_type("the number of tiles", got, (int, np.integer), "an int")

    def test_worked_example(self):
        self.check((8, 8, 4, 2), False, 8)
        self.check((8, 8, 4, 2), True, 6)

    @causal_or_not
    def test_random_sizes(self, rng, causal):
        cuts = [tuple(int(n) for n in (*rng.integers(1, 40, 2), *rng.integers(1, 14, 2))) for _ in range(60)]
        for cut in sorted(cuts, key=lambda cut: -len(set(count_mistakes(*cut, causal).values()))):
            self.check(cut, causal)  # those that tell most mistakes apart come first

    @causal_or_not
    @pytest.mark.robust
    def test_no_queries_or_no_keys(self, causal):
        for lengths in ((0, 8), (8, 0)):
            self.check((*lengths, 4, 4), causal, 0)

    @by_bad_block
    @pytest.mark.refuses
    def test_block_sizes_below_one(self, blocks):
        assert_blocks_refused(functools.partial(count_tiles, 8, 8), blocks)


def assert_output(case, got, blocks, hint="", nan_hint="", usual=None):
    """Compare an output with attention computed in float64, and name a known mistake where one fits."""
    case.check(
        "O",
        got,
        lambda: attention_mistakes(case, *blocks) | (usual or {}),
        called="the output",
        dtype=case.Q.dtype,
        hint=hint,
        nan_hint=nan_hint,
    )


DTYPES = ("float16", "float32", "float64")
CASES = attention_cases("full", "causal", "masked", dtypes=DTYPES, sums="own")  # plain attention in float16 adds in it
masked_or_not = pytest.mark.parametrize(
    "options", [{}, {"causal": True}, {"masked": True}], ids=["full", "causal", "masked"]
)


def attend(case, blocks, hint="", nan_hint="", function=tiled_attention):
    """Call the student's function on copies of a case's arrays, and compare its output."""
    given = case.arguments
    with report_mutation_first(given):
        Q, K, V = (given[name] for name in "QKV")
        mask = {"mask": given["mask"]} if "mask" in given else {}
        assert_output(case, function(Q, K, V, *blocks, causal=case.causal, **mask), blocks, hint, nan_hint)


class TestTiledAttention:
    @pytest.mark.basic
    def test_worked_example(self):
        attend(Case(*worked_example()), (8, 5))

    @pytest.mark.basic
    @pytest.mark.parametrize("row", CASES)
    def test_results(self, rng, row):
        attend(row.draw(array_case, rng), (8, 5), hint=row.hint, nan_hint=row.nan_hint)

    @pytest.mark.parametrize("shape", [(12,), (9, 1), (3, 1, 12), (3, 9, 12)], ids=str)
    def test_mask_broadcasts(self, rng, shape):
        case = array_case(rng, n_queries=9, n_keys=12, d=8, batch=(3,))
        case.mask = rng.random(shape) < 0.4
        attend(case, (8, 5), hint=f"the mask has shape {shape} and broadcasts over (..., N_q, N_k)")

    @pytest.mark.robust
    def test_arguments_are_left_alone(self, rng):
        given = array_case(rng, n=20, d=8, masked=True).arguments
        with unchanged(given):
            tiled_attention(*(given[name] for name in "QKV"), 8, 5, mask=given["mask"])

    @masked_or_not
    @pytest.mark.robust
    def test_uninitialised_memory_is_written_over(self, rng, options):
        case = array_case(rng, n_queries=37, n_keys=21, d=8, d_v=5, batch=(2,), **options)
        attend(case, (8, 5), nan_hint=NAN_FROM_EMPTY, function=attention_on_nan)

    @pytest.mark.refuses
    def test_shapes_that_do_not_fit(self, rng):
        Q, K, V = array_case(rng, n_queries=6, n_keys=5, d=8).inputs
        assert_refused(functools.partial(tiled_attention, block_q=8, block_k=5), mismatched_shapes(Q, K, V))

    @causal_or_not
    @pytest.mark.parametrize("cut", CUTS, ids=sizes)
    def test_blocks(self, rng, cut, causal):
        hint = "the last tiles are smaller: a buffer has block_q or block_k rows, the tile fewer"
        if causal:
            hint = "position i + row of the tile against j + column; the last query of a tile decides what it visits"
        case = array_case(rng, n_queries=cut[0], n_keys=cut[1], d=5, d_v=3, causal=causal)
        attend(case, cut[2:], hint=hint)

    @pytest.mark.parametrize(
        ("of_Q", "of_K"), [((1, 1), (2, 3)), ((2, 3), (2, 1)), ((), (3,))], ids=["B1x1", "B2x3", "none"]
    )
    def test_leading_axes_broadcast(self, rng, of_Q, of_K):
        Q, _, _ = array_case(rng, n=13, d=4, batch=of_Q).inputs
        _, K, V = array_case(rng, n=18, d=4, d_v=6, batch=of_K).inputs
        attend(Case(Q, K, V), (8, 5), hint="the output has the leading axes of all three, broadcast")

    @pytest.mark.parametrize("logit_scale", [1, 1000], ids=["scale1", "scale1000"])
    @pytest.mark.parametrize(
        "masked",
        [np.s_[:, :8], np.s_[:, 8:16], np.s_[:, 16:], np.s_[:], np.s_[[3, 7, 8]]],
        ids=["first_tiles", "middle_tiles", "last_tiles", "everything", "some_queries"],
    )
    @pytest.mark.robust
    def test_whole_tiles_masked(self, rng, masked, logit_scale):
        case = array_case(rng, n_queries=12, n_keys=24, d_v=5, logit_scale=logit_scale)
        case.mask = np.zeros((12, 24), bool)
        case.mask[masked] = True
        hint = "−inf − (−inf) or 0/0: a tile of such scores changes nothing, and a query without keys has output 0"
        if logit_scale > 1:
            hint = "a query without keys must leave the others of its tile theirs: every row takes its own maximum"
        attend(case, (4, 8), hint=hint, nan_hint=hint)

    @pytest.mark.parametrize("hidden_by", ["causal", "masked"])
    @pytest.mark.parametrize("far", [1e3, 1e7, 1e10])
    @pytest.mark.robust
    def test_hidden_keys_do_not_leak(self, rng, far, hidden_by):
        case = array_case(rng, n=24, d=8, dtype=np.float64, **{hidden_by: True})
        case.Q[:, 0], case.K[:, 0] = far, -1  # every score is far below 0, by nearly the same amount
        mask = {"mask": case.mask} if hidden_by == "masked" else {}
        got = as_array("the output", tiled_attention(*case.inputs, 8, 8, causal=case.causal, **mask))
        off = float(np.nan_to_num(np.abs(got - case.want["O"]), nan=np.inf).max())
        message = f"the output is off by {off:.3g} where all scores are about {-far / math.sqrt(8):.0e}"
        cause = "a large negative number stands for −inf; beside scores that are lower still it is large"
        require_at_most("the output's error", off, 1e-3, message, unit="tolerance", hint=cause)

    @pytest.mark.robust
    def test_no_keys_and_no_queries(self, rng):
        Q, K, V = array_case(rng, n_queries=5, n_keys=6, d=4, d_v=3).inputs
        got = as_array("the output", tiled_attention(Q, K[:0], V[:0], 4, 4))
        require(got.shape == (5, 3) and not got.any(), f"without keys the output is zeros of (5, 3), got {got.shape}")
        assert_equal("the output's shape without queries", tiled_attention(Q[:0], K, V, 4, 4).shape, (0, 3))

    @pytest.mark.parametrize("blocks", [(6, 10), (16, 4), (4, 16)], ids=["6x10", "16x4", "4x16"])
    @pytest.mark.parametrize("lengths", [(40, 40), (23, 50), (50, 23)], ids=["N40", "N23x50", "N50x23"])
    @pytest.mark.cost
    def test_causal_tiles_are_skipped(self, rng, blocks, lengths):
        (block_q, block_k), (N_q, N_k) = blocks, lengths
        Q, K, V = array_case(rng, n_queries=N_q, n_keys=N_k, d=4).inputs
        for start in range(0, N_q, block_q):
            stop = min(start + block_q, N_q)
            unseen = -(-stop // block_k) * block_k  # the first key of the first tile that these queries do not visit
            K_trap, V_trap = K.copy(), V.copy()
            K_trap[unseen:] = V_trap[unseen:] = np.nan
            with np.errstate(all="ignore"):
                trapped = copied(Q, K_trap, V_trap)
                got = as_array("the output", tiled_attention(*trapped, block_q, block_k, causal=True))
            n_spoilt = int(np.isnan(got[:stop]).any(axis=-1).sum())
            message = (
                f"NaN laid into keys {unseen} and up reaches {n_spoilt} of the queries 0 to {stop - 1}, whose tiles of "
                f"{block_q} × {block_k} end at key {unseen - 1}\nUsual cause: tiles without a visible entry are "
                "computed and then masked; a block of keys is left out one too late;\nthe rule for leaving them out "
                "holds for square tiles only; or other block sizes are used than the ones given"
            )
            require(not n_spoilt, message)
            assert_output(Case(Q[:stop], K, V, causal=True), got[:stop], blocks)

    @pytest.mark.parametrize("mode", ["", "causal", "mask", "causal and mask"])
    @pytest.mark.parametrize("cut", [(40, 40, 6, 10), (23, 50, 16, 4), (9, 300, 4, 16), (300, 9, 16, 4)], ids=sizes)
    @pytest.mark.cost
    def test_tiles_are_those_asked_for(self, rng, cut, mode):
        N_q, N_k, *blocks = cut
        case = array_case(rng, n_queries=N_q, n_keys=N_k, d=11, d_v=5, causal="causal" in mode)
        case.Q, case.K = np.abs(case.Q) + np.float32(0.1), -np.abs(case.K) - np.float32(0.1)
        if "mask" in mode:
            case.mask = np.arange(N_k) >= 4  # whole tiles of it are hidden, and yet computed
        output, tiles = attention_and_tiles(*case.inputs, *blocks, case.causal, case.mask)
        assert_output(case, output, blocks)
        if not tiles:
            return  # computed from copies: memory alone shows the tiles
        assert_tile_sizes("tiled_attention" + f" with {mode}" * bool(mode), tiles, N_q, N_k, blocks, case.causal)
        where = f"for N_q = {N_q}, N_k = {N_k}, blocks of {blocks[0]} × {blocks[1]}"
        assert_entries(f"the scores computed {where}{mode and ', '}{mode}", tiles, cut, case.causal)

    @pytest.mark.parametrize(
        ("N", "d", "batch", "blocks", "mode"),
        [
            (1024, 64, (), (64, 64), "causal"),
            (1024, 64, (), (64, 64), "causal and mask"),
            (2048, 64, (), (256, 128), ""),
            (512, 32, (2, 3), (32, 64), ""),
        ],
        ids=["N1024-causal", "N1024-causal-mask", "N2048", "B2x3-N512"],
    )
    @pytest.mark.cost
    def test_memory(self, rng, N, d, batch, blocks, mode):
        Q, K, V = (rng.standard_normal((*batch, N, d), dtype=np.float32) for _ in "QKV")
        options = {"causal": "causal" in mode} | ({"mask": rng.random(N) < 0.1} if "mask" in mode else {})
        short = {name: value[:8] if name == "mask" else value for name, value in options.items()}
        tiled_attention(Q[..., :8, :], K[..., :8, :], V[..., :8, :], 4, 4, **short)
        peak, output = peak_and_output(*copied(Q, K, V), *blocks, **options)
        matrix = 4 * math.prod(batch) * N * N
        name = f"the peak at N = {N}, d = {d}, blocks of {blocks[0]} × {blocks[1]}{mode and ', '}{mode}"
        hint = "The limit is 4·N·d elements, the output included; one N × N array of the scores would be "
        hint += f"{matrix:,} bytes, one of booleans {matrix // 4:,}"
        assert_at_most(name, peak, 4 * Q.nbytes, hint=hint)
        assert_large_output(output, Q, K, V, **options)

    @pytest.mark.parametrize("cut", [(256, 256, 8, 256), (256, 256, 256, 8), (2048, 64, 16, 64)], ids=sizes)
    @pytest.mark.cost
    def test_small_blocks_need_little(self, rng, cut):
        N_q, N_k, *blocks = cut
        case = array_case(rng, n_queries=N_q, n_keys=N_k, d=2, dtype=np.float64)
        tiled_attention(*case.inputs, *blocks)
        peak, output = peak_and_output(*case.inputs, *blocks)
        assert_output(case, output, blocks)
        tile, copies = 8 * math.prod(blocks), 6 * 8 * 4 * (max(N_q, N_k) + sum(blocks))
        name = f"the peak at N_q = {N_q}, N_k = {N_k}, d = 2, blocks of {blocks[0]} × {blocks[1]}, float64"
        cause = "block sizes of your own, one of the two used for both, or whole rows of scores"
        hint = f"A tile of scores has {tile:,} bytes\nUsual cause: {cause}"
        assert_at_most(name, peak, 6 * tile + copies + BOOKKEEPING_BYTES, hint=hint)

    @pytest.mark.cost
    @pytest.mark.memory_limit(mib=16)
    def test_no_matrix_seen_from_outside(self, rng, memory_limit):
        Q, K, V = (rng.standard_normal((4096, 64), dtype=np.float32) for _ in "QKV")
        assert_large_output(memory_limit(tiled_attention, *copied(Q, K, V), 256, 256), Q, K, V)

    @by_bad_block
    @pytest.mark.refuses
    def test_block_sizes_below_one(self, rng, blocks):
        assert_blocks_refused(functools.partial(tiled_attention, *array_case(rng, n=6).inputs), blocks)

    @pytest.mark.parametrize("mask", [(6, 7), (5, 8), (2,), (9, 8)], ids=str)
    @pytest.mark.refuses
    def test_masks_that_do_not_fit(self, rng, mask):
        inputs = array_case(rng, n_queries=6, n_keys=8).inputs
        when = f"for a mask of {mask} and scores of (6, 8)"
        assert_raises(
            ValueError,
            lambda: tiled_attention(*inputs, 8, 5, mask=np.zeros(mask, bool)),
            when=when,
            mentions=[str(mask)],
        )


TRIPS = {
    "ragged": (23, 31, 6, 5, 6, 4),
    "ragged_wide": (20, 50, 4, 7, 7, 16),
    "even": (24, 32, 8, 8, 8, 8),
    "columns": (15, 12, 5, 3, 5, 1),
    "rows": (9, 20, 3, 4, 1, 5),
}
"""N_q, N_k, d, d_v, block_q and block_k."""
by_trip = pytest.mark.parametrize("trip", TRIPS.values(), ids=TRIPS)


def trip_case(rng, trip, **options):
    return array_case(rng, **dict(zip(("n_queries", "n_keys", "d", "d_v"), trip, strict=False)), **options)


class EitherTraffic:
    """What is asked of tiled and of standard attention on the machine alike."""

    task: ClassVar[str]
    assert_bytes: ClassVar
    example_bytes: ClassVar[int]

    def run(self, case, blocks, **options):
        return Run(self.task, case.inputs, tuple(blocks), **options)

    @pytest.mark.basic
    @by_trip
    def test_output(self, rng, trip):
        case = trip_case(rng, trip)
        (_, K, V), blocks = case.inputs, trip[4:]

        def of_weights(make):
            return lambda: make(case.want["P"])

        last = len(K) - (len(K) - 1) // blocks[1] * blocks[1]
        usual = {
            "the scores weigh the values: the softmax is left out": of_weights(lambda _: case.scores @ V),
            "every weight is 1, as a row of shape (1, N) gives when it is divided by its sum over axis 0": of_weights(
                lambda weights: np.ones_like(weights) @ V
            ),
            "the product of each block of keys replaces those before, instead of being added": of_weights(
                lambda weights: weights[:, -last:] @ V[-last:]
            ),
        }
        assert_output(case, self.run(case, blocks).output, blocks, usual=usual)

    @pytest.mark.parametrize("logit_scale", [30, -100])
    @pytest.mark.robust
    def test_large_logits(self, rng, logit_scale):
        case = trip_case(rng, (23, 31, 16, 5), logit_scale=logit_scale)
        assert_output(case, self.run(case, (6, 4)).output, (6, 4), hint="the maximum comes first")

    @pytest.mark.cost
    def test_worked_example(self, rng):
        run = self.run(trip_case(rng, (8, 8, 4, 4)), (4, 2))
        self.assert_bytes(run)
        if run.k == run.v == 2 * run.arrays[1].nbytes:
            message = "the traffic with queries in the outer loops"
            assert_equal(message, run.loaded + run.stored, self.example_bytes)

    @by_trip
    @pytest.mark.cost
    def test_bytes(self, rng, trip):
        for dtype in (np.float32, np.float64):
            self.assert_bytes(self.run(trip_case(rng, trip, dtype=dtype), trip[4:]))

    @pytest.mark.cost
    def test_blocks_too_large_overflow(self, rng):
        case = trip_case(rng, (64, 64, 8, 8))
        self.run(case, (4, 4), sram_bytes=8192)
        when = "for blocks of 64 × 64 in an SRAM of 8192 B, where the scores alone take 16,384"
        assert_raises(SRAMOverflow, lambda: self.run(case, (64, 64), sram_bytes=8192).output, when=when, mentions=())

    @by_bad_block
    @pytest.mark.refuses
    def test_block_sizes_below_one(self, rng, blocks):
        case = trip_case(rng, (6, 6, 4, 4))
        call = functools.partial(on_machine, self.task, case.inputs, sealed=False)
        assert_blocks_refused(lambda *blocks: call(blocks=blocks), blocks)


class TestTiledTraffic(EitherTraffic):
    task, assert_bytes, example_bytes = "tiled_traffic", staticmethod(assert_tiled_bytes), 768

    @pytest.mark.cost
    def test_sram_is_empty_afterwards(self, rng):
        run = self.run(trip_case(rng, TRIPS["ragged"]), (6, 4))
        assert_equal("the bytes of SRAM still in use after the call", run.in_use, 0, hint="a tile is kept somewhere")

    @pytest.mark.parametrize("blocks", [(16, 16), (16, 4), (4, 16)], ids=["16x16", "16x4", "4x16"])
    @pytest.mark.cost
    def test_a_few_tiles_at_a_time(self, rng, blocks):
        assert_a_few_tiles(self.run(trip_case(rng, (64, 64, 8, 8)), blocks))


class TestNaiveTraffic(EitherTraffic):
    task, assert_bytes, example_bytes = "naive_traffic", staticmethod(assert_naive_bytes), 1792


SRAMS = [(8_192, 16), (32_768, 64), (65_536, 64), (100_001, 32), (131_072, 128), (1 << 20, 64)]
by_sram = pytest.mark.parametrize(("sram_bytes", "d"), SRAMS, ids=[f"M{M}-d{d}" for M, d in SRAMS])


def blocks_of(sram_bytes, d, *dtype_bytes):
    """The student's blocks, as two ints of at least 1."""
    got = assert_tuple("choose_blocks's result", choose_blocks(sram_bytes, d, *dtype_bytes), ("block_q", "block_k"))
    for name, block in zip(("block_q", "block_k"), got, strict=True):
        assert_type(name, block, (int, np.integer), "an int")
        require(
            block >= 1, f"{name} is {block} for sram_bytes={sram_bytes}, d={d}: expected at least 1 or a ValueError"
        )
    return got


def traffic_of_ones(blocks, N_q, N_k, d, sram_bytes, dtype=np.float32):
    """The bytes that the student's tiled_traffic moves with these blocks."""
    Q, K = np.ones((N_q, d), dtype), np.ones((N_k, d), dtype)
    return on_machine("tiled_traffic", (Q, K, K), blocks, sram_bytes, sealed=False)["traffic"]


class TestChooseBlocks:
    @pytest.mark.basic
    def test_fits(self, rng):
        for dtype_bytes in (2, 4) * 4:
            sram_bytes, d = int(rng.integers(1 << 15, 1 << 20)), int(rng.integers(12, 96))
            assert_fits(blocks_of(sram_bytes, d, dtype_bytes), sram_bytes, d, dtype_bytes)

    @pytest.mark.cost
    def test_makes_use_of_sram(self, rng):
        for dtype_bytes in (2, 4) * 4:
            sram_bytes, d = int(rng.integers(1 << 15, 1 << 20)), int(rng.integers(12, 96))
            assert_makes_use(blocks_of(sram_bytes, d, dtype_bytes), sram_bytes, d, dtype_bytes)

    @pytest.mark.robust
    def test_float32_is_the_default(self):
        of_half, want = choose_blocks(65_536, 64, 2), choose_blocks(65_536, 64, 4)
        mistakes = {"dtype_bytes is 2 where it is left out: its default is 4": of_half}
        assert_equal("choose_blocks(65536, 64)", choose_blocks(65_536, 64), want, mistakes=mistakes)

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    @by_sram
    def test_fits_with_every_temporary(self, sram_bytes, d, dtype):
        size = np.dtype(dtype).itemsize
        block_q, block_k = blocks = blocks_of(sram_bytes, d, size)
        ignored = size != 4 and tuple(blocks) == tuple(blocks_of(sram_bytes, d))
        cause = "dtype_bytes is ignored: the blocks are those for 4 bytes an element" if ignored else ""
        assert_fits(blocks, sram_bytes, d, size, cause)
        if sram_bytes == SRAMS[-1][0]:
            return  # the loop over blocks as large as these takes long
        try:
            traffic_of_ones(blocks, 2 * block_q + 1, 2 * block_k + 1, d, sram_bytes, dtype)
        except SRAMOverflow as overflow:
            message = f"your tiled_traffic overflows with your blocks of {block_q} × {block_k}, d = {d}:\n{overflow}"
            cause = "a temporary is not counted, like the product of weights and values before it is added"
            require(False, f"{message}\nUsual cause: {cause}")

    @pytest.mark.cost
    def test_serves_your_own_loop(self):
        sram_bytes, d, N = 65_536, 32, 1024
        blocks = blocks_of(sram_bytes, d)
        with_blocks = f"moves with your blocks of {blocks[0]} × {blocks[1]} in {sram_bytes:,} B of SRAM"
        limit = round(WASTE * least_traffic(N, sram_bytes, d, 4))
        hint = "Usual cause: the wrong one of the two block sizes is large. Which one decides how often K and V "
        hint += "(or Q) are loaded in your order of the loops?"
        # by formula first: a million tiles of 1 × 1 take a minute to count
        assert_at_most(f"what any loop {with_blocks}", traffic_of_best_order(blocks, N, d), limit, hint=hint)
        moved = traffic_of_ones(blocks, N, N, d, sram_bytes)
        assert_at_most(f"what your tiled_traffic {with_blocks}", moved, limit, hint=hint)

    @pytest.mark.parametrize("d", [8, 64, 128], ids=["d8", "d64", "d128"])
    @pytest.mark.robust
    def test_small_srams(self, d):
        """Too little for 1 × 1 is an error, twelve rows of d are enough; between, either, but blocks must fit."""
        for sram_bytes in range(4, 4 * 12 * d + 64, 52):
            try:
                blocks = blocks_of(sram_bytes, d)
            except ValueError:
                message = f"a ValueError for sram_bytes={sram_bytes}, d={d}: {4 * 12 * d} B are enough for 1 × 1"
                require(sram_bytes < 4 * 12 * d, message)
            else:
                assert_fits(blocks, sram_bytes, d)

    @pytest.mark.parametrize(("sram_bytes", "dtype_bytes"), [(768, 4), (1, 4), (256, 4), (1024, 8)])
    @pytest.mark.refuses
    def test_not_even_one_by_one(self, sram_bytes, dtype_bytes):
        when = f"for {sram_bytes=}, d=64, {dtype_bytes=}, which leaves no room for a temporary"
        call = functools.partial(choose_blocks, sram_bytes, 64, dtype_bytes)
        assert_raises(ValueError, call, when=when, mentions={"sram_bytes": sram_bytes, "d": 64})


GRID = ([40, 64, 96], [4, 8, 12], [1024, 1536, 4096])


class TestIoExponents:
    @pytest.mark.parametrize("grid", [GRID, ([32, 128], [16, 4], [2048, 1024])], ids=["three_values", "two_values"])
    def test_fits_what_was_counted(self, rng, grid):
        got, calls = exponents_of_stand_ins(int(rng.integers(2**32)), *grid)
        assert_exponents(got, calls, grid, "least squares on the logarithms of what was counted")

    @pytest.mark.cost
    def test_every_combination_once(self, rng):
        _, calls = exponents_of_stand_ins(int(rng.integers(2**32)), *GRID)
        seen = sorted((*call["shapes"][0], call["sram_bytes"]) for call in calls)
        want = sorted(itertools.product(*GRID))
        require(seen == want, f"{len(seen)} runs of {len(set(seen))} combinations, expected {len(want)}, each once")

    @pytest.mark.parametrize("name", ["Ns", "ds", "sram_sizes"])
    @pytest.mark.parametrize("values", [[64], [64, 64], []], ids=["one", "equal", "none"])
    @pytest.mark.refuses
    def test_fewer_than_two_different_values(self, name, values):
        grid = {"Ns": [32, 64], "ds": [4, 8], "sram_sizes": [1024, 2048]} | {name: values}
        when = f"for {name}={values}: no line through one point"
        assert_raises(ValueError, lambda: exponents_of_stand_ins(0, **grid), when=when, mentions={name: values})
