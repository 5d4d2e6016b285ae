"""Lab 08's suite: windows and their tiles, attention through them, a bounded cache of masks, and an audit."""

import gc
from functools import cache, partial

import numpy as np
import pytest
import torch
from sliding_window import BlockMaskCache, classify_tiles, memory_breakdown, sliding_window_attention, window_mask

from labkit.testing.attention.cases import numbers
from labkit.testing.attention.table import OVERFLOW, Row, attention_cases, mismatched_shapes
from labkit.testing.compare import (
    NAN_FROM_EMPTY,
    assert_at_most,
    assert_equal,
    assert_keys,
    assert_raises,
    assert_refused,
    assert_type,
    require,
    require_at_least,
    require_at_most,
    require_own_work,
)
from labkit.testing.unchanged import report_mutation_first, unchanged

from .probes import (
    cache_session,
    length_while_another_is_asked,
    mask_of_new_cache,
    masks_of_one_call,
    measured_step,
    number_held,
    peaks_of_call,
    plain_step,
    step_with_a_penalty,
    watched_breakdown,
    watched_flex,
)
from .support import (
    PARTS,
    SIZES,
    SMALL,
    TRAINED,
    WindowCase,
    assert_adds_up,
    assert_attends,
    assert_cache_follows,
    assert_mask,
    assert_tiles,
    bytes_of_block_mask,
    bytes_of_q,
    bytes_of_scores,
    flops_needed,
    last_queries_are_right,
    made_in_a_phase,
    shape_of,
)


class TestWindowMask:
    """True where a key is masked out."""

    @pytest.mark.basic
    @pytest.mark.parametrize(("seq_len", "window"), [(70, 9), (64, 16), (33, 5), (20, 24), (4, 2)])
    def test_windows(self, seq_len, window):
        assert_mask(window_mask(seq_len, window), seq_len, window)

    @pytest.mark.basic
    def test_random_windows(self, rng):
        for seq_len in rng.integers(1, 90, size=12).tolist():
            window = int(rng.integers(1, seq_len + 5))
            assert_mask(window_mask(seq_len, window), seq_len, window)

    @pytest.mark.cost
    def test_is_made_from_bytes(self):
        n = 512
        _, peak = peaks_of_call("window_mask", n, 33)
        hint = "i − j for all pairs at once is int64, 8 bytes a pair: compare a column with a row, or cut bytes"
        assert_at_most(f"the peak of window_mask({n}, 33)", peak, 4 * n * n + 64 * n, hint=hint)

    @pytest.mark.cost
    @pytest.mark.memory_limit(mib=24)
    def test_bytes_seen_from_outside(self, memory_limit):
        mask = memory_limit(window_mask, 2048, 33)
        right = tuple(mask.shape) == (2048, 2048) and (~mask).sum(-1).tolist() == [*range(1, 33), *[33] * 2016]
        require(right, "memory stayed within the limit, but the mask is wrong, at N = 2048, window 33")

    @pytest.mark.refuses
    @pytest.mark.parametrize(("seq_len", "window", "named"), [(4, 0, "window"), (0, 3, "seq_len")])
    def test_bad_arguments(self, seq_len, window, named):
        assert_raises(
            ValueError, lambda: window_mask(seq_len, window), when=f"for {named} below 1", mentions={named: 0}
        )


class TestClassifyTiles:
    """Which tiles of a mask are empty, partial and full."""

    @pytest.mark.basic
    @pytest.mark.parametrize(
        ("seq_len", "window", "block"), [(70, 23, 8), (64, 16, 16), (9, 3, 2), (6, 4, 2), (70, 200, 32), (70, 7, 100)]
    )
    def test_kinds(self, seq_len, window, block):
        assert_tiles(classify_tiles(seq_len, window, block), seq_len, window, block)

    @pytest.mark.basic
    def test_random_tilings(self, rng):
        for seq_len in rng.integers(1, 120, size=12).tolist():
            window, block = int(rng.integers(1, seq_len + 5)), int(rng.integers(1, 30))
            assert_tiles(classify_tiles(seq_len, window, block), seq_len, window, block)

    @pytest.mark.cost
    def test_without_the_mask(self):
        peak = sum(peaks_of_call("classify_tiles", 2048, 300, 128))
        hint = "2048² pairs are 4 MiB even as bytes: a tile's first and last row and column tell what it holds"
        assert_at_most("the peak of classify_tiles(2048, 300, 128)", peak, 256 * 1024, hint=hint)

    @pytest.mark.cost
    @pytest.mark.memory_limit(mib=6)
    def test_without_the_mask_seen_from_outside(self, memory_limit):
        assert_tiles(memory_limit(classify_tiles, 4096, 300, 128), 4096, 300, 128)

    @pytest.mark.refuses
    @pytest.mark.parametrize(
        ("arguments", "named"), [((0, 3, 2), "seq_len"), ((4, 0, 2), "window"), ((4, 3, 0), "block")]
    )
    def test_bad_arguments(self, arguments, named):
        assert_raises(ValueError, lambda: classify_tiles(*arguments), when=f"for {named} below 1", mentions={named: 0})


