"""Lab 08's suite: windows and their tiles, what attention through them takes, a bounded cache, and an audit."""

import gc
import importlib
import math
import weakref
from functools import cache, cached_property

import numpy as np
import pytest
import torch
import torch.utils.checkpoint
from sliding_window import BlockMaskCache, classify_tiles, memory_breakdown, sliding_window_attention, window_mask

from labkit.meters.arrays import measure_arrays
from labkit.meters.products import ProductMeter
from labkit.meters.profiler import profile_memory
from labkit.meters.saved import kept_by_forward
from labkit.meters.tensors import AllocationMeter, measure_peak
from labkit.testing.compare import (
    assert_at_most,
    assert_close,
    assert_dtype,
    assert_equal,
    assert_keys,
    assert_raises,
    assert_type,
    assert_unchanged,
    require,
)
from labkit.testing.programs import program
from labkit.testing.reference import random_qkv
from labkit.testing.tensor_reference import attention, gradients


@program
def mask_after_a_changed_one(seq_len, window):
    """A second mask, made after the first was changed in place."""
    first = window_mask(seq_len, window)
    first.logical_not_()
    return window_mask(seq_len, window)


@program
def cache_session(maxsize, deeds):
    """What a new cache does, deed by deed: ("get", arguments), ("hold", arguments), a get whose user keeps the mask, or
    ("clear",).

    Told of each deed: what came out (of a held mask as it is at the end), its memory as the number of the deed that got
    it first, the peak of the call, `len` afterwards, and the numbers of the deeds whose masks are then in memory.
    """
    cache, told, held, watched = BlockMaskCache(maxsize), [], [], {}
    for number, (kind, *given) in enumerate(deeds):
        result = {"mask": None, "memory": None, "peak_bytes": 0}
        if kind == "clear":
            cache.clear()
        else:
            result["peak_bytes"], mask = measure_peak(cache.get, *given[0])
            result["mask"] = mask
            if isinstance(mask, torch.Tensor):
                watched[number] = weakref.ref(mask.untyped_storage())
                result["memory"] = next(at for at, memory in watched.items() if memory() is watched[number]())
                if kind == "hold":
                    held.append(mask)
                else:
                    result["mask"] = mask.clone()
            mask = None
        told.append(result | {"len": len(cache), "alive": _alive(watched, len(cache))})
    return told


@program
def measured_step(q, k, v, d_out, window, block):
    """A training step's arithmetic in each pass, the bytes kept between them, and the memory of the whole."""
    q, k, v = (x.detach() for x in (q, k, v))
    sliding_window_attention(q, k, v, window, block)  # once outside the count
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    told = {"kept_bytes": kept_by_forward(sliding_window_attention, q, k, v, window, block)}
    with ProductMeter() as forward:
        out = sliding_window_attention(q, k, v, window, block)
    loss = (out * d_out).sum()
    del out
    with ProductMeter() as backward:
        loss.backward()
    del loss
    q.grad = k.grad = v.grad = None
    with AllocationMeter() as memory:
        (sliding_window_attention(q, k, v, window, block) * d_out).sum().backward()
    for name, products in (("forward", forward), ("backward", backward)):
        told[name] = {"flops": products.flops, "fused": products.fused}
    return told | {"peak_bytes": memory.peak_bytes, "largest_bytes": memory.largest_bytes}


@program
def profiled_step(q, k, v, window, block):
    """The peak of a training step in the allocator's own record."""
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))

    def step():
        out = sliding_window_attention(q, k, v, window, block)
        out.sum().backward()
        return out

    gc.collect()
    return profile_memory(step).peak_bytes


@program
def counted_breakdown(*arguments):
    """`memory_breakdown`, and the arithmetic of the products it does."""
    with ProductMeter() as products:
        result = memory_breakdown(*arguments)
    return result, products.flops


@program
def _alive(watched, n_expected):
    """Which memories are there; more than expected may be garbage, which is then collected (a second, with torch)."""
    if len({id(memory()) for memory in watched.values() if memory() is not None}) > n_expected:
        gc.collect()
    return [number for number, memory in watched.items() if memory() is not None]


GRADIENTS = ("dq", "dk", "dv")


def hidden_pairs(seq_len, window):
    """True where query i does not see key j, as NumPy; `window` may be below 1 here: then nothing is seen."""
    i, j = np.arange(seq_len)[:, None], np.arange(seq_len)
    return ~((i - window < j) & (j <= i))


# The mask

MASKS = [(9, 3), (1, 1), (7, 1), (8, 8), (8, 7), (5, 40), (63, 17), (33, 2)]


def mask_suspects(seq_len, window):
    """Usual mistakes in a window → the mask that each leads to."""
    hidden = hidden_pairs(seq_len, window)
    i, j = np.arange(seq_len)[:, None], np.arange(seq_len)
    return {
        "True and False are exchanged: True must stand where a key is masked out": ~hidden,
        "the window is one key too wide: it is the number of keys seen, the query's own included": hidden_pairs(
            seq_len, window + 1
        ),
        "the window is one key too narrow: the query's own key counts as one of the window": hidden_pairs(
            seq_len, window - 1
        ),
        "later keys are not masked out: j ≤ i": j <= i - window,
        "the window is not cut off on the left: only j ≤ i is applied": j > i,
        "the window reaches to both sides of the query": abs(i - j) >= window,
        "the window lies after the query: rows and columns are exchanged": hidden.T,
    }


def assert_mask(seq_len, window, make=window_mask):
    name = f"window_mask({seq_len}, {window})"
    got = make(seq_len, window)
    assert_type(name, got, torch.Tensor, "a tensor")
    require(got.dtype == torch.bool, f"{name} is {str(got.dtype).removeprefix('torch.')}, expected bool")
    require(
        tuple(got.shape) == (seq_len, seq_len), f"{name} has shape {tuple(got.shape)}, expected {(seq_len, seq_len)}"
    )
    found, want = got.numpy(), hidden_pairs(seq_len, window)
    if np.array_equal(found, want):
        return
    suspects = mask_suspects(seq_len, window).items()
    cause = next((text for text, value in suspects if np.array_equal(found, value)), "")
    i, j = np.argwhere(found != want)[0]
    seen = "not to be seen" if want[i, j] else "to be seen"
    require(
        False,
        f"{name}: wrong for {np.count_nonzero(found != want):,} of {want.size:,} pairs, first for query {i}, key {j}, "
        f"which is {seen}: {i} − {window} < j ≤ {i}" + (f"\nThat is what comes out when {cause}" if cause else ""),
    )


