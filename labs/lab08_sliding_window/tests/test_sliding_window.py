"""Lab 08's suite: windows and their tiles, what attention through them takes, a bounded cache, and an audit."""

import importlib
from functools import cache, partial

import numpy as np
import pytest
import torch
from sliding_window import BlockMaskCache, classify_tiles, memory_breakdown, sliding_window_attention, window_mask

from labkit.meters.arrays import measure_arrays
from labkit.meters.audit import flex_calls, flops_of_a_step, profiled_peak, step_taken, watched
from labkit.meters.mask_caches import session_of
from labkit.meters.steps import penalised_gradients
from labkit.meters.steps import step as step_of
from labkit.meters.tensors import measure_peak
from labkit.testing.attention.gradients import ByStep
from labkit.testing.attention.tensor_cases import strided
from labkit.testing.compare import (
    NAN_FROM_EMPTY,
    assert_at_most,
    assert_equal,
    assert_raises,
    assert_type,
    require,
    require_at_least,
    require_at_most,
)
from labkit.testing.probes import probe
from labkit.testing.unchanged import left_alone
from labkit.testing.windows.audit import (
    SIZES,
    as_breakdown,
    assert_adds_up,
    assert_at_least,
    assert_checkpointed,
    assert_flex_block_mask,
    assert_naive_mask,
    assert_own_bytes,
    assert_step_was_run,
    assert_total,
    causal_step_peak,
    flops_of_scores,
    one_quiet_thread,
    own_bytes,
    score_bytes,
    shape_of,
    some_inputs,
)
from labkit.testing.windows.mask_caches import assert_least_recent_goes
from labkit.testing.windows.sliding import (
    WindowStepCase,
    assert_attends,
    assert_codes,
    assert_empty_tiles_skipped,
    assert_mask,
    assert_tiles,
    last_queries_are_right,
)

MASKS = [(9, 3), (1, 1), (7, 1), (8, 8), (8, 7), (5, 40), (63, 17), (33, 2)]


@probe
def mask_after_a_changed_one(seq_len, window):
    """A second mask, made after the first was changed in place."""
    first = window_mask(seq_len, window)
    first.logical_not_()
    return window_mask(seq_len, window)


class TestWindowMask:
    """True where a key is masked out."""

    def test_worked_example(self):
        assert_mask(window_mask(4, 2), 4, 2)

    @pytest.mark.parametrize(("seq_len", "window"), MASKS)
    def test_pairs(self, seq_len, window):
        assert_mask(window_mask(seq_len, window), seq_len, window)

    @pytest.mark.seconds(60)
    def test_every_small_window(self):
        for seq_len in range(1, 9):
            for window in range(1, 12):
                assert_mask(window_mask(seq_len, window), seq_len, window)

    def test_windows_drawn_at_random(self, rng):
        for seq_len in rng.integers(10, 90, size=8).tolist():
            window = int(rng.integers(1, seq_len + 5))
            assert_mask(window_mask(seq_len, window), seq_len, window)

    @pytest.mark.kind("robust")
    def test_two_masks_are_apart(self):
        assert_mask(mask_after_a_changed_one(6, 2), 6, 2)

    @pytest.mark.kind("small")
    def test_is_made_from_bytes(self):
        n = 512
        assert_mask(window_mask(n, 33), n, 33)
        peak = measure_peak(window_mask, n, 33).peak_bytes
        hint = "i − j for all pairs at once is int64, 8 bytes a pair: compare a column with a row, or cut bytes"
        assert_at_most(f"the peak of window_mask({n}, 33)", peak, 4 * n * n + 64 * n, hint=hint)

    @pytest.mark.kind("small")
    @pytest.mark.outside(mib=24)
    def test_bytes_seen_from_outside(self, outside):
        mask = outside(window_mask, 2048, 33)
        right = tuple(mask.shape) == (2048, 2048) and (~mask).sum(-1).tolist() == [*range(1, 33), *[33] * 2016]
        require(right, "within that bound the mask is not right, at N = 2048, window 33")

    @pytest.mark.kind("refuses")
    @pytest.mark.parametrize(("seq_len", "window", "named"), [(4, 0, "window"), (4, -2, "window"), (0, 3, "seq_len")])
    def test_bad_arguments(self, seq_len, window, named):
        assert_raises(ValueError, lambda: window_mask(seq_len, window), when=f"for {named} below 1", mentions=(named,))