@cache
def measured(seq_len, window, block, dtype="float32"):
    """What a training step takes, measured once for several tests, if its output is right."""
    case = WindowCase(np.random.default_rng(8), seq_len, window, block, d=8, d_v=8, dtype=dtype)
    out, counts = measured_step(*case.step)
    case.compare("out", out)
    return counts


LOST_OR_OVERFLOWN = f"{OVERFLOW}; or hidden scores enter the maximum, far above those that are seen: 0 / 0"
ROWS = [
    pytest.param(Row({"n": 64, "d": 17}), id="N64"),
    *attention_cases("full", only=(
        "N63", "N129", "random_sizes1", "d_v5", "B2x3", "B2x1x2", "every_axis_16", "logits_times_300",
        "logits_times_10000", "logits_far_below_0", "not_contiguous", "float16", "bfloat16", "float64",
    )),
    pytest.param(Row({"n": 1, "d": 17}), id="N1"),
]  # fmt: skip
"""N = 64 is a whole number of blocks; queries and keys are as many. One of each comes last: it explains least."""
every_case = pytest.mark.parametrize("row", ROWS)
half_or_not = pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
every_window = pytest.mark.parametrize(
    ("window", "block"),
    [(10, 16), (200, 32), (7, 100), (3, 1), (1, 16)],
    ids=["window10-block16", "window200-block32", "window7-block100", "window3-block1", "window1-block16"],
)


def worked_case():
    """The handout's example: query 1 sees keys 0 and 1, query 2 sees keys 1 and 2."""
    case = WindowCase(np.random.default_rng(0), 3, window=2, block=2, d=1, d_v=1)
    case.Q, case.K, case.V = torch.ones(3, 1), torch.zeros(3, 1), torch.tensor([[1.0], [2.0], [6.0]])
    return case


def train(case, hint="", nan_hint="", on_nan=False):
    """Run a training step, and compare its results; returns them."""
    given = case.arguments
    with report_mutation_first(given):
        results = plain_step(*given.values(), case.window, case.block, on_nan=on_nan)
        case.compare_step(results, hint, nan_hint)
    return results