class TestWindowMask:
    """True where a key is masked out."""

    def test_worked_example(self):
        got = window_mask(4, 2)
        assert_type("window_mask(4, 2)", got, torch.Tensor, "a tensor")
        assert_mask(4, 2)

    @pytest.mark.parametrize(("seq_len", "window"), MASKS)
    def test_pairs(self, seq_len, window):
        assert_mask(seq_len, window)

    @pytest.mark.seconds(60)
    def test_every_small_window(self):
        for seq_len in range(1, 9):
            for window in range(1, 12):
                assert_mask(seq_len, window)

    def test_windows_drawn_at_random(self, rng):
        for seq_len in rng.integers(10, 90, size=8).tolist():
            assert_mask(seq_len, int(rng.integers(1, seq_len + 5)))

    def test_is_made_from_bytes(self):
        n = 512
        peak, _ = measure_peak(window_mask, n, 33)
        hint = "i − j for all pairs at once is int64, 8 bytes a pair: compare a column with a row, or cut bytes"
        assert_at_most(f"the peak of window_mask({n}, 33)", peak, 4 * n * n + 64 * n, hint=hint)

    def test_two_masks_are_apart(self):
        assert_mask(6, 2, mask_after_a_changed_one)

    @pytest.mark.parametrize(("seq_len", "window", "named"), [(4, 0, "window"), (4, -2, "window"), (0, 3, "seq_len")])
    def test_bad_arguments(self, seq_len, window, named):
        assert_raises(ValueError, lambda: window_mask(seq_len, window), when=f"for {named} below 1", mentions=(named,))


# Tiles

TILES = [(6, 4, 2), (64, 16, 16), (64, 17, 16), (64, 15, 16), (63, 10, 16), (70, 200, 32), (70, 7, 100), (70, 33, 32),
         (20, 3, 1), (9, 1, 1), (9, 1, 4), (1, 1, 5), (130, 100, 12), (65, 31, 16), (65, 64, 16)]  # fmt: skip