TILES = [(6, 4, 2), (64, 16, 16), (64, 17, 16), (64, 15, 16), (63, 10, 16), (70, 200, 32), (70, 7, 100), (70, 33, 32),
         (20, 3, 1), (9, 1, 1), (9, 1, 4), (1, 1, 5), (130, 100, 12), (65, 31, 16), (65, 64, 16)]  # fmt: skip


class TestClassifyTiles:
    """empty, partial, full."""

    @pytest.mark.parametrize(("seq_len", "window", "block"), TILES)
    def test_kinds(self, seq_len, window, block):
        assert_tiles(classify_tiles(seq_len, window, block), seq_len, window, block)

    @pytest.mark.seconds(60)
    def test_every_small_tiling(self):
        for seq_len in range(1, 10):
            for window in range(1, 12):
                for block in range(1, 6):
                    assert_tiles(classify_tiles(seq_len, window, block), seq_len, window, block)

    @pytest.mark.seconds(60)
    def test_tilings_drawn_at_random(self, rng):
        for seq_len in rng.integers(20, 120, size=8).tolist():
            window, block = int(rng.integers(1, seq_len + 5)), int(rng.integers(2, 30))
            assert_tiles(classify_tiles(seq_len, window, block), seq_len, window, block)

    @pytest.mark.seconds(60)
    def test_tiles_of_a_long_sequence(self):
        kinds = classify_tiles(8192, 256, 64)
        assert_type("classify_tiles(8192, 256, 64)", kinds, np.ndarray, "a NumPy array")
        found = {kind: int(np.count_nonzero(kinds == kind)) for kind in ("full", "partial", "empty")}
        want = {"full": 378, "partial": 252, "empty": 15_754}
        assert_equal("the number of tiles of each kind, N=8192, window 256, block 64,", found, want)

    @pytest.mark.kind("small")
    def test_without_the_mask(self):
        arrays = measure_arrays(classify_tiles, 2048, 300, 128)
        peak = measure_peak(classify_tiles, 2048, 300, 128).peak_bytes
        hint = "2048² pairs are 4 MiB even as bytes: a tile's first and last row and column tell what it holds"
        assert_at_most("the peak of classify_tiles(2048, 300, 128)", arrays.peak_bytes + peak, 256 * 1024, hint=hint)

    @pytest.mark.kind("small")
    @pytest.mark.outside(mib=10)
    def test_without_the_mask_seen_from_outside(self, outside):
        assert_tiles(outside(classify_tiles, 4096, 300, 128), 4096, 300, 128)

    @pytest.mark.kind("refuses")
    @pytest.mark.parametrize(
        ("arguments", "named"), [((0, 3, 2), "seq_len"), ((4, 0, 2), "window"), ((4, 3, 0), "block")]
    )
    def test_bad_arguments(self, arguments, named):
        assert_raises(ValueError, lambda: classify_tiles(*arguments), when=f"for {named} below 1", mentions=(named,))


# Attention

CASES = [(63, 10, 16), (129, 1, 16), (70, 200, 32), (70, 7, 100), (70, 33, 32), (20, 3, 1), (1, 1, 4), (64, 16, 16),
         (96, 32, 16), (65, 64, 16)]  # fmt: skip
BAD_SHAPES = {  # those of k and v, where q's is (2, 10, 6)
    "width of k": ((2, 10, 5), (2, 10, 3)),
    "length of k": ((2, 11, 6), (2, 11, 3)),
    "length of v": ((2, 10, 6), (2, 9, 3)),
}


@probe
def measured_step(q, k, v, d_out, window, block):
    """A training step's output, its arithmetic in each pass, the bytes kept between them, and the whole's memory."""
    return step_taken(lambda q, k, v: sliding_window_attention(q, k, v, window, block), [q, k, v], d_out)


@probe
def plain_step(q, k, v, d_out, window, block):
    """A training step: the output, and the gradients of q, k and v."""
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    out = sliding_window_attention(*leaves, window, block)
    (out * d_out).sum().backward()
    return out.detach(), *(x.grad for x in leaves)


class StepCase(WindowStepCase):
    """A case of the student's attention."""

    attend = staticmethod(sliding_window_attention)
    step = staticmethod(plain_step)


