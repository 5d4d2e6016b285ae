"""Lab 03's suite: softmax and attention over blocks that come once, and states that merge in any order."""

import functools

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from online_softmax import merge_states, online_attention, online_softmax, online_softmax_stats, safe_softmax

from labkit.meters.arrays import BOOKKEEPING_BYTES, measure_arrays
from labkit.testing.compare import (
    as_array,
    assert_at_most,
    assert_close,
    assert_dtype,
    assert_equal,
    assert_raises,
    assert_tuple,
    assert_unchanged,
    require,
)
from labkit.testing.reference import attention, random_qkv

DTYPES = (np.float16, np.float32, np.float64)
SPLITS = {
    "equal": (8, 8, 8, 8),
    "ragged_last": (16, 16, 5),
    "unequal": (7, 1, 20, 3),
    "one_block": (23,),
    "one_by_one": (1,) * 9,
    "empty_blocks": (0, 6, 0, 0, 9, 0),
}
by_split = pytest.mark.parametrize("lengths", SPLITS.values(), ids=SPLITS)
any_case = settings(
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=20,
    report_multiple_bugs=False,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
)
seeds = st.integers(0, 2**32 - 1)
splits = st.lists(st.integers(0, 12), min_size=1, max_size=7)
ranges = st.sampled_from([0.1, 1.0, 30.0, 1e4])


# Blocks, and what a student's code may not do with them


def cut(x, lengths, axis=-1):
    """`x` in blocks of these lengths along one axis."""
    return np.split(x, np.cumsum(lengths)[:-1], axis=axis)


def passing(blocks):
    """A generator of copies of `blocks`, each filled with NaN as soon as the next one is asked for."""
    last = None
    for block in blocks:
        if last is not None:
            last.fill(np.nan)
        last = block.copy()
        yield last
    if last is not None:
        last.fill(np.nan)


def fresh(rng, n_blocks, shape, made):
    """A generator of `n_blocks` random float32 blocks; `made` grows by one with each."""
    for _ in range(n_blocks):
        made.append(shape)
        yield rng.standard_normal(shape, dtype=np.float32)


def some_masked(rng, x, share=0.4):
    """A copy of `x` with −inf in some places."""
    return np.where(rng.random(x.shape) < share, x.dtype.type(-np.inf), x)


# What is right, in float64; what the same formula loses in the precision under test; what usual mistakes give


def finite(m):
    return np.where(np.isneginf(m), 0, m)


def softmax_truth(x, dtype=np.float64):
    """(weights, m, l) along the last axis, computed in `dtype` from the whole row, sums from left to right."""
    x = np.asarray(x).astype(dtype)
    m = x.max(axis=-1, initial=-np.inf)
    powers = np.exp(x - finite(m)[..., None])
    l = np.add.accumulate(powers, axis=-1)[..., -1] if x.shape[-1] else np.zeros_like(m)
    return powers / np.where(l == 0, 1, l)[..., None], m, l


def looser(plain, want, n_steps):
    """`plain`, moved away from `want` by half a rounding for each of `n_steps`: every block may rescale once."""
    plain, want = np.asarray(plain), np.asarray(want, np.float64)
    size = np.abs(want[np.isfinite(want)]).max(initial=0)
    away = np.where(plain.astype(np.float64) < want, -1, 1) * n_steps * np.finfo(plain.dtype).eps / 2 * size
    moved = np.where(np.isfinite(want), plain.astype(np.float64) + away, plain)
    return moved.astype(plain.dtype)


def running_peaks(blocks):
    """The maximum of all blocks so far, after each block: (..., n_blocks)."""
    peaks = [block.max(axis=-1, initial=-np.inf) for block in blocks]
    return np.maximum.accumulate(np.stack(peaks, axis=-1).astype(np.float64), axis=-1)


def stats_suspects(blocks):
    """What usual mistakes make of (m, l): {cause: (m, l)}."""
    x = np.concatenate(blocks, axis=-1).astype(np.float64)
    _, m, l = softmax_truth(x)
    known, from_zero = running_peaks(blocks), np.maximum(m, 0)
    shifted = [np.exp(b - finite(known[..., j, None])).sum(-1) for j, b in enumerate(blocks)]
    own = [softmax_truth(block) for block in blocks]
    cropped = np.concatenate([*blocks[:-1], blocks[-1][..., :0]], axis=-1)
    alike = np.concatenate([b for b in blocks if b.shape[-1] == blocks[0].shape[-1]], axis=-1)
    return {
        "l is not rescaled when the maximum moves": (m, sum(shifted)),
        "the sums of the blocks, each with a maximum of its own, are added as they are": (m, sum(x[2] for x in own)),
        "l keeps only the last block": (m, shifted[-1]),
        "m starts at 0 in place of −inf": (from_zero, np.exp(x - from_zero[..., None]).sum(-1)),
        "the maximum is that of the last block": (own[-1][1], np.exp(x - finite(own[-1][1])[..., None]).sum(-1)),
        "the blocks are gone through twice: the second time a generator gives nothing": (m, np.zeros_like(l)),
        "the last block is dropped": softmax_truth(cropped)[1:],
        "blocks of another length than the first are dropped": softmax_truth(alike)[1:],
        "m is the log-sum-exp": (m + np.log(np.where(l == 0, 1, l)), np.ones_like(l)),
        "the maximum is taken over all rows together": (
            np.broadcast_to(x.max(initial=-np.inf), m.shape),
            np.exp(x - finite(x.max(initial=-np.inf))).sum(-1),
        ),
    }


def judge(name, got, want, usual, *, hint, **options):
    """`assert_close`, with the suspects of `usual()` made only when something is off, and the hint shown for NaN."""
    if hint:
        options |= {"hint": hint, "nan_hint": hint}
    try:
        assert_close(name, got, want, **options)
    except AssertionError:
        with np.errstate(all="ignore"):
            suspects = usual()
        assert_close(name, got, want, suspects=suspects, **options)