def tiles(hidden, block, real=None):
    """What each tile of a mask holds; outside of the sequence pairs do not count, or are hidden if `real` is given."""
    count = -(-len(hidden) // block)
    kinds = np.empty((count, count), dtype="<U7")
    for a in range(count):
        for b in range(count):
            tile = hidden[a * block : (a + 1) * block, b * block : (b + 1) * block]
            ragged = real is not None and tile.size < block * block
            kinds[a, b] = "empty" if tile.all() else "partial" if tile.any() or ragged else "full"
    return kinds


def tile_suspects(seq_len, window, block):
    """Usual mistakes → the array that each leads to."""
    hidden = hidden_pairs(seq_len, window)
    right = tiles(hidden, block)
    swap = {"partial": "full", "full": "partial", "empty": "empty"}
    turned = {"partial": "partial", "full": "empty", "empty": "full"}
    return {
        "partial and full are exchanged": np.vectorize(swap.get)(right),
        "empty and full are exchanged: is True read as seen?": np.vectorize(turned.get)(right),
        "every partial tile is called full": np.where(right == "partial", "full", right),
        "every full tile is called partial": np.where(right == "full", "partial", right),
        "a tile that the sequence's end cuts is called partial although every pair in it is seen": tiles(
            hidden, block, real=True
        ),
        "the window is one key too wide": tiles(hidden_pairs(seq_len, window + 1), block),
        "the window is one key too narrow": tiles(hidden_pairs(seq_len, window - 1), block),
        "the window is not cut off on the left": tiles(hidden_pairs(seq_len, seq_len), block),
        "rows and columns are exchanged: the query block comes first": right.T,
    }


def assert_tiles(seq_len, window, block):
    name = f"classify_tiles({seq_len}, {window}, {block})"
    got = classify_tiles(seq_len, window, block)
    want = tiles(hidden_pairs(seq_len, window), block)
    assert_type(name, got, np.ndarray, "a NumPy array")
    require(got.shape == want.shape, f"{name} has shape {got.shape}, expected {want.shape}: ⌈N / block⌉ blocks")
    wrong = np.argwhere(got != want)
    if not len(wrong):
        return
    cause = next((text for text, value in tile_suspects(seq_len, window, block).items() if np.array_equal(got, value)),
                 "")  # fmt: skip
    a, b = wrong[0]
    tile = hidden_pairs(seq_len, window)[a * block : (a + 1) * block, b * block : (b + 1) * block]
    require(
        False,
        f"{name}: {len(wrong):,} of {want.size:,} tiles are wrong, first [{a}, {b}]: {str(got[a, b])!r}, expected "
        f"{str(want[a, b])!r}, as {np.count_nonzero(~tile):,} of its {tile.size:,} pairs are seen"
        + (f"\nThat is exactly what comes out when {cause}" if cause else ""),
    )


class TestClassifyTiles:
    """empty, partial, full."""

    @pytest.mark.parametrize(("seq_len", "window", "block"), TILES)
    def test_kinds(self, seq_len, window, block):
        assert_tiles(seq_len, window, block)

    @pytest.mark.seconds(60)
    def test_every_small_tiling(self):
        for seq_len in range(1, 10):
            for window in range(1, 12):
                for block in range(1, 6):
                    assert_tiles(seq_len, window, block)

    @pytest.mark.seconds(60)
    def test_tilings_drawn_at_random(self, rng):
        for seq_len in rng.integers(20, 120, size=8).tolist():
            assert_tiles(seq_len, int(rng.integers(1, seq_len + 5)), int(rng.integers(2, 30)))

    @pytest.mark.seconds(60)
    def test_tiles_of_a_long_sequence(self):
        kinds = classify_tiles(8192, 256, 64)
        assert_type("classify_tiles(8192, 256, 64)", kinds, np.ndarray, "a NumPy array")
        found = {kind: int(np.count_nonzero(kinds == kind)) for kind in ("full", "partial", "empty")}
        want = {"full": 378, "partial": 252, "empty": 15_754}
        assert_equal("the number of tiles of each kind, N=8192, window 256, block 64,", found, want)

    def test_without_the_mask(self):
        arrays = measure_arrays(classify_tiles, 2048, 300, 128)
        peak, _ = measure_peak(classify_tiles, 2048, 300, 128)
        hint = "2048² pairs are 4 MiB even as bytes: a tile's first and last row and column tell what it holds"
        assert_at_most("the peak of classify_tiles(2048, 300, 128)", arrays.peak_bytes + peak, 256 * 1024, hint=hint)

    @pytest.mark.parametrize(
        ("arguments", "named"), [((0, 3, 2), "seq_len"), ((4, 0, 2), "window"), ((4, 3, 0), "block")]
    )
    def test_bad_arguments(self, arguments, named):
        assert_raises(ValueError, lambda: classify_tiles(*arguments), when=f"for {named} below 1", mentions=(named,))


# Attention


def numbers(tensor):
    """The tensor as a NumPy array of float64."""
    return tensor.detach().double().numpy()


class Case:
    """Inputs, and what comes out of them: exactly, and plainly in the inputs' own precision."""

    def __init__(self, rng, seq_len, window, block, *, d=12, d_v=7, batch=(), dtype=torch.float32, logit_scale=1.0):
        q, k, v = random_qkv(rng, n_queries=seq_len, n_keys=seq_len, d=d, d_v=d_v, batch=batch, dtype=np.float64,
                             logit_scale=logit_scale)  # fmt: skip
        d_out = rng.standard_normal(v.shape)
        self.q, self.k, self.v, self.d_out = (torch.from_numpy(x).to(dtype) for x in (q, k, v, d_out))
        self.window, self.block, self.dtype = window, block, dtype

    @property
    def inputs(self):
        return self.q, self.k, self.v

    @property
    def seq_len(self):
        return self.q.shape[-2]

    @cached_property
    def want(self):
        return self.results(self.mask(self.window))

    @cached_property
    def plain(self):
        """What plain computations lose, of which the worst counts; float64's is float32's, scaled down."""
        short = torch.float32 if self.dtype == torch.float64 else self.dtype
        shrink = torch.finfo(self.dtype).eps / torch.finfo(short).eps if self.dtype == torch.float64 else 1.0
        mask, scale = self.mask(self.window), self.q.shape[-1] ** -0.5
        forms = [self.results(mask, dtype=short)]
        for left, right in ((scale, 1.0), (1.0, scale)):
            made = self.results(mask, dtype=short, scale=1.0, factors=(left, right))
            forms.append(made | {"dq": made["dq"] * left, "dk": made["dk"] * right})
        if short == torch.float32:
            forms.append(self._by_formulas(mask))
        kind = np.float64 if self.dtype == torch.float64 else np.float32
        return {
            name: [(exact + (form[name] - exact) * shrink).astype(kind) for form in forms]
            for name, exact in self.want.items()
        }

    def _by_formulas(self, mask):
        """In float32, the weights from the log-sum-exp, and the gradients from them."""
        q, k, v, d_out = (x.float() for x in (*self.inputs, self.d_out))
        scale = q.shape[-1] ** -0.5
        scores = (scale * q @ k.mT).masked_fill(mask, -torch.inf)
        weights = torch.exp(scores - scores.logsumexp(-1, keepdim=True))
        out = weights @ v
        slopes = weights * (d_out @ v.mT - (d_out * out).sum(-1, keepdim=True))
        made = {"out": out, "dq": scale * (slopes @ k), "dk": slopes.mT @ (scale * q), "dv": weights.mT @ d_out}
        return {name: numbers(x) for name, x in made.items()}

    def mask(self, window):
        return torch.from_numpy(hidden_pairs(self.seq_len, window))

    def results(self, mask, dtype=torch.float64, scale=None, factors=(1.0, 1.0)):
        """`out` and the gradients, through `mask`."""
        q, k, v = (x.to(dtype) for x in self.inputs)
        q, k = q * factors[0], k * factors[1]
        back = gradients(q, k, v, self.d_out, mask=mask, scale=scale, dtype=dtype)
        out = attention(q, k, v, mask=mask, scale=scale, dtype=dtype).output
        return dict(zip(("out", *GRADIENTS), map(numbers, (out, *back)), strict=True))

    @cached_property
    def suspects(self):
        """Usual mistakes → all results that each leads to."""
        n, window, block = self.seq_len, self.window, self.block
        whole = n // block * block
        found = {
            "the window is one key too wide": lambda: self.results(self.mask(window + 1)),
            "the window is one key too narrow": lambda: self.results(self.mask(window - 1)),
            "the window is not applied: causal attention": lambda: self.results(self.mask(n)),
            "later keys are seen: the mask is applied on the left only": lambda: self.results(
                torch.from_numpy(np.arange(n) <= np.arange(n)[:, None] - window)
            ),
            "the scores are not divided by √d": lambda: self.results(self.mask(window), scale=1.0),
            "the scale is taken from the width of v": lambda: self.results(
                self.mask(window), scale=self.v.shape[-1] ** -0.5
            ),
            "tiles that the left edge of the window cuts are taken as full": lambda: self.results(
                self._by_tiles(window, keep="left")
            ),
            "tiles that the left edge of the window cuts are left out": lambda: self.results(
                self._by_tiles(window, keep="none")
            ),
        }
        if 0 < whole < n:
            found["the keys of the last, smaller block are left out"] = lambda: self.results(
                self.mask(window) | (torch.arange(n) >= whole)
            )
        return found

    def _by_tiles(self, window, keep):
        hidden, block = hidden_pairs(self.seq_len, window), self.block
        for a, b in np.argwhere(tiles(hidden, block) == "partial"):
            if a != b:
                hidden[a * block : (a + 1) * block, b * block : (b + 1) * block] = keep == "none"
        return torch.from_numpy(hidden)

    def check(self, name, got, hint="", nan_hint=""):
        """Compare one result with the reference, and name a usual mistake where one fits."""
        assert_type(name, got, torch.Tensor, "a tensor")
        assert_dtype(name, got, self.dtype)
        usual = {text: lambda value=value: value()[name] for text, value in self.suspects.items()}
        nan_hint = nan_hint or (
            "a query that sees no key of the first tile it looks at: its maximum is −inf, and −inf − (−inf) is NaN"
        )
        with np.errstate(all="ignore"):
            assert_close(name, got.detach().to(torch.float64), self.want[name], plain=self.plain[name],
                         suspects=usual, hint=hint, nan_hint=nan_hint)  # fmt: skip

    def check_step(self, hint="", nan_hint=""):
        """One training step, compared with the reference."""
        out, leaves = self.apply()
        self.check("out", out, hint, nan_hint)
        (out * self.d_out).sum().backward()
        for name, leaf in zip(GRADIENTS, leaves, strict=True):
            require(leaf.grad is not None, f"{name} never arrived: what autograd was to follow was cut by a detach")
            self.check(name, leaf.grad, hint, nan_hint)

    def apply(self):
        """The student's output, and the leaves that it came from."""
        leaves = [x.clone(memory_format=torch.preserve_format).requires_grad_() for x in self.inputs]
        out = sliding_window_attention(*leaves, self.window, self.block)
        require(isinstance(out, torch.Tensor) and out.requires_grad, "out does not require grad, though q, k and v do")
        return out, leaves


CASES = [(63, 10, 16), (129, 1, 16), (70, 200, 32), (70, 7, 100), (70, 33, 32), (20, 3, 1), (1, 1, 4), (64, 16, 16),
         (96, 32, 16), (65, 64, 16)]  # fmt: skip


@cache
def taken(seq_len, window, block, d=8):
    """What one training step of the student's attention takes, measured once for several tests."""
    case = Case(np.random.default_rng(8), seq_len, window, block, d=d, d_v=d)
    return measured_step(*case.inputs, case.d_out, window, block)


def area(seq_len, window, block):
    """Pairs in the tiles that are not empty, and pairs that are seen."""
    hidden = hidden_pairs(seq_len, window)
    size = np.minimum(block, seq_len - np.arange(0, seq_len, block))
    visited = tiles(hidden, block) != "empty"
    return int((visited * size[:, None] * size).sum()), int(np.count_nonzero(~hidden))


class TestSlidingWindowAttention:
    """Exact, and in O(N · window)."""

    def test_worked_example(self):
        q, k, v = torch.ones(3, 1), torch.zeros(3, 1), torch.tensor([[1.0], [2.0], [6.0]])
        got = sliding_window_attention(q, k, v, 2, 2)
        assert_type("out", got, torch.Tensor, "a tensor")
        want = [[1.0], [1.5], [4.0]]
        require(
            got.shape == (3, 1) and float((got - torch.tensor(want)).abs().max()) < 1e-6,
            f"out is {got.tolist()}, expected {want}: query 1 sees keys 0 and 1, query 2 sees keys 1 and 2",
        )

    @pytest.mark.seconds(60)
    @pytest.mark.parametrize(("seq_len", "window", "block"), CASES)
    def test_output_and_gradients(self, rng, seq_len, window, block):
        Case(rng, seq_len, window, block).check_step()

    @pytest.mark.seconds(60)
    @pytest.mark.parametrize("batch", [(3,), (2, 3), (2, 1, 2)])
    def test_leading_axes(self, rng, batch):
        Case(rng, 37, 9, 8, batch=batch).check_step(hint="each entry of the leading axes is an attention of its own")

    @pytest.mark.seconds(60)
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_half_precision(self, rng, dtype):
        Case(rng, 160, 130, 16, d=32, dtype=dtype).check_step(hint="sums of half-precision inputs belong in float32")

    @pytest.mark.seconds(60)
    def test_large_logits(self, rng):
        cause = "exp overflows: no score may enter exp without its row's maximum, or log-sum-exp, taken from it"
        Case(rng, 70, 20, 16, logit_scale=300).check_step(hint=cause, nan_hint=cause)

    @pytest.mark.seconds(60)  # gradcheck's first call imports sympy
    def test_gradcheck(self, rng):
        case = Case(rng, 9, 4, 3, d=3, d_v=2, dtype=torch.float64)
        case.check_step(hint="a step is done in float32")
        right = torch.autograd.gradcheck(
            lambda q, k, v: sliding_window_attention(q, k, v, 4, 3),
            [x.requires_grad_() for x in case.inputs],
            raise_exception=False,
            check_undefined_grad=False,
        )
        require(right, "torch.autograd.gradcheck: the gradients are not those of the output")

    @pytest.mark.seconds(60)
    def test_inputs_need_not_be_contiguous(self, rng):
        case = Case(rng, 40, 11, 8, batch=(2, 3))
        want, plain = case.want, case.plain
        case.q, case.k, case.v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in case.inputs)
        case.want, case.plain = want, plain
        case.check_step(hint="a (batch, N, heads, d) tensor seen as (batch, heads, N, d): its rows are not adjacent")

    def test_arguments_are_left_alone(self, rng):
        case = Case(rng, 40, 11, 8)
        before = [x.clone() for x in case.inputs]
        sliding_window_attention(*case.inputs, 11, 8)
        for name, now, old in zip("qkv", case.inputs, before, strict=True):
            assert_unchanged(name, now, old)

    @pytest.mark.seconds(60)
    @pytest.mark.parametrize(("window", "block"), [(70, 32), (40, 64), (1, 16)])
    def test_empty_tiles_are_skipped(self, window, block):
        n, d = 500, 8
        step = taken(n, window, block)
        visited, seen = area(n, window, block)
        fused = step["forward"]["fused"] + step["backward"]["fused"]
        require(not fused, f"torch's own attention was called ({', '.join(fused)}): write it")
        for name, products in (("forward", 2), ("backward", 7)):
            done = step[name]["flops"]
            unit = 2 * d * products
            hint = "tiles in which no query sees a key are computed and then masked: leave them out"
            if done > 0.9 * n * n * unit * (4 / 7 if name == "backward" else 1):
                hint = "all N² scores are computed and then masked: a query block needs the keys of its window only"
            assert_at_most(f"the arithmetic of the {name} pass's products (N={n}, {window=}, {block=})", done,
                           int(1.25 * visited * unit), unit="FLOPs", hint=hint)  # fmt: skip
            least = seen * 2 * d * min(products, 4)
            require(done >= least, f"the {name} pass's products do {done:,} FLOPs, and the pairs that are seen need "
                    f"{least:,}\nWrite products with @, so that they can be counted")  # fmt: skip

    @pytest.mark.seconds(60)
    def test_work_grows_with_n(self):
        short, long = taken(250, 40, 32), taken(1000, 40, 32)
        for name in ("forward", "backward"):
            ratio = long[name]["flops"] / short[name]["flops"]
            require(
                ratio <= 4.6,
                f"with 4 times the tokens the {name} pass's products do {ratio:.1f} times the work\n"
                "Usual cause: every block of queries meets every block of keys",
            )

    @pytest.mark.seconds(60)
    def test_memory_grows_with_n(self):
        short, long = taken(250, 40, 32), taken(1000, 40, 32)
        hint = "something of N × N is alive, the mask perhaps: each block of queries needs a mask of its own tile only"
        assert_at_most("the largest tensor of a step (N=1000, window=40, block=32)", long["largest_bytes"],
                       2 * 4 * 1000 * (40 + 2 * 32), hint=hint)  # fmt: skip
        ratio = long["peak_bytes"] / short["peak_bytes"]
        require(
            ratio <= 4.8, f"with 4 times the tokens a step's peak is {ratio:.1f} times as large\nUsual cause: {hint}"
        )

    @pytest.mark.seconds(60)
    def test_between_the_passes(self):
        kept = taken(1000, 40, 32)["kept_bytes"]
        hint = "N² scores, weights or masks are kept for the backward pass: keep what lies in the window at most"
        assert_at_most("what is kept between the passes (N=1000, window=40, block=32)", kept,
                       4 * 1000 * (4 * (40 + 2 * 32) + 64), hint=hint)  # fmt: skip

    @pytest.mark.parametrize(("window", "block", "named"), [(0, 4, "window"), (-1, 4, "window"), (3, 0, "block")])
    def test_bad_window_or_block(self, rng, window, block, named):
        case = Case(rng, 10, 3, 4)
        assert_raises(ValueError, lambda: sliding_window_attention(*case.inputs, window, block),
                      when=f"for {named} below 1", mentions=(named,))  # fmt: skip

    @pytest.mark.parametrize("wrong", ["width of k", "length of k", "length of v"])
    def test_bad_shapes(self, wrong):
        q, k, v = torch.zeros(2, 10, 6), torch.zeros(2, 10, 6), torch.zeros(2, 10, 3)
        if wrong == "width of k":
            k = torch.zeros(2, 10, 5)
        elif wrong == "length of k":
            k, v = torch.zeros(2, 11, 6), torch.zeros(2, 11, 3)
        else:
            v = torch.zeros(2, 9, 3)
        shapes = (k.shape, v.shape) if wrong == "length of v" else (q.shape, k.shape)
        assert_raises(ValueError, lambda: sliding_window_attention(q, k, v, 3, 4), when=f"for another {wrong}",
                      mentions=[str(tuple(shape)) for shape in shapes])  # fmt: skip