class TestSlidingWindowAttention:
    """Exact, and in O(N · window); each test runs a training step."""

    @pytest.mark.basic
    @every_case
    @every_window
    def test_results(self, rng, row, window, block):
        case = row.draw(partial(WindowCase.drawn, window=window, block=block), rng)
        nan_hint = LOST_OR_OVERFLOWN if row.nan_hint == OVERFLOW else row.nan_hint
        train(case, hint=row.hint, nan_hint=nan_hint)

    @pytest.mark.basic
    def test_worked_example(self):
        train(worked_case())

    @every_window
    @pytest.mark.robust
    def test_uninitialised_memory_is_written_over(self, rng, window, block):
        case = WindowCase(rng, 37, window, block, d=8, d_v=5, batch=(2,))
        train(case, nan_hint=NAN_FROM_EMPTY, on_nan=True)

    @pytest.mark.robust
    def test_arguments_are_left_alone(self, rng):
        case = WindowCase(rng, 20, 10, 16)
        given = case.arguments
        with unchanged(given):
            plain_step(*given.values(), case.window, case.block)

    @pytest.mark.robust
    @pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
    def test_half_precision(self, rng, dtype):
        case = WindowCase(rng, 288, 256, 8, d=16, d_v=16, dtype=dtype)
        hint = "sums of half-precision inputs belong in float32, those of the gradients too"
        results = train(case, hint)
        case.compare_scatter(results, hint)

    @pytest.mark.robust
    @pytest.mark.parametrize("size", [1e3, 1e6, 1e18])
    def test_scores_far_below_zero(self, rng, size):
        """All scores are one number: a row's weighted mean of positions lies within its window, whatever the weights.

        A log-sum-exp has no digits left for the number of keys here, so that weights need not add up to 1.
        """
        n, window, i = 70, 20, np.arange(70)
        case = WindowCase(rng, n, window, 16)
        case.Q, case.K = torch.zeros_like(case.Q), torch.zeros_like(case.K)
        case.Q[:, 0], case.K[:, 0] = size, -size
        case.V[:, 0], case.V[:, 1] = 1, torch.arange(n)
        total, weighted = numbers(plain_step(*case.step)[0]).T[:2]
        with np.errstate(all="ignore"):
            position = weighted / total
        outside = np.flatnonzero(~((position > i - window) & (position < i + 1)))
        if len(outside):
            row = int(outside[0])
            seen = f"query {row} sees keys {max(0, row - window + 1)} to {row}"
            message = f"{seen}, and the mean position of those it weighs is {position[row]:.3g}"
            cause = (
                f"scores of {-size * size:.0e} lie below the number that hides a key: only −inf is below every score"
            )
            require(False, f"{message}; {len(outside)} of {n} queries weigh hidden keys\nUsual cause: {cause}")

    @pytest.mark.robust
    def test_second_derivatives(self, rng):
        """Right, or refused: a backward pass that autograd cannot follow must raise a RuntimeError."""
        case = WindowCase(rng, 12, 5, 4, d=4, d_v=3, dtype=torch.float64)
        train(case)
        got = step_with_a_penalty(*case.step)
        if not isinstance(got, str):
            case.compare_penalised(got)

    @pytest.mark.cost
    @half_or_not
    @pytest.mark.parametrize(("window", "block"), [(70, 32), (40, 64), (1, 16)])
    def test_empty_tiles_are_skipped(self, window, block, dtype):
        n, d = 500, 8
        counts, (visited, seen) = measured(n, window, block, dtype), flops_needed(n, window, block, d)
        fused = ", ".join(counts["fused"])
        require_own_work(not fused, f"torch's own attention was called ({fused}): write it")
        for name, products, least in (("forward", 2, 2), ("backward", 7, 4)):
            done = counts[name]
            hint = "tiles in which no query sees a key are computed and then masked: leave them out"
            if done > 0.9 * 2 * least * d * n * n:
                hint = "all N² scores are computed and then masked: a query block needs the keys of its window only"
            what = f"the arithmetic of the {name} pass's products (N={n}, {window=}, {block=})"
            assert_at_most(what, done, int(1.4 * products * visited), unit="FLOPs", hint=hint)
            message = f"the {name} pass's products do {done:,} FLOPs, and the pairs that are seen need {least * seen:,}"
            message += "\nWrite products with @, so that they can be counted"
            require_at_least(f"the products of the {name} pass", done, least * seen, message, unit="FLOPs")

    @pytest.mark.cost
    @pytest.mark.parametrize(("n", "block"), [(60, 20), (60, 30), (300, 96)])
    def test_blocks_of_the_size_asked_for(self, n, block):
        shapes = measured(n, 37, block)["shapes"]
        fitting = [shape for shape in shapes if block in shape]
        others = sorted(set(shapes) - set(fitting))
        message = (
            f"of {len(shapes)} products (N={n}, window=37, {block=}) {len(fitting)} have {block} rows or columns; "
        )
        message += f"others are {', '.join(f'{rows} × {columns}' for rows, columns in others[:4])}"
        message += "\nUsual cause: `block` is checked and not used: queries are taken a block at a time"
        least = max(1, len(shapes)) / 2
        require_at_least("the products of a block's size", len(fitting), least, message, unit="products")

    @pytest.mark.cost
    @half_or_not
    def test_memory_grows_with_n(self, dtype):
        short, long = measured(250, 40, 32, dtype), measured(1000, 40, 32, dtype)
        hint = "something of N × N is alive, the mask perhaps: each block of queries needs a mask of its own tile only"
        name, limit = "the largest tensor of a step (N=1000, window=40, block=32)", 4 * 1000 * (40 + 2 * 32)
        assert_at_most(name, long["largest_bytes"], limit, hint=hint)
        ratio = long["peak_bytes"] / short["peak_bytes"]
        message = f"with 4 times the tokens a step's peak is {ratio:.1f} times as large"
        require_at_most("a step's peak with 4 times the tokens", ratio, 6, f"{message}\nUsual cause: {hint}")

    @pytest.mark.cost
    @half_or_not
    def test_between_the_passes(self, dtype):
        kept = measured(1000, 40, 32, dtype)["kept_bytes"]
        hint = "N² scores, weights or masks are kept for the backward pass: keep what lies in the window at most"
        limit = 4 * 1000 * (4 * (40 + 2 * 32) + 64)
        assert_at_most("what is kept between the passes (N=1000, window=40, block=32)", kept, limit, hint=hint)

    @pytest.mark.cost
    @pytest.mark.memory_limit(mib=44)
    def test_step_seen_from_outside(self, memory_limit):
        generator = torch.Generator().manual_seed(8)
        inputs = [torch.randn(4096, 16, generator=generator) for _ in range(4)]
        out, dq, *_ = memory_limit(plain_step, *inputs, 128, 128)
        right = last_queries_are_right(out, dq, inputs, window=128)
        require(right, "memory stayed within the limit, but out or dq is wrong, at N = 4096, window 128, block 128")

    @pytest.mark.refuses
    @pytest.mark.parametrize(("window", "block", "named"), [(0, 4, "window"), (3, 0, "block")])
    def test_bad_window_or_block(self, window, block, named):
        inputs = torch.zeros(10, 6), torch.zeros(10, 6), torch.zeros(10, 3)
        call = partial(sliding_window_attention, *inputs, window, block)
        assert_raises(ValueError, call, when=f"for {named} below 1", mentions={named: 0})

    @pytest.mark.refuses
    def test_shapes_that_do_not_fit(self, rng):
        q, k, v = WindowCase(rng, 10, 3, 4).inputs
        assert_refused(sliding_window_attention, mismatched_shapes(q, k, v, 3, 4))

    @pytest.mark.refuses
    def test_more_keys_than_queries(self):
        call = partial(sliding_window_attention, torch.zeros(10, 6), torch.zeros(11, 6), torch.zeros(11, 3), 3, 4)
        assert_raises(ValueError, call, when="when q and k differ in N", mentions=("(10, 6)", "(11, 6)"))