def assert_stats(blocks, given=None, hint=""):
    """Compare (m, l) of `given` (the blocks as a list, when None) with the reference."""
    dtype = blocks[0].dtype
    got = online_softmax_stats(list(blocks) if given is None else given)
    m, l = assert_tuple("online_softmax_stats's result", got, ("m", "l"))
    x = np.concatenate(blocks, axis=-1)
    _, want_m, want_l = softmax_truth(x)
    _, plain_m, plain_l = softmax_truth(x, dtype)
    causes_m, causes_l = (
        lambda i=i: {cause: values[i] for cause, values in stats_suspects(blocks).items()} for i in (0, 1)
    )
    judge("m", m, want_m, causes_m, plain=plain_m, hint=hint)
    judge("l", l, want_l, causes_l, plain=looser(plain_l, want_l, len(blocks)), hint=hint)
    for name, value in (("m", m), ("l", l)):
        assert_dtype(name, np.asarray(as_array(name, value)), dtype)


def weights_suspects(blocks):
    """What usual mistakes make of the joined weights."""
    x = np.concatenate(blocks, axis=-1).astype(np.float64)
    _, m, l = softmax_truth(x)
    known = running_peaks(blocks)
    ends = np.cumsum([block.shape[-1] for block in blocks])
    shifted = [np.exp(block - finite(known[..., j, None])) for j, block in enumerate(blocks)]
    so_far = [softmax_truth(x[..., :end])[0][..., end - b.shape[-1] :] for b, end in zip(blocks, ends, strict=True)]
    own = [softmax_truth(block)[0] for block in blocks]
    join = functools.partial(np.concatenate, axis=-1)
    return {
        "each block keeps the maximum known at its time": join(shifted) / np.where(l == 0, 1, l)[..., None],
        "each block is divided by the l known at its time": join(so_far),
        "each block is a softmax of its own": join(own),
        "the weights are not divided by l": np.exp(x - finite(m)[..., None]),
        "the maximum is taken over all rows together": softmax_truth(x.reshape(-1))[0].reshape(x.shape),
    }


def assert_softmax(blocks, given=None, hint=""):
    """Compare the joined weights of `given` (the blocks as a list, when None) with the reference."""
    got = online_softmax(list(blocks) if given is None else given)
    x = np.concatenate(blocks, axis=-1)
    want, plain = softmax_truth(x)[0], softmax_truth(x, x.dtype)[0]
    if x.shape[-1] and as_array("the softmax", got).size == 0:
        raise AssertionError(
            "the softmax is empty\nUsual cause: the blocks are gone through twice; a generator is used up"
        )
    plain = looser(plain, want, len(blocks))
    judge("the softmax", got, want, lambda: weights_suspects(blocks), plain=plain, dtype=x.dtype, hint=hint)


def attention_truth(q, K, V, scale=None, dtype=np.float64):
    return attention(q[..., None, :], K, V, scale=scale, dtype=dtype).output[..., 0, :]