# The cache


def assert_codes(name, got, arguments):
    """Compare a tile mask with the reference."""
    assert_type(name, got, torch.Tensor, "a tensor")
    want = np.select([(kinds := tiles(hidden_pairs(*arguments[:2]), arguments[2])) == "full", kinds == "partial"],
                     [2, 1], 0)  # fmt: skip
    require(got.dtype == torch.int8, f"{name} is {str(got.dtype).removeprefix('torch.')}, expected int8")
    require(tuple(got.shape) == want.shape, f"{name} has shape {tuple(got.shape)}, expected {want.shape}: one code a "
            "tile, whatever the batch and the heads")  # fmt: skip
    if got.device.type == "meta":
        return
    found = got.numpy()
    suspects = {"partial and full are exchanged: 1 is partial, 2 is full": np.where(want > 0, 3 - want, 0)}
    cause = next((text for text, value in suspects.items() if np.array_equal(found, value)), "it is another mask's")
    wrong = np.argwhere(found != want)
    if len(wrong):
        a, b = wrong[0]
        require(False, f"{name} is {found[a, b]} at [{a}, {b}], expected {want[a, b]}; {len(wrong)} of {want.size} "
                f"are wrong\nUsual cause: {cause}")  # fmt: skip


ONE_KEY = (64, 16, 8)
OTHERS = {
    "seq_len": (72, 16, 8),
    "seq_len, by less than a block,": (63, 16, 8),
    "window": (64, 20, 8),
    "window and block, exchanged,": (64, 8, 16),
    "block": (64, 16, 4),
}