@probe
def step_on_nan(q, k, v, d_out, window, block):
    """What `plain_step` gives, where uninitialised memory holds NaN."""
    attend = lambda q, k, v: sliding_window_attention(q, k, v, window, block)  # noqa: E731
    out, _, gradients = step_of(attend, [q, k, v], d_out, on_nan=True)
    return out, *gradients


@cache
def taken(seq_len, window, block, d=8):
    """What a training step of the student's attention takes, measured once for several tests, if its output is right.

    Whoever computes something else is told so first.
    """
    case = StepCase(np.random.default_rng(8), seq_len, window, block, d=d, d_v=d)
    out, told = measured_step(*case.inputs, case.dO, window, block)
    case.compare("out", out)
    return told


@probe
def step_with_a_penalty(q, k, v, d_out, window, block):
    """The gradients of a loss and the squares of its own gradients; or what was said where that is refused."""
    return penalised_gradients(lambda *inputs: sliding_window_attention(*inputs, window, block), (q, k, v), d_out)


@pytest.mark.seconds(60)  # gradcheck's first call imports sympy
class TestSlidingWindowAttention:
    """Exact, and in O(N · window)."""

    def test_worked_example(self):
        q, k, v = torch.ones(3, 1), torch.zeros(3, 1), torch.tensor([[1.0], [2.0], [6.0]])
        got, want = sliding_window_attention(q, k, v, 2, 2), [[1.0], [1.5], [4.0]]
        assert_type("out", got, torch.Tensor, "a tensor")
        near = got.shape == (3, 1) and float((got - torch.tensor(want)).abs().max()) < 1e-6
        told = f"out is {got.tolist()}, expected {want}"
        require(near, f"{told}: query 1 sees keys 0 and 1, query 2 sees keys 1 and 2")

    @pytest.mark.parametrize(("seq_len", "window", "block"), CASES)
    def test_output_and_gradients(self, rng, seq_len, window, block):
        StepCase(rng, seq_len, window, block).check_step()

    def test_sizes_drawn_at_random(self, rng):
        for _ in range(4):
            seq_len, window, block, d, d_v = rng.integers((30, 2, 3, 3, 3), (90, 70, 40, 20, 20)).tolist()
            StepCase(rng, seq_len, window, block, d=d, d_v=d_v).check_step()

    @pytest.mark.parametrize("batch", [(3,), (2, 3), (2, 1, 2)])
    def test_leading_axes(self, rng, batch):
        case = StepCase(rng, 37, 9, 8, batch=batch)
        case.check_step(hint="each entry of the leading axes is an attention of its own")

    def test_gradcheck(self, rng):
        case = StepCase(rng, 9, 4, 3, d=3, d_v=2, dtype=torch.float64)
        case.check_step(hint="a step is done in float32")
        right = torch.autograd.gradcheck(
            lambda *x: ByStep.apply(
                lambda *x: sliding_window_attention(*x, 4, 3), lambda *x: plain_step(*x, 4, 3)[1:], *x
            ),
            [x.requires_grad_() for x in case.inputs],
            raise_exception=False,
            check_undefined_grad=False,
        )
        require(right, "torch.autograd.gradcheck: the gradients are not those of the output")

    @pytest.mark.kind("robust")
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_half_precision(self, rng, dtype):
        case = StepCase(rng, 288, 256, 8, d=16, d_v=16, dtype=dtype)
        case.check_step(hint="sums of half-precision inputs belong in float32, those of the gradients too")

    @pytest.mark.kind("robust")
    def test_large_logits(self, rng):
        cause = "exp overflows: no score may enter exp without its row's maximum, or log-sum-exp, taken from it"
        StepCase(rng, 70, 20, 16, logit_scale=300).check_step(hint=cause, nan_hint=cause)

    @pytest.mark.kind("robust")
    @pytest.mark.parametrize("size", [1e3, 1e6, 1e18])
    def test_scores_far_below_zero(self, rng, size):
        """All scores are one number, so that every key of the window has the same weight, however low it is."""
        case = StepCase(rng, 70, 20, 16)
        case.Q, case.K = torch.zeros_like(case.Q), torch.zeros_like(case.K)
        case.Q[:, 0], case.K[:, 0] = size, -size
        cause = f"scores of {-size * size:.0e} lie below the number that hides a key: only −inf is below every score"
        case.check_step(hint=cause, names=("dv",))

    @pytest.mark.kind("robust")
    def test_inputs_need_not_be_contiguous(self, rng):
        case = StepCase(rng, 40, 11, 8, batch=(2, 3))
        case.Q, case.K, case.V = strided(*case.inputs)
        case.check_step(hint="a (batch, N, heads, d) tensor seen as (batch, heads, N, d): its rows are not adjacent")

    @pytest.mark.kind("robust")
    def test_uninitialised_memory_is_written_over(self, rng):
        case = StepCase(rng, 63, 10, 16, batch=(2,))
        for name, got in zip(("out", "dq", "dk", "dv"), step_on_nan(*case.inputs, case.dO, 10, 16), strict=False):
            case.compare(name, got, nan_hint=NAN_FROM_EMPTY)

    @pytest.mark.kind("robust")
    def test_arguments_are_left_alone(self, rng):
        case = StepCase(rng, 40, 11, 8)
        with left_alone("qkv", case.inputs):
            case.compare("out", sliding_window_attention(*case.inputs, 11, 8))

    @pytest.mark.kind("robust")
    def test_second_derivatives(self, rng):
        """Right, or refused: a backward pass that autograd cannot follow must say so."""
        case = StepCase(rng, 12, 5, 4, d=4, d_v=3, dtype=torch.float64)
        case.check_step()
        got = step_with_a_penalty(*case.inputs, case.dO, 5, 4)
        if not isinstance(got, str):
            case.check_penalised_gradients(got)

    @pytest.mark.kind("small")
    @pytest.mark.parametrize(("window", "block"), [(70, 32), (40, 64), (1, 16)])
    def test_empty_tiles_are_skipped(self, window, block):
        assert_empty_tiles_skipped(taken(500, window, block), 500, window, block)

    @pytest.mark.kind("small")
    @pytest.mark.parametrize("block", [20, 30])
    def test_blocks_of_the_size_asked_for(self, block):
        shapes = taken(60, 37, block)["shapes"]
        fitting = [shape for shape in shapes if block in shape]
        others = sorted(set(shapes) - set(fitting))
        told = f"of {len(shapes)} products (N=60, window=37, {block=}) {len(fitting)} have {block} rows or columns; "
        told += f"others are {', '.join(f'{m} × {n}' for m, n in others[:4])}"
        told += "\nUsual cause: `block` is checked and not used: queries are taken a block at a time"
        least = max(1, len(shapes)) / 2
        require_at_least("the products of a block's size", len(fitting), least, told, kind="products")

    @pytest.mark.kind("small")
    def test_work_grows_with_n(self):
        short, long = taken(250, 40, 32), taken(1000, 40, 32)
        for name in ("forward", "backward"):
            ratio = long[name]["flops"] / max(short[name]["flops"], 1)
            what = f"with 4 times the tokens the {name} pass's products do"
            told = f"{what} {ratio:.1f} times the work\nUsual cause: every block of queries meets every block of keys"
            require(ratio, told)
            require_at_most(what, ratio, 6, told)

    @pytest.mark.kind("small")
    def test_memory_grows_with_n(self):
        short, long = taken(250, 40, 32), taken(1000, 40, 32)
        hint = "something of N × N is alive, the mask perhaps: each block of queries needs a mask of its own tile only"
        name, limit = "the largest tensor of a step (N=1000, window=40, block=32)", 4 * 1000 * (40 + 2 * 32)
        assert_at_most(name, long["largest_bytes"], limit, hint=hint)
        ratio = long["peak_bytes"] / short["peak_bytes"]
        told = f"with 4 times the tokens a step's peak is {ratio:.1f} times as large"
        require_at_most("a step's peak with 4 times the tokens", ratio, 6, f"{told}\nUsual cause: {hint}")

    @pytest.mark.kind("small")
    def test_between_the_passes(self):
        kept = taken(1000, 40, 32)["kept_bytes"]
        hint = "N² scores, weights or masks are kept for the backward pass: keep what lies in the window at most"
        limit = 4 * 1000 * (4 * (40 + 2 * 32) + 64)
        assert_at_most("what is kept between the passes (N=1000, window=40, block=32)", kept, limit, hint=hint)

    @pytest.mark.kind("small")
    @pytest.mark.outside(mib=44)
    def test_step_seen_from_outside(self, outside):
        generator = torch.Generator().manual_seed(8)
        q, k, v, d_out = (torch.randn(4096, 16, generator=generator) for _ in range(4))
        out, dq, *_ = outside(plain_step, q, k, v, d_out, 128, 128)
        close = last_queries_are_right(out, dq, (q, k, v, d_out), window=128)
        require(close, "within that bound out or dq is not right, at N = 4096, window 128, block 128")

    @pytest.mark.kind("refuses")
    @pytest.mark.parametrize(("window", "block", "named"), [(0, 4, "window"), (-1, 4, "window"), (3, 0, "block")])
    def test_bad_window_or_block(self, window, block, named):
        inputs = torch.zeros(10, 6), torch.zeros(10, 6), torch.zeros(10, 3)
        call = partial(sliding_window_attention, *inputs, window, block)
        assert_raises(ValueError, call, when=f"for {named} below 1", mentions=(named,))

    @pytest.mark.kind("refuses")
    @pytest.mark.parametrize("wrong", BAD_SHAPES)
    def test_bad_shapes(self, wrong):
        shapes = dict(zip("qkv", ((2, 10, 6), *BAD_SHAPES[wrong]), strict=True))
        apart = "kv" if wrong == "length of v" else "qk"
        call = partial(sliding_window_attention, *map(torch.zeros, shapes.values()), 3, 4)
        assert_raises(ValueError, call, when=f"for another {wrong}", mentions=[str(shapes[name]) for name in apart])