def attention_plain(q, K, V, scale, want, n_steps):
    """Attention computed in q's dtype in several orders: the one that loses most."""
    d, N = K.shape[-1], K.shape[-2]
    factor = q.dtype.type(d**-0.5 if scale is None else scale)
    back, turned = np.arange(N)[::-1], np.roll(np.arange(d), d // 2)
    ways = [
        attention_truth(q, K, V, scale, q.dtype),
        attention_truth(q * factor, K, V, 1.0, q.dtype),
        attention_truth(q[..., turned] * factor, K[..., turned], V, 1.0, q.dtype),
        attention_truth(q, K[..., back, :], V[..., back, :], scale, q.dtype),
    ]
    worst = max(ways, key=lambda way: np.abs(way.astype(np.float64) - want).max(initial=0))
    return looser(worst, want, n_steps)


def attention_suspects(q, K_blocks, V_blocks, scale):
    """What usual mistakes make of one row's output."""
    used = q.shape[-1] ** -0.5 if scale is None else scale
    scores = [used * (K.astype(np.float64) @ q.astype(np.float64)[..., None])[..., 0] for K in K_blocks]
    known = running_peaks(scores)
    shifted = [np.exp(s - finite(known[..., j, None])) for j, s in enumerate(scores)]
    l_kept = sum(powers.sum(-1) for powers in shifted)[..., None]
    o_kept = sum((p[..., None, :] @ V.astype(np.float64))[..., 0, :] for p, V in zip(shifted, V_blocks, strict=True))
    _, _, l = softmax_truth(np.concatenate(scores, axis=-1))
    l = l[..., None]

    def truth(which=slice(None), scale=scale):
        return attention_truth(q, np.concatenate(K_blocks[which], -2), np.concatenate(V_blocks[which], -2), scale)

    usual = {}
    if scale is None:
        usual["the scores are not divided by √d"] = truth(scale=1.0)
        usual["the scores are divided by √d_v in place of √d"] = truth(scale=V_blocks[0].shape[-1] ** -0.5)
    elif scale == 0:
        usual["scale=0.0 is taken for None"] = truth(scale=None)
    elif scale == 1:
        usual["the scores are divided by √d although a scale is given"] = truth(scale=None)
    else:
        usual["the scale given is not used, but 1/√d"] = truth(scale=None)
        usual["the scale given is used besides 1/√d"] = truth(scale=scale * q.shape[-1] ** -0.5)
    usual |= {
        "o is not rescaled when the maximum moves": o_kept / np.where(l == 0, 1, l),
        "l is not rescaled when the maximum moves": truth() * l / np.where(l_kept == 0, 1, l_kept),
        "neither l nor o is rescaled when the maximum moves": o_kept / np.where(l_kept == 0, 1, l_kept),
        "o is not divided by l at the end": truth() * l,
        "the scores are divided by d in place of √d": truth(scale=1 / q.shape[-1]),
    }
    if len(K_blocks) > 1:
        each = [truth(slice(j, j + 1)) for j in range(len(K_blocks))]
        usual["the outputs of the blocks are averaged"] = sum(each) / len(each)
        usual["the last block is dropped"] = truth(slice(None, -1))
        usual["only the last block is kept"] = each[-1]
    return usual


def assert_attention(q, K_blocks, V_blocks, scale=None, given=None, hint=""):
    """Compare the row's output, from `given` (both lists, when None), with the reference."""
    K_given, V_given = (list(K_blocks), list(V_blocks)) if given is None else given
    got = online_attention(q, K_given, V_given, **({} if scale is None else {"scale": scale}))
    K, V = np.concatenate(K_blocks, axis=-2), np.concatenate(V_blocks, axis=-2)
    want = attention_truth(q, K, V, scale)
    plain = attention_plain(q, K, V, scale, want, len(K_blocks))
    usual = functools.partial(attention_suspects, q, K_blocks, V_blocks, scale)
    judge("the output", got, want, usual, plain=plain, dtype=q.dtype, hint=hint)


def state_truth(scores, V, dtype=None):
    """(m, l, o) of a set of keys, computed in float64 and rounded to `dtype` (that of the scores, when None)."""
    dtype = scores.dtype if dtype is None else dtype
    s = scores.astype(np.float64)
    m = s.max(axis=-1, initial=-np.inf)
    powers = np.exp(s - finite(m)[..., None])
    o = (powers[..., None, :] @ V.astype(np.float64))[..., 0, :]
    return tuple(np.asarray(part, dtype)[()] for part in (m, powers.sum(axis=-1), o))


def merge_suspects(state_a, state_b, want):
    """What usual mistakes make of (m, l, o)."""
    (m_a, l_a, o_a), (m_b, l_b, o_b) = ([np.asarray(x, np.float64) for x in s] for s in (state_a, state_b))
    m, l, o = (np.asarray(x, np.float64) for x in want)
    first = np.broadcast_to(m_a >= m_b, m.shape)
    return {
        "l is added without rescaling": (m, l_a + l_b, o),
        "o is added without rescaling": (m, l, o_a + o_b),
        "l and o are averaged": (m, (l_a + l_b) / 2, (o_a + o_b) / 2),
        "the sums are halved": (m, l / 2, o / 2),
        "o is divided by l: it is to stay undivided": (m, l, o / np.where(l == 0, 1, l)[..., None]),
        "only the state with the larger maximum is kept": (
            m,
            np.where(first, l_a, l_b),
            np.where(first[..., None], o_a, o_b),
        ),
        "m is the second state's": (m_b, l, o),
        "m is the first state's": (m_a, l, o),
        "m is the log-sum-exp": (m + np.log(np.where(l == 0, 1, l)), np.ones_like(l), o),
    }


def assert_merged(state_a, state_b, want, n_steps=2, hint=""):
    """Compare merge_states(state_a, state_b) with `want`, a state in float64."""
    got = assert_tuple("merge_states's result", merge_states(state_a, state_b), ("m", "l", "o"))
    usual = functools.partial(merge_suspects, state_a, state_b, want)
    assert_state(got, want, np.asarray(state_a[2]).dtype, n_steps, usual, hint)


def assert_state(got, want, dtype, n_steps, usual=dict, hint=""):
    """Compare a state with `want`, a state in float64, each part by its name."""
    for i, name in enumerate(("m", "l", "o")):
        plain = looser(np.asarray(want[i]).astype(dtype), want[i], n_steps)
        causes = lambda i=i: {cause: values[i] for cause, values in usual().items()}  # noqa: E731
        why = hint or ("o is not divided by l, neither before nor after merging" if name == "o" else "")
        judge(name, got[i], want[i], causes, plain=plain, hint=why)
        assert_dtype(name, np.asarray(as_array(name, got[i])), dtype)


class TestSafeSoftmax:
    def check(self, x, axis=-1, hint="", given=()):
        got = safe_softmax(x, *given)
        last = np.moveaxis(x, axis, -1)
        want, plain = (np.moveaxis(softmax_truth(last, dtype)[0], -1, axis) for dtype in (np.float64, x.dtype))
        usual = {
            f"the weights add up to 1 along axis {other}": np.moveaxis(
                softmax_truth(np.moveaxis(x, other, -1))[0], -1, other
            )
            for other in range(x.ndim)
            if other != axis % x.ndim
        }
        if x.ndim > 1:
            usual["one maximum or one sum serves all rows together"] = softmax_truth(x.reshape(-1))[0].reshape(x.shape)
        judge("the softmax", got, want, lambda: usual, plain=plain, dtype=x.dtype, hint=hint)

    def test_worked_example(self):
        self.check(np.array([1000, 1001, -np.inf], np.float32), hint="take the maximum from every number before exp")

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_precisions(self, rng, dtype):
        self.check(rng.standard_normal((5, 33)).astype(dtype))

    def test_one_row(self, rng):
        self.check(rng.standard_normal(63).astype(np.float32))

    def test_one_number(self):
        self.check(np.array([-7], np.float32))

    @pytest.mark.parametrize("shape", [(2, 3, 129), (6, 6)])
    def test_rows_of_a_batch(self, rng, shape):
        self.check(rng.standard_normal(shape).astype(np.float32), hint="keepdims=True keeps the rows apart")

    @pytest.mark.parametrize("axis", [0, 1, -2, 2])
    def test_other_axes(self, rng, axis):
        self.check(rng.standard_normal((4, 5, 3)).astype(np.float32), axis, given=(axis,), hint="axis is not used")

    @pytest.mark.parametrize("size", [1e4, -3e4])
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_large_logits(self, rng, size, dtype):
        x = (size + 8 * rng.integers(-2, 3, (4, 21))).astype(dtype)
        self.check(x, hint="exp overflows or vanishes: take the row's maximum from every number first")

    def test_large_logits_of_both_signs(self, rng):
        x = rng.integers(-10_000, 10_001, (4, 21)).astype(np.float32)
        self.check(x, hint="the number to take from a row is its maximum")

    def test_masked_entries_beside_very_negative_ones(self, rng):
        x = some_masked(rng, (rng.standard_normal((5, 12)) - 3e4).astype(np.float32))
        self.check(x, hint="−inf is replaced by a number that is not small beside these")

    def test_rows_far_apart(self, rng):
        x = rng.standard_normal((3, 17)).astype(np.float32) + np.array([[-500], [0], [500]], np.float32)
        self.check(x, hint="every row has a maximum of its own")

    def test_differences_survive(self):
        self.check(np.array([90, 120, 150], np.float32), hint="numbers are clipped, so that they become equal")

    def test_masked_entries(self, rng):
        self.check(some_masked(rng, rng.standard_normal((7, 12)).astype(np.float32)))

    def test_row_masked_throughout(self, rng):
        x = rng.standard_normal((4, 9)).astype(np.float32)
        x[2] = -np.inf
        self.check(x, hint="0/0 or −inf − (−inf): such a row gives 0")

    def test_everything_masked(self):
        self.check(np.full((2, 3), -np.inf, np.float32), hint="0/0 or −inf − (−inf): such a row gives 0")

    def test_argument_is_left_alone(self, rng):
        x = some_masked(rng, rng.standard_normal((3, 5)).astype(np.float32))
        before = x.copy()
        safe_softmax(x)
        assert_unchanged("x", x, before)

    def test_axis_that_is_not_there(self):
        assert_raises(ValueError, lambda: safe_softmax(np.ones((2, 3), np.float32), axis=2), when="for axis 2 of two")


class TestOnlineSoftmaxStats:
    def test_worked_example(self):
        assert_stats([np.array(x, np.float32) for x in ([1, 2], [4], [3, -np.inf])])

    @by_split
    def test_splits(self, rng, lengths):
        assert_stats(cut(3 * rng.standard_normal(sum(lengths)).astype(np.float32), lengths))

    def test_maximum_moves_at_every_block(self, rng):
        x = np.sort(rng.normal(0, 3, 30)).astype(np.float32)
        assert_stats(cut(x, (10, 10, 10)), hint="a larger maximum makes the sum so far smaller, never larger")

    def test_maximum_comes_first(self, rng):
        x = np.sort(rng.normal(0, 3, 30)).astype(np.float32)[::-1].copy()
        assert_stats(cut(x, (10, 10, 10)), hint="the maximum only ever moves up")

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_precisions(self, rng, dtype):
        assert_stats(cut(2 * rng.standard_normal(45).astype(dtype), (16, 16, 13)))

    @pytest.mark.parametrize("size", [1e4, -3e4])
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_large_logits(self, rng, size, dtype):
        x = (size + 8 * rng.integers(-2, 3, 29)).astype(dtype)
        assert_stats(cut(x, (8, 8, 8, 5)), hint="exp of a number that is not first lessened by the maximum")

    def test_large_logits_of_both_signs(self, rng):
        assert_stats(cut(rng.integers(-10_000, 10_001, 29).astype(np.float32), (8, 8, 8, 5)))

    @pytest.mark.parametrize("shape", [(4,), (2, 3)])
    def test_rows_of_a_batch(self, rng, shape):
        x = rng.normal(0, 3, (*shape, 21)).astype(np.float32)
        assert_stats(cut(x, (4, 9, 8)), hint="each row has an m and an l of its own")

    def test_batch_as_large_as_a_block(self, rng):
        assert_stats(cut(rng.normal(0, 3, (5, 15)).astype(np.float32), (5, 5, 5)), hint="keepdims or [..., None]")

    def test_masked_entries(self, rng):
        assert_stats(cut(some_masked(rng, rng.standard_normal((6, 24)).astype(np.float32)), (8, 8, 8)))

    @pytest.mark.parametrize("masked", [0, 1, 2])
    def test_whole_block_masked(self, rng, masked):
        blocks = cut(rng.standard_normal(24).astype(np.float32), (8, 8, 8))
        blocks[masked][:] = -np.inf
        assert_stats(blocks, hint="−inf − (−inf): a block of −inf changes nothing, wherever it stands")

    def test_everything_masked(self):
        assert_stats(
            [np.full((2, 4), -np.inf, np.float32)] * 2, hint="−inf − (−inf): a row of −inf has m = −inf and l = 0"
        )

    def test_blocks_masked_in_some_rows(self, rng):
        x = rng.standard_normal((3, 12)).astype(np.float32)
        x[0, :4] = x[1, 4:8] = x[2] = -np.inf
        assert_stats(cut(x, (4, 4, 4)), hint="−inf − (−inf): one row's block may be masked while another's is not")

    def test_no_block_at_all(self):
        m, l = assert_tuple("online_softmax_stats's result", online_softmax_stats([]), ("m", "l"))
        assert_equal("m without blocks", float(m), -np.inf)
        assert_equal("l without blocks", float(l), 0.0)

    @by_split
    def test_blocks_that_pass(self, rng, lengths):
        blocks = cut(3 * rng.standard_normal((2, sum(lengths))).astype(np.float32), lengths)
        assert_stats(blocks, passing(blocks), hint="a block is looked at after the next one was asked for")

    def test_memory_of_a_few_blocks(self, rng):
        online_softmax_stats(fresh(rng, 3, 8, []))
        n_blocks, n, made = 64, 1024, []
        peak = measure_arrays(online_softmax_stats, fresh(rng, n_blocks, n, made), warm=False).peak_bytes
        assert_equal("the number of blocks asked for", len(made), n_blocks)
        assert_at_most(
            "the peak",
            peak,
            10 * n * 4 + BOOKKEEPING_BYTES,
            hint=f"That is room for ten of the {n_blocks} blocks. Usual cause: blocks or their copies are kept",
        )

    def test_arguments_are_left_alone(self, rng):
        blocks = cut(rng.standard_normal(20).astype(np.float32), (7, 7, 6))
        before = [block.copy() for block in blocks]
        online_softmax_stats(blocks)
        for i, block in enumerate(blocks):
            assert_unchanged(f"x_blocks[{i}]", block, before[i])

    @any_case
    @given(seed=seeds, lengths=splits, spread=ranges, share=st.sampled_from([0.0, 0.5]))
    def test_any_split(self, seed, lengths, spread, share):
        rng = np.random.default_rng(seed)
        x = some_masked(rng, rng.normal(0, spread, (2, sum(lengths))), share)
        blocks = cut(x, lengths)
        assert_stats(blocks, passing(blocks))


class TestOnlineSoftmax:
    def test_worked_example(self):
        assert_softmax([np.array(x, np.float32) for x in ([1, 2], [4])])

    @by_split
    def test_splits(self, rng, lengths):
        assert_softmax(cut(3 * rng.standard_normal(sum(lengths)).astype(np.float32), lengths))

    def test_maximum_moves_at_every_block(self, rng):
        assert_softmax(cut(np.sort(rng.normal(0, 3, 30)).astype(np.float32), (10, 10, 10)))

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_precisions(self, rng, dtype):
        assert_softmax(cut(2 * rng.standard_normal(45).astype(dtype), (16, 16, 13)))

    @pytest.mark.parametrize("size", [1e4, -3e4])
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_large_logits(self, rng, size, dtype):
        assert_softmax(cut((size + 8 * rng.integers(-2, 3, 29)).astype(dtype), (8, 8, 8, 5)))

    def test_large_logits_of_both_signs(self, rng):
        assert_softmax(cut(rng.integers(-10_000, 10_001, 29).astype(np.float32), (8, 8, 8, 5)))

    @pytest.mark.parametrize("shape", [(4,), (2, 3)])
    def test_rows_of_a_batch(self, rng, shape):
        x = rng.normal(0, 3, (*shape, 21)).astype(np.float32)
        assert_softmax(cut(x, (4, 9, 8)), hint="the row runs along the last axis, the others are rows of their own")

    def test_batch_as_large_as_a_block(self, rng):
        assert_softmax(cut(rng.normal(0, 3, (5, 15)).astype(np.float32), (5, 5, 5)), hint="keepdims or [..., None]")

    def test_masked_entries(self, rng):
        assert_softmax(cut(some_masked(rng, rng.standard_normal((6, 24)).astype(np.float32)), (8, 8, 8)))

    def test_blocks_masked_in_some_rows(self, rng):
        x = rng.standard_normal((3, 12)).astype(np.float32)
        x[0, :4] = x[1, 4:8] = x[2] = -np.inf
        assert_softmax(cut(x, (4, 4, 4)), hint="−inf − (−inf): one row's block may be masked while another's is not")

    @pytest.mark.parametrize("masked", [0, 1, 2])
    def test_whole_block_masked(self, rng, masked):
        blocks = cut(rng.standard_normal(24).astype(np.float32), (8, 8, 8))
        blocks[masked][:] = -np.inf
        assert_softmax(blocks, hint="−inf − (−inf): a block of −inf has weights 0 and changes nothing else")

    def test_everything_masked(self):
        assert_softmax([np.full((2, 4), -np.inf, np.float32)] * 2, hint="0/0 or −inf − (−inf): such a row gives 0")

    def test_no_block_at_all(self):
        got = as_array("the softmax of no blocks", online_softmax([]))
        assert_equal("its shape", got.shape, (0,))

    @by_split
    def test_blocks_that_pass(self, rng, lengths):
        blocks = cut(3 * rng.standard_normal((2, sum(lengths))).astype(np.float32), lengths)
        assert_softmax(blocks, passing(blocks), hint="a block is looked at after the next one was asked for")

    def test_memory_of_the_result(self, rng):
        online_softmax(fresh(rng, 3, 8, []))
        n_blocks, n, made = 64, 512, []
        memory = measure_arrays(online_softmax, fresh(rng, n_blocks, n, made), warm=False)
        assert_equal("the number of blocks asked for", len(made), n_blocks)
        assert_at_most(
            "the peak",
            memory.peak_bytes,
            int(2.5 * n_blocks * n * 4) + 10 * n * 4 + BOOKKEEPING_BYTES,
            hint="That is 2.5 times the result. Usual cause: the row is joined first, or scaled out of place",
        )

    def test_arguments_are_left_alone(self, rng):
        for lengths in ((7, 7, 6), (20,)):
            blocks = cut(rng.standard_normal(20).astype(np.float32), lengths)
            before = [block.copy() for block in blocks]
            online_softmax(blocks)
            for i, block in enumerate(blocks):
                assert_unchanged(f"x_blocks[{i}]", block, before[i])

    @any_case
    @given(seed=seeds, lengths=splits, spread=ranges, share=st.sampled_from([0.0, 0.5]))
    def test_any_split(self, seed, lengths, spread, share):
        rng = np.random.default_rng(seed)
        blocks = cut(some_masked(rng, rng.normal(0, spread, (2, sum(lengths))), share), lengths)
        assert_softmax(blocks, passing(blocks))


def row(rng, lengths, d=16, d_v=None, dtype=np.float32, batch=(), logit_scale=3.0):
    """One query for each batch entry, and keys and values in blocks."""
    shape = {"n_queries": 1, "n_keys": sum(lengths), "d": d, "d_v": d_v, "batch": batch}
    Q, K, V = random_qkv(rng, **shape, dtype=dtype, logit_scale=logit_scale)
    return Q[..., 0, :], cut(K, lengths, -2), cut(V, lengths, -2)


def masked_row(rng, lengths, hidden, dtype=np.float32):
    """A row whose last feature carries a mask: q has 1 there, a key that is masked out −inf, the others 0."""
    q, K, V = row(rng, lengths, d=9, d_v=4, dtype=dtype)
    q[-1] = 1
    for i, block in enumerate(K):
        block[:, -1] = np.where(hidden(i, np.arange(len(block))), -np.inf, 0)
    return q, K, V


def integer_row(rng, size, dtype=np.float32):
    """Scores of about `size` that every order of computing gives exactly: small integers, to be scaled by 1."""
    q = np.array([64, 1, 0], dtype)
    K = np.stack([np.full(29, size // 64), rng.integers(-4, 5, 29), rng.integers(-9, 9, 29)], -1).astype(dtype)
    V = rng.standard_normal((29, 5)).astype(dtype)
    return q, cut(K, (8, 8, 8, 5), 0), cut(V, (8, 8, 8, 5), 0)


class TestOnlineAttention:
    def test_worked_example(self):
        q, K_1, K_2, V_1, V_2 = (np.array(x, np.float32) for x in ([1, 0], [[1, 0]], [[0, 1]], [[1]], [[0]]))
        assert_attention(q, [K_1, K_2], [V_1, V_2])

    @by_split
    def test_splits(self, rng, lengths):
        assert_attention(*row(rng, lengths))

    def test_maximum_moves_at_every_block(self, rng):
        q, (K,), (V,) = row(rng, (30,))
        order = np.argsort(K @ q)
        assert_attention(q, cut(K[order], (10, 10, 10), 0), cut(V[order], (10, 10, 10), 0))

    @pytest.mark.parametrize("d_v", [3, 24])
    def test_values_of_another_width(self, rng, d_v):
        assert_attention(*row(rng, (11, 6), d=10, d_v=d_v), hint="d is taken for d_v somewhere")

    def test_width_one(self, rng):
        assert_attention(*row(rng, (4, 3), d=1, d_v=1))

    @pytest.mark.parametrize("scale", [1.0, 0.5, 0.0, -0.25])
    def test_scale_given(self, rng, scale):
        assert_attention(*row(rng, (9, 9, 4), logit_scale=1.0), scale)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_precisions(self, rng, dtype):
        assert_attention(*row(rng, (16, 16, 13), d=12, d_v=7, dtype=dtype, logit_scale=1.0))

    def test_scale_keeps_the_dtype(self, rng):
        got = online_attention(*row(rng, (8, 3)), scale=np.float64(0.25))
        assert_dtype("the output with a scale of NumPy's float64", as_array("the output", got), np.float32)

    @pytest.mark.parametrize("size", [9984, -29952])
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_large_logits(self, rng, size, dtype):
        assert_attention(*integer_row(rng, size, dtype), 1.0, hint="take the maximum from the scores before exp")

    def test_heads(self, rng):
        assert_attention(*row(rng, (5, 8, 2), d=6, d_v=4, batch=(3,)), hint="each head has m, l and o of its own")

    def test_batch_and_heads(self, rng):
        assert_attention(*row(rng, (4, 4, 1), d=4, d_v=4, batch=(4, 4)), hint="each head has m, l and o of its own")

    def test_heads_far_apart(self, rng):
        q, K, V = row(rng, (5, 8, 2), d=6, d_v=4, batch=(3,))
        q[:] = rng.integers(-1, 2, q.shape)  # whole numbers: every order of computing gives these scores exactly
        q[:, 0] = -600, 0, 600
        for block in K:
            block[:] = rng.integers(-1, 2, block.shape)
            block[..., 0] = 1
        assert_attention(q, K, V, 1.0, hint="each head has a maximum of its own")

    @pytest.mark.parametrize("masked", [0, 1, 2])
    def test_whole_block_masked(self, rng, masked):
        q, K, V = masked_row(rng, (6, 6, 6), lambda i, _: i == masked)
        assert_attention(q, K, V, hint="−inf − (−inf): a block of such scores changes nothing")

    def test_masked_keys(self, rng):
        assert_attention(*masked_row(rng, (6, 6, 5), lambda i, j: (i + j) % 2 == 0))

    def test_blocks_masked_in_some_heads(self, rng):
        q, K, V = row(rng, (4, 4, 4), d=6, d_v=5, batch=(3,))
        q[:, -1] = 1
        for i, block in enumerate(K):
            block[..., -1] = np.where(np.arange(3) == i, -np.inf, 0)[:, None]
        assert_attention(q, K, V, hint="−inf − (−inf): one head's block may be masked while another's is not")

    def test_everything_masked(self, rng):
        assert_attention(*masked_row(rng, (6, 6), lambda *_: True), hint="0/0 or −inf − (−inf): then the output is 0")

    def test_empty_blocks_only(self, rng):
        got = as_array("the output", online_attention(*row(rng, (0, 0), d=4, d_v=6)))
        assert_equal("the output's shape", got.shape, (6,))
        require(not got.any(), f"the output of empty blocks is {got}, expected 0")

    @by_split
    def test_blocks_that_pass(self, rng, lengths):
        q, K, V = row(rng, lengths, d_v=5)
        given = passing(K), passing(V)
        assert_attention(q, K, V, given=given, hint="a block is looked at after the next one was asked for")

    def test_keys_and_values_side_by_side(self, rng):
        q, K, V = row(rng, (8, 8, 8, 3), d_v=5)
        asked, ahead = [], []

        def blocks(name, source):
            for block in source:
                asked.append(name)
                ahead.append(abs(asked.count("K") - asked.count("V")))
                yield block

        online_attention(q, blocks("K", K), blocks("V", V))
        assert_equal("the order in which blocks were asked for", "".join(sorted(asked)), "KKKKVVVV")
        assert_at_most(
            "the lead of one over the other",
            max(ahead),
            1,
            unit="blocks",
            hint="K's and V's blocks come in turn. Usual cause: all keys are gone through before the first value",
        )

    def test_memory_of_a_few_blocks(self, rng):
        q = rng.standard_normal(1).astype(np.float32)
        online_attention(q, fresh(rng, 3, (8, 1), []), fresh(rng, 3, (8, 1), []))
        n_blocks, shape, made = 192, (32, 1), []
        blocks = [fresh(rng, n_blocks, shape, made) for _ in "KV"]
        peak = measure_arrays(online_attention, q, *blocks, warm=False).peak_bytes
        assert_equal("the number of blocks asked for", len(made), 2 * n_blocks)
        block = 32 * 4
        assert_at_most(
            "the peak",
            peak,
            12 * block + BOOKKEEPING_BYTES,
            hint=f"That is room for 12 of the {2 * n_blocks} blocks. Usual cause: blocks are kept, or all their scores",
        )

    def test_arguments_are_left_alone(self, rng):
        q, K, V = row(rng, (5, 4))
        before = [x.copy() for x in (q, *K, *V)]
        online_attention(q, K, V)
        for name, now, then in zip(("Q_row", *["K_blocks"] * 2, *["V_blocks"] * 2), (q, *K, *V), before, strict=True):
            assert_unchanged(name, now, then)

    @pytest.mark.parametrize(
        ("shapes", "mentions"),
        [
            (((8,), (6, 7), (6, 3)), ("(8,)", "(6, 7)")),
            (((8,), (6, 8), (4, 3)), ("(6, 8)", "(4, 3)")),
            (((8,), (6, 8), (1, 3)), ("(6, 8)", "(1, 3)")),
        ],
        ids=["other_d", "other_length", "one_value_for_all"],
    )
    def test_shapes_that_do_not_fit(self, shapes, mentions):
        q, K, V = (np.ones(shape, np.float32) for shape in shapes)
        assert_raises(
            ValueError, lambda: online_attention(q, [K], [V]), when="for shapes that do not fit", mentions=mentions
        )

    @pytest.mark.parametrize(
        ("K_shape", "V_shape"), [((5, 7), (5, 3)), ((5, 8), (4, 3))], ids=["other_d", "other_length"]
    )
    def test_later_block_that_does_not_fit(self, K_shape, V_shape):
        q, K_1, V_1, K_2, V_2 = (np.ones(s, np.float32) for s in ((8,), (5, 8), (5, 3), K_shape, V_shape))
        assert_raises(
            ValueError,
            lambda: online_attention(q, [K_1, K_2], [V_1, V_2]),
            when="for a second block that does not fit",
            mentions=[str(K_shape)],
        )

    @pytest.mark.parametrize(("n_keys", "n_values"), [(3, 2), (2, 3)], ids=["more_keys", "more_values"])
    def test_more_blocks_of_one(self, rng, n_keys, n_values):
        q, K, V = row(rng, (4, 4, 4))
        assert_raises(
            ValueError,
            lambda: online_attention(q, iter(K[:n_keys]), iter(V[:n_values])),
            when=f"for {n_keys} blocks of keys and {n_values} of values",
        )

    def test_no_block_at_all(self):
        assert_raises(
            ValueError, lambda: online_attention(np.ones(4, np.float32), [], []), when="when there is no block"
        )

    @any_case
    @given(seed=seeds, lengths=splits, spread=st.sampled_from([0.1, 1.0, 10.0]), d=st.integers(1, 5))
    def test_any_split(self, seed, lengths, spread, d):
        rng = np.random.default_rng(seed)
        q, K, V = row(rng, lengths, d=d, d_v=3, dtype=np.float64, logit_scale=spread)
        assert_attention(q, K, V, given=(passing(K), passing(V)))


def two_states(rng, n_a=7, n_b=5, d_v=4, batch=(), dtype=np.float32, spread=3.0, offset=0.0):
    """States of two sets of keys, and of both together in float64."""
    s = (rng.normal(0, spread, (*batch, n_a + n_b)) + offset).astype(dtype)
    V = rng.standard_normal((*batch, n_a + n_b, d_v)).astype(dtype)
    a, b = state_truth(s[..., :n_a], V[..., :n_a, :]), state_truth(s[..., n_a:], V[..., n_a:, :])
    return a, b, state_truth(s, V, np.float64)


def nothing(d_v=4, batch=(), dtype=np.float32):
    """The state of no keys, as arrays."""
    return np.full(batch, -np.inf, dtype)[()], np.zeros(batch, dtype)[()], np.zeros((*batch, d_v), dtype)


class TestMergeStates:
    def test_worked_example(self):
        a, b = ((np.float32(m), np.float32(l), np.array(o, np.float32)) for m, l, o in ((2, 1, [10]), (3, 2, [40])))
        want = 3.0, np.exp(-1) + 2, np.array([10 * np.exp(-1) + 40])
        assert_merged(a, b, want)

    def test_plain_numbers(self):
        want = 3.0, np.exp(-1) + 2, np.array([10 * np.exp(-1) + 40])
        assert_merged((2.0, 1.0, np.array([10.0])), (3.0, 2.0, np.array([40.0])), want)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_precisions(self, rng, dtype):
        assert_merged(*two_states(rng, dtype=dtype))

    @pytest.mark.parametrize("larger", ["first", "second"])
    def test_larger_maximum_on_either_side(self, rng, larger):
        a, b, want = two_states(rng)
        if (a[0] > b[0]) != (larger == "first"):
            a, b = b, a
        assert_merged(a, b, want)

    def test_equal_maxima(self, rng):
        a, _, _ = two_states(rng)
        assert_merged(a, a, (np.float64(a[0]), 2 * np.float64(a[1]), 2 * a[2].astype(np.float64)))

    @pytest.mark.parametrize("shape", [(3,), (2, 5)])
    def test_rows_of_a_batch(self, rng, shape):
        assert_merged(*two_states(rng, batch=shape), hint="l has shape (...), o has (..., d_v): l[..., None]")

    def test_batch_as_wide_as_the_values(self, rng):
        assert_merged(*two_states(rng, batch=(4,), d_v=4), hint="l has shape (...), o has (..., d_v): l[..., None]")

    @pytest.mark.parametrize("offset", [1e4, -1e4])
    def test_large_maxima(self, rng, offset):
        assert_merged(*two_states(rng, offset=offset), hint="exp takes a difference of maxima, never a maximum")

    def test_maxima_far_apart(self, rng):
        a, b, _ = two_states(rng)
        far = np.float32(a[0] + 2e4), *a[1:]
        for pair in ((far, b), (b, far)):
            assert_merged(*pair, tuple(np.asarray(x, np.float64) for x in far), hint="exp overflowed")

    @pytest.mark.parametrize("side", ["first", "second"])
    @pytest.mark.parametrize("batch", [(), (3,)], ids=["one_row", "batch"])
    def test_no_keys_change_nothing(self, rng, side, batch):
        a, _, _ = two_states(rng, batch=batch)
        pair = (nothing(batch=batch), a) if side == "first" else (a, nothing(batch=batch))
        assert_merged(
            *pair, tuple(np.asarray(x, np.float64) for x in a), n_steps=0, hint="(−inf, 0, 0) is the identity"
        )

    @pytest.mark.parametrize("side", ["first", "second"])
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_no_keys_as_plain_numbers(self, rng, side, dtype):
        a, _, _ = two_states(rng, batch=(2,), dtype=dtype)
        none = (-np.inf, 0.0, 0.0)
        got = merge_states(*((none, a) if side == "first" else (a, none)))
        got = assert_tuple("merge_states's result", got, ("m", "l", "o"))
        assert_state(got, [np.asarray(x, np.float64) for x in a], dtype, 0, hint="(−inf, 0.0, 0.0) is the identity")

    @pytest.mark.parametrize("batch", [(), (3,)], ids=["one_row", "batch"])
    def test_no_keys_on_both_sides(self, batch):
        want = nothing(batch=batch, dtype=np.float64)
        assert_merged(
            nothing(batch=batch), nothing(batch=batch), want, hint="−inf − (−inf): nothing and nothing is nothing"
        )

    def test_no_keys_in_some_rows(self, rng):
        a, b, _ = two_states(rng, batch=(4,))
        empty_a, empty_b = np.array([1, 0, 1, 0], bool), np.array([1, 1, 0, 0], bool)
        s, V = rng.normal(0, 3, (4, 12)).astype(np.float32), rng.standard_normal((4, 12, 4)).astype(np.float32)
        s[empty_a, :7] = s[empty_b, 7:] = -np.inf
        a, b = state_truth(s[:, :7], V[:, :7]), state_truth(s[:, 7:], V[:, 7:])
        assert_merged(a, b, state_truth(s, V, np.float64), hint="one row may have no keys while another has some")

    def test_states_are_left_alone(self, rng):
        a, b, _ = two_states(rng, batch=(3,))
        for pair in ((a, b), (b, a), (a, nothing(batch=(3,)))):
            before = [[x.copy() for x in state] for state in pair]
            merge_states(*pair)
            for state, now, then in zip(("state_a", "state_b"), pair, before, strict=True):
                for name, x, was in zip("mlo", now, then, strict=True):
                    assert_unchanged(f"{name} of {state}", x, was)

    @any_case
    @given(seed=seeds, spread=ranges, batch=st.sampled_from([(), (2,)]), sizes=st.tuples(*[st.integers(0, 6)] * 3))
    def test_associative(self, seed, spread, batch, sizes):
        a, b, c, want = some_states(seed, spread, batch, sizes)
        left = merge_states(merge_states(a, b), c)
        right = merge_states(a, merge_states(b, c))
        for name, got in (("(a, b), c", left), ("a, (b, c)", right)):
            got = assert_tuple(f"merged as {name}", got, ("m", "l", "o"))
            assert_state(got, want, np.float64, 4, hint=f"merged as {name}: the order must not matter")

    @any_case
    @given(seed=seeds, spread=ranges, sizes=st.tuples(*[st.integers(0, 6)] * 2))
    def test_commutative(self, seed, spread, sizes):
        a, b, want = some_states(seed, spread, (2,), sizes)
        for pair in ((a, b), (b, a)):
            assert_merged(*pair, want)

    @any_case
    @given(seed=seeds, spread=ranges, sizes=splits, order=st.randoms(use_true_random=False))
    def test_any_order_of_merging(self, seed, spread, sizes, order):
        *states, want = some_states(seed, spread, (), sizes)
        n_steps = 2 * len(states)
        while len(states) > 1:
            a, b = (states.pop(order.randrange(len(states))) for _ in "ab")
            states.append(merge_states(a, b))
        got = assert_tuple("what is left", merge_states(states[0], (-np.inf, 0.0, 0.0)), ("m", "l", "o"))
        assert_state(got, want, np.float64, n_steps, hint=f"{len(sizes)} states merged pair by pair in a random order")


def some_states(seed, spread, batch, sizes):
    """The states of sets of keys of these sizes, some of them masked, and the state of all together."""
    rng = np.random.default_rng(seed)
    s = some_masked(rng, rng.normal(0, spread, (*batch, sum(sizes))), 0.2)
    V = rng.standard_normal((*batch, sum(sizes), 3))
    parts = zip(cut(s, sizes), cut(V, sizes, -2), strict=True)
    return *(state_truth(*part) for part in parts), state_truth(s, V)