class TestBlockMaskCache:
    """Bounded, keyed on what matters, and emptied when asked."""

    @pytest.mark.parametrize("arguments", [(6, 4, 2), (63, 10, 16), (70, 200, 32), (70, 7, 100), (9, 1, 4)])
    def test_what_it_gives(self, arguments):
        got = BlockMaskCache(3).get(*arguments)
        assert_codes(f"get{arguments}", got, arguments)
        require(got.device.type == "cpu", f"get{arguments} lies on {got.device}, expected the CPU")

    @pytest.mark.seconds(60)
    def test_the_same_again(self):
        first, again = cache_session(3, [("hold", ONE_KEY), ("hold", ONE_KEY)])
        assert_codes(f"get{ONE_KEY}", first["mask"], ONE_KEY)
        hint = "it is made again, or copied: is it kept, and under a key that comes out the same the next time?"
        require(again["memory"] == 0, f"a second get{ONE_KEY} gives another tensor\nUsual cause: {hint}")
        assert_at_most(f"the memory that a second get{ONE_KEY} takes", again["peak_bytes"], 0, hint=hint)
        assert_equal("len(cache) after the same get twice", again["len"], 1)

    def test_the_same_device_written_in_two_ways(self):
        written = [ONE_KEY, (*ONE_KEY, "cpu"), (*ONE_KEY, torch.device("cpu"))]
        told = cache_session(3, [("hold", arguments) for arguments in written])
        hint = "'cpu' and torch.device('cpu') are one device: make the key of torch.device(device)"
        assert_equal("len(cache) after get on the CPU, written in three ways,", told[-1]["len"], 1, hint=hint)
        require(all(one["memory"] == 0 for one in told), f"one device gives several masks: {hint}")

    @pytest.mark.seconds(60)
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
        hint = "the device belongs in the key: a mask must lie where it is used"
        assert_equal("the devices of get(…, 'cpu'), get(…, 'meta') and get(…, 'cpu')", found, ["cpu", "meta", "cpu"],
                     hint=hint)  # fmt: skip
        assert_equal("len(cache)", len(cache), 2)

    @pytest.mark.seconds(60)
    def test_never_more_than_maxsize(self):
        told = cache_session(3, [("get", (64, 1 + step, 8)) for step in range(8)])
        hint = "when there is one too many, one must go"
        for step, one in enumerate(told):
            assert_codes(f"get{(64, 1 + step, 8)}", one["mask"], (64, 1 + step, 8))
            assert_equal(f"len(cache) with maxsize 3 after {step + 1} masks", one["len"], min(step + 1, 3), hint=hint)
        assert_equal("the masks whose memory is held, of 0 … 7 asked for in turn with maxsize 3,", told[-1]["alive"],
                     [5, 6, 7], hint="what the cache gives up, nothing else may hold")  # fmt: skip

    @pytest.mark.seconds(60)
    def test_least_recently_used_goes(self):
        a, b, c = (64, 1, 8), (64, 2, 8), (64, 3, 8)
        order = [("a", a), ("b", b), ("a", a), ("c", c), ("a", a), ("c", c)]
        told = cache_session(2, [("get", arguments) for _, arguments in order])
        left = sorted({order[told[number]["memory"]][0] for number in told[3]["alive"]})
        suspects = {
            "the one that was made first goes, though it was used since (FIFO)": ["b", "c"],
            "nothing goes": ["a", "b", "c"],
            "all that was there goes": ["c"],
        }
        assert_equal("held after a, b, a and c were asked for, maxsize 2,", left, ["a", "c"], suspects=suspects)
        for (name, arguments), one, first in zip(order[4:], told[4:], (0, 3), strict=True):
            assert_codes(f"get{arguments} again", one["mask"], arguments)
            require(one["memory"] == first, f"{name}, asked for recently, is made again")

    @pytest.mark.seconds(60)
    def test_masks_asked_for_at_random(self, rng):
        maxsize, windows = int(rng.integers(2, 5)), 1 + rng.permutation(40)[:6]
        sizes = rng.integers((40, 4), (90, 20), size=(6, 2))
        keys = [(int(n), int(window), int(block)) for (n, block), window in zip(sizes, windows, strict=True)]
        order = rng.integers(0, len(keys), size=16).tolist()
        recent = []
        told = cache_session(maxsize, [("get", keys[key]) for key in order])
        for step, (key, one) in enumerate(zip(order, told, strict=True)):
            before = f"get{keys[key]} after {', '.join(str(keys[k]) for k in recent) or 'nothing'} (maxsize {maxsize})"
            assert_codes(before, one["mask"], keys[key])
            made = one["memory"] == step
            require(made == (key not in recent), f"{before} {'makes the mask again' if made else 'gives an older mask'}"
                    "\nUsual cause: another mask than the least recently used one was given up")  # fmt: skip
            recent = [*(k for k in recent if k != key), key][-maxsize:]
            assert_equal(f"len(cache) after {before}", one["len"], len(recent))

    @pytest.mark.seconds(60)
    def test_clear_frees_the_memory(self):
        deeds = [("get", (64, window, 8)) for window in (1, 2, 3)]
        *_, cleared, again = cache_session(4, [*deeds, ("clear",), ("get", ONE_KEY)])
        assert_equal("len(cache) after clear()", cleared["len"], 0)
        left = [deeds[number][1][1] for number in cleared["alive"]]
        assert_equal("the windows whose masks are still in memory after clear()", left, [],
                     hint="another list or cache still holds them, a functools.lru_cache for instance")  # fmt: skip
        assert_codes(f"get{ONE_KEY} after clear()", again["mask"], ONE_KEY)
        assert_equal("len(cache) after clear() and one get", again["len"], 1)

    def test_clear_leaves_what_others_hold(self):
        held, _ = cache_session(2, [("hold", ONE_KEY), ("clear",)])
        assert_codes(f"a mask of get{ONE_KEY} that its user still holds after clear()", held["mask"], ONE_KEY)

    def test_two_caches_are_apart(self):
        first, second = BlockMaskCache(2), BlockMaskCache(1)
        first.get(*ONE_KEY)
        assert_equal("len of a cache that nobody asked, while another was,", len(second), 0,
                     hint="each cache has masks of its own: an attribute of the class is common to all")  # fmt: skip
        second.get(*ONE_KEY)
        second.clear()
        assert_equal("len of a cache after another one's clear()", len(first), 1)

    def test_room_for_one(self):
        cache = BlockMaskCache(1)
        for arguments in (ONE_KEY, OTHERS["window"], ONE_KEY):
            assert_codes(f"get{arguments} with maxsize 1", cache.get(*arguments), arguments)
            assert_equal("len(cache) with maxsize 1", len(cache), 1)

    @pytest.mark.parametrize("maxsize", [0, -1])
    def test_bad_maxsize(self, maxsize):
        assert_raises(ValueError, lambda: BlockMaskCache(maxsize), when=f"for maxsize {maxsize}", mentions=("maxsize",))

    def test_bad_arguments(self):
        cache = BlockMaskCache(2)
        assert_raises(ValueError, lambda: cache.get(64, 0, 8), when="for window 0", mentions=("window",))
        assert_equal("len(cache) after a get that failed", len(cache), 0)