ONE_KEY = (64, 16, 8)
OTHERS = {
    "seq_len": (72, 16, 8),
    "seq_len, by less than a block,": (63, 16, 8),
    "window": (64, 20, 8),
    "window and block, exchanged,": (64, 8, 16),
    "block": (64, 16, 4),
    "device": (64, 16, 8, "meta"),
}


def follow(maxsize, operations, hint=""):
    """Give a new cache these operations, and compare what it does with a plain model."""
    assert_cache_follows(maxsize, operations, cache_session(maxsize, operations), hint)


class TestBlockMaskCache:
    """Bounded, keyed on what matters, and emptied when asked."""

    @pytest.mark.basic
    def test_the_same_again(self):
        hint = "it is made again, or copied: is it kept, and under a key that comes out the same the next time?"
        follow(3, [("hold", ONE_KEY), ("hold", ONE_KEY)], hint)

    @pytest.mark.basic
    @pytest.mark.parametrize(("device", "other"), [("cpu", "cpu:0"), ("meta", "meta")])
    def test_the_same_device_written_in_two_ways(self, device, other):
        ways = [device, torch.device(device), other, device]
        hint = "these are one device; that of a tensor, torch.empty(0, device=device).device, has one spelling"
        follow(4, [("hold", (*ONE_KEY, way)) for way in ways], hint)

    @pytest.mark.parametrize("differs", OTHERS)
    def test_masks_are_not_confused(self, differs):
        hint = f"a different {differs} is a different mask: does the key hold it?"
        follow(3, [("hold", ONE_KEY), ("hold", OTHERS[differs]), ("hold", ONE_KEY)], hint)

    @pytest.mark.parametrize("maxsize", [1, 3, 70])
    def test_never_more_than_maxsize(self, maxsize):
        operations = [("get", (80, 1 + step, 8)) for step in range(maxsize + 5)]
        follow(maxsize, operations, "when there is one too many, one must go, and none before")

    def test_least_recently_used_goes(self):
        follow(2, [("get", (64, "abc".index(name) + 1, 8)) for name in "abacac"])

    def test_random_operations(self, rng):
        """Among them gets that fail and, twice, a clear(): the order must survive the ones and end with the others."""
        maxsize, windows = int(rng.integers(2, 5)), 1 + rng.permutation(40)[:6]
        sizes = rng.integers((40, 4), (90, 20), size=(6, 2))
        keys = [(int(n), int(window), int(block)) for (n, block), window in zip(sizes, windows, strict=True)]
        operations = [("get", keys[key]) for key in rng.integers(0, len(keys), size=30).tolist()]
        for at in (6, 13, 25):
            operations[at] = ("fail", (keys[0][0], 0, keys[0][2]))
        operations[10] = operations[20] = ("clear",)
        follow(maxsize, operations)

    @pytest.mark.cost
    @pytest.mark.memory_limit(mib=10)
    @pytest.mark.seconds(40)  # for a loop over tiles in Python
    def test_masks_seen_from_outside(self, memory_limit):
        assert_equal("len(cache), maxsize 2, after 32 masks", memory_limit(number_held, 2, 32), 2)

    @pytest.mark.robust
    def test_two_caches_are_apart(self):
        found = length_while_another_is_asked(*ONE_KEY)
        hint = "each cache has masks of its own: an attribute of the class is common to all"
        assert_equal("len of a cache that nobody asked, while another was,", found, 0, hint=hint)

    @pytest.mark.refuses
    def test_bad_maxsize(self):
        assert_raises(ValueError, lambda: BlockMaskCache(0), when="for maxsize 0", mentions={"maxsize": 0})

    @pytest.mark.refuses
    def test_bad_arguments(self):
        assert_raises(ValueError, lambda: mask_of_new_cache(64, 0, 8), when="for window 0", mentions={"window": 0})