# The cache

ONE_KEY = (64, 16, 8)
OTHERS = {
    "seq_len": (72, 16, 8),
    "seq_len, by less than a block,": (63, 16, 8),
    "window": (64, 20, 8),
    "window and block, exchanged,": (64, 8, 16),
    "block": (64, 16, 4),
}


@probe
def cache_session(maxsize, deeds):
    """What a new cache does, deed by deed: see `labkit.meters.mask_caches`."""
    return session_of(BlockMaskCache(maxsize), deeds)


@probe
def number_held(maxsize, n_windows):
    """How many masks a cache of `maxsize` holds after as many windows as that, each mask 64 KiB."""
    cache = BlockMaskCache(maxsize)
    for window in range(1, n_windows + 1):
        cache.get(2048, window, 8)
    return len(cache)


@pytest.mark.seconds(60)
class TestBlockMaskCache:
    """Bounded, keyed on what matters, and emptied when asked."""

    @pytest.mark.parametrize("arguments", [(6, 4, 2), (63, 10, 16), (70, 200, 32), (70, 7, 100), (9, 1, 4)])
    def test_what_it_gives(self, arguments):
        got = BlockMaskCache(3).get(*arguments)
        assert_codes(f"get{arguments}", got, arguments)
        require(got.device.type == "cpu", f"get{arguments} lies on {got.device}, expected the CPU")

    def test_the_same_again(self):
        first, again = cache_session(3, [("hold", ONE_KEY), ("hold", ONE_KEY)])
        assert_codes(f"get{ONE_KEY}", first["mask"], ONE_KEY)
        hint = "it is made again, or copied: is it kept, and under a key that comes out the same the next time?"
        require(again["memory"] == 0, f"a second get{ONE_KEY} gives another tensor\nUsual cause: {hint}")
        cause = "a view or a detach of what is held: the very same tensor is asked for, which `is` can tell"
        told = f"a second get{ONE_KEY} gives another tensor on the same memory"
        require(again["tensor"] == 0, f"{told}\nUsual cause: {cause}")
        assert_at_most(f"the memory that a second get{ONE_KEY} takes", again["peak_bytes"], 0, hint=hint)
        assert_equal("len(cache) after the same get twice", again["len"], 1)

    @pytest.mark.parametrize("device", ["cpu", "meta"])
    def test_the_same_device_written_in_two_ways(self, device):
        written = [(*ONE_KEY, device), (*ONE_KEY, torch.device(device)), (*ONE_KEY, device)]
        if device == "cpu":
            written.append(ONE_KEY)
        told = cache_session(4, [("hold", arguments) for arguments in written])
        hint = f"{device!r} and torch.device({device!r}) are one device: make the key of torch.device(device)"
        assert_equal(f"len(cache) after get on {device}, written in two ways,", told[-1]["len"], 1, hint=hint)
        require(all(one["tensor"] == 0 for one in told), f"one device gives several masks: {hint}")

    @pytest.mark.parametrize("differs", OTHERS)
    def test_masks_are_not_confused(self, differs):
        other = OTHERS[differs]
        first, second, again = cache_session(3, [("hold", ONE_KEY), ("hold", other), ("hold", ONE_KEY)])
        hint = f"a different {differs} is a different mask: does the key hold it?"
        require(second["memory"] == 1, f"get{ONE_KEY} and get{other} give the same tensor\nUsual cause: {hint}")
        assert_codes(f"get{ONE_KEY}", first["mask"], ONE_KEY)
        assert_codes(f"get{other} after get{ONE_KEY}", second["mask"], other)
        assert_codes(f"get{ONE_KEY} after get{other}", again["mask"], ONE_KEY)
        assert_equal("len(cache)", again["len"], 2)

    def test_devices_are_not_confused(self):
        cache = BlockMaskCache(3)
        found = [cache.get(*ONE_KEY, device).device.type for device in ("cpu", "meta", "cpu")]
        hint, name = "the device belongs in the key: a mask must lie where it is used", "get(…, 'cpu')"
        assert_equal(f"the devices of {name}, get(…, 'meta') and {name}", found, ["cpu", "meta", "cpu"], hint=hint)
        assert_equal("len(cache)", len(cache), 2)

    @pytest.mark.parametrize("maxsize", [1, 3, 70])
    def test_never_more_than_maxsize(self, maxsize):
        keys = [(80, 1 + step, 8) for step in range(maxsize + 5)]
        told = cache_session(maxsize, [("get", key) for key in keys])
        for step, (key, one) in enumerate(zip(keys, told, strict=True)):
            assert_codes(f"get{key}", one["mask"], key)
            hint = "when there is one too many, one must go, and none before"
            name = f"len(cache) with maxsize {maxsize} after {step + 1} masks"
            assert_equal(name, one["len"], min(step + 1, maxsize), hint=hint)
        name = f"the masks whose memory is held, of {len(keys)} asked for in turn with maxsize {maxsize},"
        hint = "what the cache gives up, nothing else may hold"
        assert_equal(name, told[-1]["alive"], list(range(5, maxsize + 5)), hint=hint)

    def test_least_recently_used_goes(self):
        order, keys = "abacac", {"a": (64, 1, 8), "b": (64, 2, 8), "c": (64, 3, 8)}
        told = cache_session(2, [("get", keys[name]) for name in order])
        left = sorted({order[told[number]["memory"]] for number in told[3]["alive"]})
        suspects = {
            "the one that was made first goes, though it was used since (FIFO)": ["b", "c"],
            "nothing goes": ["a", "b", "c"],
            "all that was there goes": ["c"],
        }
        assert_equal("held after a, b, a and c were asked for, maxsize 2,", left, ["a", "c"], suspects=suspects)
        for name, one, first in zip(order[4:], told[4:], (0, 3), strict=True):
            assert_codes(f"get{keys[name]} again", one["mask"], keys[name])
            require(one["memory"] == first, f"{name}, asked for recently, is made again")

    def test_masks_asked_for_at_random(self, rng):
        """Among them gets that fail and, twice, a clear(): the order must survive the ones and end with the others."""
        maxsize, windows = int(rng.integers(2, 5)), 1 + rng.permutation(40)[:6]
        sizes = rng.integers((40, 4), (90, 20), size=(6, 2))
        keys = [(int(n), int(window), int(block)) for (n, block), window in zip(sizes, windows, strict=True)]
        deeds = [("get", keys[key]) for key in rng.integers(0, len(keys), size=30).tolist()]
        for at in (6, 13, 25):
            deeds[at] = ("fail", (keys[0][0], 0, keys[0][2]))
        deeds[10] = deeds[20] = ("clear",)
        assert_least_recent_goes(maxsize, deeds, cache_session(maxsize, deeds))

    @pytest.mark.kind("small")
    def test_clear_frees_the_memory(self):
        deeds = [("get", (64, window, 8)) for window in (1, 2, 3)]
        *_, cleared, again = cache_session(4, [*deeds, ("clear",), ("get", ONE_KEY)])
        assert_equal("len(cache) after clear()", cleared["len"], 0)
        left = [deeds[number][1][1] for number in cleared["alive"]]
        hint = "another list or cache still holds them, a functools.lru_cache for instance"
        assert_equal("the windows whose masks are still in memory after clear()", left, [], hint=hint)
        assert_codes(f"get{ONE_KEY} after clear()", again["mask"], ONE_KEY)
        assert_equal("len(cache) after clear() and one get", again["len"], 1)

    @pytest.mark.kind("small")
    @pytest.mark.outside(mib=10)
    def test_masks_seen_from_outside(self, outside):
        n_masks = outside(number_held, 2, 40)
        assert_equal("len(cache), maxsize 2, after 40 masks", n_masks, 2)

    @pytest.mark.kind("robust")
    def test_clear_leaves_what_others_hold(self):
        held, _ = cache_session(2, [("hold", ONE_KEY), ("clear",)])
        assert_codes(f"a mask of get{ONE_KEY} that its user still holds after clear()", held["mask"], ONE_KEY)

    def test_two_caches_are_apart(self):
        first, second = BlockMaskCache(2), BlockMaskCache(1)
        first.get(*ONE_KEY)
        hint = "each cache has masks of its own: an attribute of the class is common to all"
        assert_equal("len of a cache that nobody asked, while another was,", len(second), 0, hint=hint)
        second.get(*ONE_KEY)
        second.clear()
        assert_equal("len of a cache after another one's clear()", len(first), 1)

    @pytest.mark.kind("refuses")
    @pytest.mark.parametrize("maxsize", [0, -1])
    def test_bad_maxsize(self, maxsize):
        assert_raises(ValueError, lambda: BlockMaskCache(maxsize), when=f"for maxsize {maxsize}", mentions=("maxsize",))

    @pytest.mark.kind("refuses")
    def test_bad_arguments(self):
        cache = BlockMaskCache(1)
        cache.get(*ONE_KEY)
        assert_raises(ValueError, lambda: cache.get(64, 0, 8), when="for window 0", mentions=("window",))
        hint = "a mask goes, or a place is taken, before the arguments are checked"
        assert_equal("len(cache), maxsize 1, after a get that failed", len(cache), 1, hint=hint)