# The audit

PARTS = ("mask", "output", "saved", "gradients", "workspace")
SIZES = {"batch": 1, "heads": 2, "seq_len": 256, "head_dim": 16, "window": 48, "block": 32}
STATE = 16 * 1024
"""Bytes: the state of the CPU's random generator, which checkpoint keeps, is 5,056."""


def breakdown(variant, dtype=torch.float32, checkpointed=False, measure=memory_breakdown, **sizes):
    """The student's breakdown, its form checked."""
    arguments = SIZES | sizes
    got = measure(variant, *arguments.values(), dtype, *([True] if checkpointed else []))
    named = f"memory_breakdown({variant!r}, …)"
    assert_keys(named, got, (*PARTS, "total", "mask_building"))
    for key, value in got.items():
        assert_type(f"{key} of {named}", value, int, "an int: bytes are counted")
    return got


@cache
def measured(variant, dtype=torch.float32, checkpointed=False):
    """A breakdown that several tests look at."""
    return breakdown(variant, dtype, checkpointed)


def pairs():
    return SIZES["batch"] * SIZES["heads"] * SIZES["seq_len"] ** 2


def own_bytes(dtype, sizes=None):
    sizes = SIZES | (sizes or {})
    return math.prod(sizes[name] for name in ("batch", "heads", "seq_len", "head_dim")) * dtype.itemsize