CHECKPOINTED = pytest.mark.parametrize("checkpointed", [False, True])
VARIANTS = pytest.mark.parametrize("variant", TRAINED)
STATE = {"naive_mask": 16 * 1024, "causal_sdpa": 16 * 1024, "tiled_window": 64 * 1024}
"""Bytes: the state of the CPU's random generator, which checkpoint keeps, is 5,056; strips may be checkpointed too."""


@cache
def breakdown(variant, dtype=torch.float32, checkpointed=False, **sizes):
    """The student's breakdown, its form checked."""
    got = memory_breakdown(variant, *(SIZES | sizes).values(), dtype, *([True] if checkpointed else []))
    name = f"memory_breakdown({variant!r}, …)"
    for key, value in assert_keys(name, got, (*PARTS, "total", "mask_building")).items():
        assert_type(f"{key} of {name}", value, int, "an int: bytes are counted")
    return got


def assert_own_bytes(got, text, q_bytes, hint=""):
    """Fail unless the output is as large as q, and the gradients as large as q, k and v."""
    assert_equal(f"output {text}", got["output"], q_bytes, hint=hint)
    mistakes = {"the gradient of one of q, k and v is counted": q_bytes}
    assert_equal(f"gradients {text}", got["gradients"], 3 * q_bytes, mistakes=mistakes, hint=hint)


def assert_at_least(name, got, least, why):
    """Fail unless so many bytes are there: nothing was measured otherwise, or not all of it."""
    require_at_least(name, got, least, f"{name} is {got:,} bytes: {why}", unit="bytes")