# The audit

SMALL = {"batch": 2, "heads": 3, "seq_len": 48, "head_dim": 8, "window": 11, "block": 16}
TRAINED = ("naive_mask", "causal_sdpa", "tiled_window")


@probe
def profiled_step(q, k, v, window, block):
    """The peak of a training step in the allocator's own record."""
    return profiled_peak(lambda q, k, v: sliding_window_attention(q, k, v, window, block), [q, k, v])


@probe
def watched_breakdown(shape, *arguments):
    """What runs under `memory_breakdown`: q, k and v, all arrays of their shape, FLOPs of products, masks made."""
    return watched(lambda: memory_breakdown(*arguments), shape)


@probe
def masks_of_one_call(shape, window):
    """How many arrays of bool of N × N one call of `window_mask` makes."""
    return watched(lambda: window_mask(shape[-2], window), shape)[-1]


@probe
def flops_of_one_step(shape, window, block):
    """The arithmetic of the products of one training step."""
    return flops_of_a_step(lambda q, k, v: sliding_window_attention(q, k, v, window, block), shape)


@probe
def watched_flex(*arguments):
    """What FlexAttention is given and gives while `memory_breakdown` runs: (q, k, v) and out, of each call."""
    import sliding_window

    return flex_calls(lambda: memory_breakdown(*arguments), sliding_window)