def some_inputs(dtype):
    shape = [SIZES[name] for name in ("batch", "heads", "seq_len", "head_dim")]
    return [torch.randn(shape).to(dtype).requires_grad_() for _ in range(3)]


def causal_step_peak(dtype, checkpointed):
    """The peak bytes of a step of causal attention, by the course's own reading of the allocator's record."""
    q, k, v = some_inputs(dtype)

    def attend(q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    def step():
        if checkpointed:
            out = torch.utils.checkpoint.checkpoint(attend, q, k, v, use_reentrant=False)
        else:
            out = attend(q, k, v)
        out.sum().backward()
        return out

    gc.collect()
    return profile_memory(step).peak_bytes


def assert_total(variant, want, dtype, checkpointed):
    got = measured(variant, dtype, checkpointed)["total"]
    q_bytes = own_bytes(dtype)
    suspects = {3: "q, k and v are counted, which were there before", -1: "out is left out", -3: "the gradients are"
                " left out"}  # fmt: skip
    near = [text for times, text in suspects.items() if abs(got - want - times * q_bytes) <= 0.1 * q_bytes]
    require(
        abs(got - want) <= 0.03 * want + 4096,
        f"total of {variant!r} ({str(dtype).removeprefix('torch.')}, {checkpointed=}) is {got:,} bytes; the same step "
        f"has a peak of {want:,}\nUsual cause: " + (near[0] if near else "it is computed, or another step is measured"),
    )


@pytest.fixture(scope="class")
def imports_done():
    """Imports of seconds happen outside of the tests, and no gc.collect() looks through what they made."""
    importlib.import_module("labkit.suite.prefork_torch")
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("imports_done")
class TestMemoryBreakdown:
    """Measured, and it adds up."""

    @pytest.mark.seconds(60)
    @pytest.mark.parametrize("checkpointed", [False, True])
    @pytest.mark.parametrize("variant", ["naive_mask", "causal_sdpa", "tiled_window"])
    def test_adds_up(self, variant, checkpointed):
        got = measured(variant, checkpointed=checkpointed)
        total = sum(got[part] for part in PARTS)
        require(
            total == got["total"],
            f"{', '.join(PARTS)} of {variant!r} ({checkpointed=}) are {total:,} bytes together, and total is "
            f"{got['total']:,}",
        )
        negative = [part for part in PARTS if got[part] < 0]
        require(not negative, f"{', '.join(negative)} of {variant!r} ({checkpointed=}) is negative")

    @pytest.mark.seconds(60)
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    @pytest.mark.parametrize("variant", ["naive_mask", "causal_sdpa", "tiled_window"])
    def test_output_and_gradients(self, variant, dtype):
        got = measured(variant, dtype)
        kind = f"of {variant!r} in {str(dtype).removeprefix('torch.')}"
        hint = "the tensors must be of the dtype and the shape asked for"
        assert_equal(f"output {kind}", got["output"], own_bytes(dtype), hint=hint)
        assert_equal(f"gradients {kind}", got["gradients"], 3 * own_bytes(dtype), hint=hint)

    @pytest.mark.seconds(60)
    def test_naive_mask(self):
        got, n = measured("naive_mask"), SIZES["seq_len"]
        per_head = {"there is a mask for every head": pairs(), "the mask is of float32": 4 * n * n}
        assert_equal("mask of 'naive_mask'", got["mask"], n * n, suspects=per_head, hint="one byte a pair, once")
        weights = 4 * pairs()
        hint = "autograd keeps the weights, N² a head"
        require(got["saved"] >= weights, f"saved of 'naive_mask' is {got['saved']:,} bytes, the weights alone are "
                f"{weights:,}\n{hint}")  # fmt: skip
        assert_at_most("saved of 'naive_mask'", got["saved"], 4 * weights, hint=hint)
        hint = "the backward pass has the weights, their gradient and the scores' at once: is it measured?"
        require(got["total"] >= 2.9 * weights, f"total of 'naive_mask' is {got['total']:,} bytes, at least three "
                f"arrays of {weights:,} are alive at once\nUsual cause: {hint}")  # fmt: skip
        require(got["mask_building"] >= got["mask"], "mask_building is less than mask, which is alive at its end")

    @pytest.mark.seconds(60)
    def test_mask_is_there_once_for_all_heads(self):
        got = breakdown("naive_mask", batch=3, seq_len=64)
        hint = "one mask serves every head and batch entry: it is broadcast, which copies nothing"
        assert_equal("mask of 'naive_mask' with batch 3 and seq_len 64", got["mask"], 64 * 64, hint=hint)
        assert_equal("output of the same", got["output"], own_bytes(torch.float32, {"batch": 3, "seq_len": 64}))

    @pytest.mark.seconds(60)
    def test_sizes_drawn_at_random(self, rng):
        low, high = (1, 1, 70, 5, 5, 8), (3, 4, 150, 24, 60, 40)
        sizes = dict(zip(SIZES, rng.integers(low, high).tolist(), strict=True))
        n, rows = sizes["seq_len"], sizes["batch"] * sizes["heads"]
        got = breakdown("naive_mask", **sizes)
        text = f"of 'naive_mask' with {', '.join(f'{name} {size}' for name, size in sizes.items())}"
        assert_equal(f"mask {text}", got["mask"], n * n)
        assert_equal(f"output {text}", got["output"], own_bytes(torch.float32, sizes))
        assert_equal(f"gradients {text}", got["gradients"], 3 * own_bytes(torch.float32, sizes))
        weights = 4 * rows * n * n
        require(got["saved"] >= weights, f"saved {text} is {got['saved']:,} bytes, the weights alone are {weights:,}")
        assert_equal(f"the sum of the parts {text}", sum(got[part] for part in PARTS), got["total"])

    @pytest.mark.seconds(60)
    @pytest.mark.parametrize("variant", ["naive_mask", "causal_sdpa", "tiled_window"])
    def test_checkpointed(self, variant):
        plain, again = measured(variant), measured(variant, checkpointed=True)
        hint = "is attention called through torch.utils.checkpoint.checkpoint, and the mask made before, outside of it?"
        assert_at_most(f"saved of {variant!r} with checkpointed=True", again["saved"], STATE, hint=hint)
        require(again["saved"] >= 1024, f"saved of {variant!r} with checkpointed=True is {again['saved']:,} bytes: "
                "checkpoint keeps a state of 5,056 bytes\nUsual cause: it is not measured")  # fmt: skip
        require(again["mask"] == plain["mask"], f"mask of {variant!r} is {again['mask']:,} with and {plain['mask']:,} "
                "without checkpointed: it is made outside, and stays")  # fmt: skip
        if variant == "naive_mask":
            require(again["total"] >= 0.9 * plain["total"], "checkpointed=True lowers the total of 'naive_mask': what "
                    "is made again is alive again, so the backward pass must be measured too")  # fmt: skip

    @pytest.mark.seconds(60)
    @pytest.mark.parametrize("checkpointed", [False, True])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_causal_sdpa_is_measured(self, dtype, checkpointed):
        got = measured("causal_sdpa", dtype, checkpointed)
        for part in ("mask", "mask_building"):
            assert_equal(f"{part} of 'causal_sdpa'", got[part], 0, hint="is_causal=True needs no mask")
        assert_total("causal_sdpa", causal_step_peak(dtype, checkpointed), dtype, checkpointed)

    @pytest.mark.seconds(60)
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_tiled_window_is_measured(self, dtype):
        got = measured("tiled_window", dtype)
        assert_equal("mask of 'tiled_window'", got["mask"], 0, hint="its tiles need no mask that is kept")
        want = profiled_step(*some_inputs(dtype), SIZES["window"], SIZES["block"])
        assert_total("tiled_window", want, dtype, False)

    @pytest.mark.seconds(60)
    @pytest.mark.parametrize("variant", ["naive_mask", "tiled_window"])
    def test_the_step_is_run(self, variant):
        flops = []

        def counted(*arguments):
            result, done = counted_breakdown(*arguments)
            flops.append(done)
            return result

        breakdown(variant, measure=counted)
        (done,) = flops
        _, seen = area(SIZES["seq_len"], SIZES["window"], SIZES["block"])
        one = 2 * SIZES["heads"] * SIZES["head_dim"] * (seen if variant == "tiled_window" else SIZES["seq_len"] ** 2)
        hint = "nothing was run: measure, do not compute" if done < one else "the backward pass is missing"
        require(done >= 6 * one, f"memory_breakdown({variant!r}, …) does {done:,} FLOPs of "
                f"products; a forward and a backward pass need {6 * one:,}\nUsual cause: {hint}")  # fmt: skip

    @pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
    @pytest.mark.seconds(90)  # FlexAttention imports torch's compiler
    def test_flex_block_mask(self):
        got, n = measured("flex_block_mask"), SIZES["seq_len"]
        from torch.nn.attention.flex_attention import create_block_mask

        window = SIZES["window"]
        mask = create_block_mask(lambda b, h, i, j: (j <= i) & (j > i - window), None, None, n, n, device="cpu",
                                 BLOCK_SIZE=SIZES["block"])  # fmt: skip
        tensors = [getattr(mask, name) for name in dir(mask) if not name.startswith("_")]
        held = {x.untyped_storage()._cdata: x.untyped_storage().nbytes() for x in tensors
                if isinstance(x, torch.Tensor)}  # fmt: skip
        want = sum(held.values())
        hint = "a BlockMask is no tensor; what it holds are eight small ones, kept until attention has run"
        suspects = {"there is a mask for every head": want * SIZES["heads"] * SIZES["batch"],
                    "the peak of making it is taken for what stays": got["mask_building"]}  # fmt: skip
        assert_equal("mask of 'flex_block_mask'", got["mask"], want, suspects=suspects, hint=hint)
        require(got["mask_building"] >= 2 * n * n, f"mask_building of 'flex_block_mask' is {got['mask_building']:,} "
                f"bytes: on the way create_block_mask makes several bytes a pair, {n * n:,} pairs")  # fmt: skip
        hint = "on the CPU it runs forward only"
        assert_equal("gradients of 'flex_block_mask'", got["gradients"], 0, hint=hint)
        assert_at_most("saved of 'flex_block_mask'", got["saved"], 64, hint=hint)
        scores = 4 * pairs()
        require(got["total"] >= scores, f"total of 'flex_block_mask' is {got['total']:,} bytes; without the compiler "
                f"it makes all scores, {scores:,}")  # fmt: skip
        assert_equal("the sum of the parts", sum(got[part] for part in PARTS), got["total"])

    def test_other_variant(self):
        assert_raises(ValueError, lambda: memory_breakdown("flash", *SIZES.values(), torch.float32),
                      when="for the variant 'flash'", mentions=("naive_mask", "tiled_window"))  # fmt: skip