@pytest.fixture(scope="class")
def nothing_old_to_collect():
    """Hide what is there from the garbage collector: a measurement collects, which takes a second with all of torch."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("nothing_old_to_collect")
@pytest.mark.seconds(60)
class TestMemoryBreakdown:
    """Measured, and it adds up."""

    @pytest.mark.basic
    @VARIANTS
    @CHECKPOINTED
    def test_attention_is_the_variant_s(self, variant, checkpointed):
        shape = shape_of(SMALL)
        scores = 2 * int(np.prod(shape)) * shape[-2]
        inputs, arrays, flops, n_masks = watched_breakdown(shape, variant, *SMALL.values(), torch.float32, checkpointed)
        least = 6 * scores if variant == "naive_mask" else 0
        message = f"memory_breakdown({variant!r}, …) does {flops:,} FLOPs of products; a forward and a backward pass "
        cause = "nothing was run: measure, do not compute" if flops < scores else "the backward pass is missing"
        require(flops >= least, f"{message}need {least:,}\nUsual cause: {cause}")
        require(len(inputs) == 3, f"{variant!r} runs on {len(inputs)} arrays of {shape}, (batch, heads, seq_len, "
                "head_dim), to which a gradient comes; expected q, k and v")  # fmt: skip
        assert_attends(variant, inputs, arrays, SMALL["window"])
        if variant == "naive_mask":
            runs = max(1, flops // ((8 if checkpointed else 6) * scores))
            name = f"the number of N × N masks made in {runs} run of 'naive_mask'"
            hint = "the mask is made again in the forward pass: it was made before, once"
            limit = runs * masks_of_one_call(shape, SMALL["window"])
            assert_at_most(name, n_masks, limit, unit="arrays", hint=hint)
        if variant == "tiled_window" and not checkpointed:
            _, counts = measured_step(*[torch.zeros(shape)] * 4, SMALL["window"], SMALL["block"])
            one = counts["forward"] + counts["backward"]
            message = f"{flops:,} FLOPs of products run under 'tiled_window', where a step with the same window and "
            require(flops and flops % one == 0, f"{message}block does {one:,}\nUsual cause: another window or block")

    @pytest.mark.basic
    @CHECKPOINTED
    @VARIANTS
    def test_adds_up(self, variant, checkpointed):
        assert_adds_up(breakdown(variant, checkpointed=checkpointed), f"of {variant!r} ({checkpointed=})")

    @VARIANTS
    def test_output_and_gradients(self, variant):
        for dtype in (torch.float32, torch.bfloat16):
            hint = "the tensors must be of the dtype and the shape asked for"
            got = breakdown(variant, dtype)
            assert_own_bytes(got, f"of {variant!r} in {dtype}", bytes_of_q(dtype), hint)
            known = made_in_a_phase(0, bytes_of_q(dtype))
            for part in () if variant == "naive_mask" else ("mask", "mask_building"):
                hint = "it needs no mask that is kept"
                assert_equal(f"{part} of {variant!r}", got[part], 0, mistakes=known, hint=hint)

    def test_naive_mask(self):
        got, n, weights = breakdown("naive_mask"), SIZES["seq_len"], bytes_of_scores()
        known = made_in_a_phase(n * n, bytes_of_q())
        hint = "one byte a pair, once for all heads"
        assert_equal("mask of 'naive_mask'", got["mask"], n * n, mistakes=known, hint=hint)
        assert_at_most("saved of 'naive_mask'", got["saved"], 4 * weights, hint="autograd keeps the weights, N² a head")
        cause = "the backward pass has the weights, their gradient and the scores' at once: is it measured?"
        why = f"at least three arrays of {weights:,} are alive at once\nUsual cause: {cause}"
        assert_at_least("total of 'naive_mask'", got["total"], 2.4 * weights, why)
        require(got["mask_building"] >= got["mask"], "mask_building is less than mask, which is alive at its end")

    def test_random_sizes(self, rng):
        low, high = (1, 1, 70, 5, 5, 8), (3, 4, 150, 24, 60, 40)
        for fixed in ({}, {"batch": 3, "heads": 2}):
            sizes = dict(zip(SIZES, rng.integers(low, high).tolist(), strict=True)) | fixed
            got = breakdown("naive_mask", **sizes)
            text = f"of 'naive_mask' with {', '.join(f'{name} {size}' for name, size in sizes.items())}"
            hint = "one mask serves every head and batch entry: it is broadcast, which copies nothing"
            assert_equal(f"mask {text}", got["mask"], sizes["seq_len"] ** 2, hint=hint)
            assert_own_bytes(got, text, bytes_of_q(**sizes))
            weights = bytes_of_scores(**sizes)
            assert_at_least(f"saved {text}", got["saved"], 0.7 * weights, f"the weights alone are {weights:,}")
            assert_adds_up(got, text)

    @VARIANTS
    def test_checkpointed(self, variant):
        plain, again = (breakdown(variant, checkpointed=checkpointed) for checkpointed in (False, True))
        hint = "is attention called through torch.utils.checkpoint.checkpoint, and the mask made before, outside of it?"
        for part in ("mask", "output"):
            if again[part] <= again["saved"] - 1024 <= again[part] + STATE[variant]:
                hint = f"{part} has a key of its own, and is counted in saved too"
        if 0 <= again["saved"] - 3 * bytes_of_q() <= STATE[variant]:
            hint = next(iter(made_in_a_phase(0, bytes_of_q())))
        assert_at_most(f"saved of {variant!r} with checkpointed=True", again["saved"], STATE[variant], hint=hint)
        why = "checkpoint keeps a state of 5,056 bytes\nUsual cause: it is not measured"
        assert_at_least(f"saved of {variant!r} with checkpointed=True", again["saved"], 1024, why)
        assert_equal(f"mask of {variant!r} with checkpointed=True", again["mask"], plain["mask"], hint=hint)
        if variant == "naive_mask":
            why = "what is made again is alive again, so the backward pass must be measured too"
            assert_at_least("total of 'naive_mask' with checkpointed=True", again["total"], 0.6 * plain["total"], why)

    @pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
    @pytest.mark.seconds(90)  # FlexAttention imports torch's compiler
    def test_flex_block_mask(self):
        got, n, want = breakdown("flex_block_mask"), SIZES["seq_len"], bytes_of_block_mask()
        hint = "a BlockMask is no tensor; what it holds are eight small ones, kept until attention has run"
        assert_equal("mask of 'flex_block_mask'", got["mask"], want, hint=hint)
        why = f"on the way create_block_mask makes several bytes a pair, {n * n:,} pairs"
        if got["mask_building"] == got["mask"]:
            why += "\nUsual cause: it is what is alive afterwards, instead of the peak while the mask is made"
        assert_at_least("mask_building of 'flex_block_mask'", got["mask_building"], 2 * n * n, why)
        hint = "on the CPU it runs forward only"
        assert_equal("gradients of 'flex_block_mask'", got["gradients"], 0, hint=hint)
        if got["saved"] in (got["mask"], got["output"]):
            hint = "mask or output has a key of its own, and is counted in saved too"
        assert_at_most("saved of 'flex_block_mask'", got["saved"], 64, hint=hint)
        why = f"without the compiler it makes all scores, {bytes_of_scores():,}"
        if got["total"] == got["mask"] + got["output"] + got["saved"]:
            why += "\nUsual cause: it is what is alive after the forward pass, whose peak belongs to total too"
        assert_at_least("total of 'flex_block_mask'", got["total"], bytes_of_scores(), why)
        assert_adds_up(got, "of 'flex_block_mask'")

    @pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
    @pytest.mark.seconds(90)
    def test_total_is_the_peak_of_the_passes(self):
        """Its mask is made for two blocks of 128, and attention runs on 140 positions: the passes need less."""
        got = breakdown("flex_block_mask", heads=1, seq_len=140, block=128)
        text = (
            f"total of 'flex_block_mask' is {got['total']:,} bytes, and mask_building {got['mask_building']:,}, with "
        )
        text += "one head, seq_len 140 and block 128, where less is alive in the passes than while the mask is made"
        cause = "total is the peak of the two passes alone: when they begin, the mask has been made"
        require(got["total"] < got["mask_building"], f"{text}\nUsual cause: {cause}")

    @pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
    @pytest.mark.seconds(90)
    def test_flex_attention_sees_the_window(self):
        calls = watched_flex("flex_block_mask", *SMALL.values(), torch.float32)
        require(calls, "flex_attention of torch.nn.attention is never called for 'flex_block_mask'")
        for inputs, arrays in calls:
            assert_attends("flex_block_mask", inputs, arrays, SMALL["window"])

    @pytest.mark.refuses
    def test_other_variant(self):
        call = partial(memory_breakdown, "flash", *SIZES.values(), torch.float32)
        assert_raises(ValueError, call, when="for the variant 'flash'", mentions=("naive_mask", "tiled_window"))