def breakdown(variant, dtype=torch.float32, checkpointed=False, **sizes):
    """The student's breakdown, its form checked."""
    got = memory_breakdown(variant, *(SIZES | sizes).values(), dtype, *([True] if checkpointed else []))
    return as_breakdown(variant, got)


measured = cache(breakdown)  # for those that several tests look at


@pytest.fixture(scope="class")
def alike_everywhere():
    """One thread, and nothing old for the collector: imports of seconds are done before."""
    importlib.import_module("labkit.suite.prefork_torch")
    with one_quiet_thread():
        yield


@pytest.mark.usefixtures("alike_everywhere")
@pytest.mark.seconds(60)
class TestMemoryBreakdown:
    """Measured, and it adds up."""

    @pytest.mark.parametrize("variant", TRAINED)
    @pytest.mark.parametrize("checkpointed", [False, True])
    def test_attention_is_the_variant_s(self, variant, checkpointed):
        shape = shape_of(SMALL)
        arguments = (variant, *SMALL.values(), torch.float32, checkpointed)
        inputs, arrays, flops, n_masks = watched_breakdown(shape, *arguments)
        assert_step_was_run(variant, inputs, flops, shape)
        assert_attends(variant, inputs, arrays, SMALL["window"])
        if variant == "naive_mask":
            runs = max(1, flops // ((8 if checkpointed else 6) * flops_of_scores(shape)))
            limit = runs * masks_of_one_call(shape, SMALL["window"])
            name = f"the number of N × N masks made in {runs} run of 'naive_mask'"
            hint = "the mask is made again in the forward pass: it was made before, once"
            assert_at_most(name, n_masks, limit, unit="arrays", hint=hint)
        if variant == "tiled_window" and not checkpointed:
            step = flops_of_one_step(shape, SMALL["window"], SMALL["block"])
            told = f"{flops:,} FLOPs of products run under 'tiled_window', where a step with the same window and block"
            require(flops and flops % step == 0, f"{told} does {step:,}\nUsual cause: another window or block")

    @pytest.mark.parametrize("checkpointed", [False, True])
    @pytest.mark.parametrize("variant", TRAINED)
    def test_adds_up(self, variant, checkpointed):
        assert_adds_up(measured(variant, checkpointed=checkpointed), f"of {variant!r} ({checkpointed=})")

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    @pytest.mark.parametrize("variant", TRAINED)
    def test_output_and_gradients(self, variant, dtype):
        hint = "the tensors must be of the dtype and the shape asked for"
        assert_own_bytes(measured(variant, dtype), f"of {variant!r} in {dtype}", own_bytes(dtype), hint)

    def test_naive_mask(self):
        assert_naive_mask(measured("naive_mask"))

    def test_sizes_drawn_at_random(self, rng):
        low, high = (1, 1, 70, 5, 5, 8), (3, 4, 150, 24, 60, 40)
        for fixed in ({}, {"batch": 3, "heads": 2}):
            sizes = dict(zip(SIZES, rng.integers(low, high).tolist(), strict=True)) | fixed
            got = breakdown("naive_mask", **sizes)
            text = f"of 'naive_mask' with {', '.join(f'{name} {size}' for name, size in sizes.items())}"
            hint = "one mask serves every head and batch entry: it is broadcast, which copies nothing"
            assert_equal(f"mask {text}", got["mask"], sizes["seq_len"] ** 2, hint=hint)
            assert_own_bytes(got, text, own_bytes(**sizes))
            weights = score_bytes(**sizes)
            assert_at_least(f"saved {text}", got["saved"], 0.7 * weights, f"the weights alone are {weights:,}")
            assert_adds_up(got, text)

    @pytest.mark.parametrize("variant", TRAINED)
    def test_checkpointed(self, variant):
        assert_checkpointed(variant, measured(variant), measured(variant, checkpointed=True))

    @pytest.mark.parametrize("checkpointed", [False, True])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_causal_sdpa_is_measured(self, dtype, checkpointed):
        got = measured("causal_sdpa", dtype, checkpointed)
        for part in ("mask", "mask_building"):
            assert_equal(f"{part} of 'causal_sdpa'", got[part], 0, hint="is_causal=True needs no mask")
        assert_total(got["total"], "causal_sdpa", causal_step_peak(dtype, checkpointed), dtype, checkpointed)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_tiled_window_is_measured(self, dtype):
        got = measured("tiled_window", dtype)
        assert_equal("mask of 'tiled_window'", got["mask"], 0, hint="its tiles need no mask that is kept")
        want = profiled_step(*some_inputs(dtype), SIZES["window"], SIZES["block"])
        assert_total(got["total"], "tiled_window", want, dtype, False)

    @pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
    @pytest.mark.seconds(90)  # FlexAttention imports torch's compiler
    def test_flex_block_mask(self):
        assert_flex_block_mask(measured("flex_block_mask"))

    @pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
    @pytest.mark.seconds(90)
    def test_flex_attention_sees_the_window(self):
        calls = watched_flex("flex_block_mask", *SMALL.values(), torch.float32)
        require(calls, "flex_attention of torch.nn.attention is never called for 'flex_block_mask'")
        for inputs, arrays in calls:
            assert_attends("flex_block_mask", inputs, arrays, SMALL["window"])

    @pytest.mark.kind("refuses")
    def test_other_variant(self):
        call = partial(memory_breakdown, "flash", *SIZES.values(), torch.float32)
        assert_raises(ValueError, call, when="for the variant 'flash'", mentions=("naive_mask", "tiled_window"))
