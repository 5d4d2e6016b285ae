"""Lab 03's suite: softmax and attention over blocks that come once, and states that merge in any order."""

import functools
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from online_softmax import merge_states, online_attention, online_softmax, online_softmax_stats, safe_softmax

from labkit.meters.arrays import BOOKKEEPING_BYTES, measure_arrays
from labkit.meters.blocks import drawn, fresh, passing
from labkit.meters.unwritten_arrays import uninitialised_is_nan
from labkit.testing.any_inputs import any_inputs
from labkit.testing.attention.cases import Case, looser
from labkit.testing.attention.query_rows import integer_row, masked_row, row
from labkit.testing.attention.row_blocks import (
    Far,
    axis_suspects,
    cut,
    in_float64,
    merge_suspects,
    no_keys,
    output_suspects,
    softmax_of_row,
    some_masked,
    some_states,
    state_of,
    stats_suspects,
    two_states,
    weights_suspects,
)
from labkit.testing.compare import (
    NAN_FROM_EMPTY,
    NAN_HINT,
    ROUNDINGS,
    as_array,
    assert_at_most,
    assert_close,
    assert_dtype,
    assert_equal,
    assert_raises,
    assert_tuple,
    compare_each,
    require,
)
from labkit.testing.probes import probe
from labkit.testing.unchanged import left_alone

robust, small, refuses = (pytest.mark.kind(name) for name in ("robust", "small", "refuses"))
SPLITS = {
    "equal": (8, 8, 8, 8),
    "ragged_last": (16, 16, 5),
    "unequal": (7, 1, 20, 3),
    "one_block": (23,),
    "one_by_one": (1,) * 9,
    "empty_blocks": (0, 6, 0, 0, 9, 0),
}
by_split = pytest.mark.parametrize(
    "lengths", [pytest.param(cut, id=name, marks=robust if 0 in cut else ()) for name, cut in SPLITS.items()]
)
by_dtype = pytest.mark.parametrize("dtype", [pytest.param(np.float16, marks=robust), np.float32, np.float64])
any_dtype = pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
any_case = any_inputs(20)
seeds = st.integers(0, 2**32 - 1)
splits = st.lists(st.integers(0, 12), min_size=1, max_size=7)
ranges = st.sampled_from([0.1, 1.0, 30.0, 1e4])

PASSED = "a block is looked at after the next one was asked for"
EMPTY = "a block may be empty, the first one too: its maximum is −inf, and −inf − (−inf) is NaN"
OVERFLOW = "exp overflows or vanishes: take the maximum so far from every number first"


def compare(name, got, want, plain, suspects, hint="", dtype=None, roundings=ROUNDINGS):
    """`assert_close`, where the hint is for NaN too; `suspects()` are made only when something is off."""
    with np.errstate(all="ignore"):
        assert_close(
            name,
            got,
            want,
            plain=plain,
            roundings=roundings,
            dtype=dtype,
            suspects=suspects,
            hint=hint,
            nan_hint=hint or NAN_HINT,
        )


def given_a_list(task, blocks):
    """What a task returns for a list of blocks."""
    return task(list(blocks))


@probe
def given_blocks_that_pass(task, blocks):
    """What a task returns for an iterator of blocks, each overwritten as soon as the next one is asked for."""
    return task(passing(blocks))


class TestSafeSoftmax:
    def check(self, x, axis=-1, hint="", given=()):
        got = safe_softmax(x, *given)
        last = np.moveaxis(x, axis, -1)
        want, plain = (np.moveaxis(softmax_of_row(last, dtype)[0], -1, axis) for dtype in (np.float64, x.dtype))
        compare("the softmax", got, want, looser(plain, want, 1), lambda: axis_suspects(x, axis), hint, x.dtype)

    @robust
    def test_worked_example(self):
        self.check(np.array([1000, 1001, -np.inf], np.float32), hint="take the maximum from every number before exp")

    @by_dtype
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

    @robust
    @pytest.mark.parametrize("size", [1e4, -3e4])
    @any_dtype
    def test_large_logits(self, rng, size, dtype):
        x = (size + 8 * rng.integers(-2, 3, (4, 21))).astype(dtype)
        self.check(x, hint="exp overflows or vanishes: take the row's maximum from every number first")

    @robust
    def test_large_logits_of_both_signs(self, rng):
        x = rng.integers(-10_000, 10_001, (4, 21)).astype(np.float32)
        self.check(x, hint="the number to take from a row is its maximum")

    @robust
    def test_masked_entries_beside_very_negative_ones(self, rng):
        x = some_masked(rng, (rng.standard_normal((5, 12)) - 3e4).astype(np.float32))
        self.check(x, hint="−inf is replaced by a number that is not small beside these")

    @robust
    def test_rows_far_apart(self, rng):
        x = rng.standard_normal((3, 17)).astype(np.float32) + np.array([[-500], [0], [500]], np.float32)
        self.check(x, hint="every row has a maximum of its own")

    @robust
    def test_differences_survive(self):
        self.check(np.array([90, 120, 150], np.float32), hint="numbers are clipped, so that they become equal")

    def test_masked_entries(self, rng):
        self.check(some_masked(rng, rng.standard_normal((7, 12)).astype(np.float32)))

    @robust
    def test_row_masked_throughout(self, rng):
        x = rng.standard_normal((4, 9)).astype(np.float32)
        x[2] = -np.inf
        self.check(x, hint="0/0 or −inf − (−inf): such a row gives 0")

    @robust
    def test_row_masked_throughout_beside_large_ones(self, rng):
        x = (1e4 + rng.standard_normal((4, 9))).astype(np.float32)
        x[2] = -np.inf
        self.check(x, hint="a row without numbers must leave the others theirs: every row takes its own maximum")

    @robust
    def test_everything_masked(self):
        self.check(np.full((2, 3), -np.inf, np.float32), hint="0/0 or −inf − (−inf): such a row gives 0")

    @robust
    def test_argument_is_left_alone(self, rng):
        x = some_masked(rng, rng.standard_normal((3, 5)).astype(np.float32))
        with left_alone("x", [x]):
            safe_softmax(x)

    @refuses
    def test_axis_that_is_not_there(self):
        assert_raises(ValueError, lambda: safe_softmax(np.ones((2, 3), np.float32), axis=2), when="for axis 2 of two")


class OverBlocks:
    """What is asked of both functions of a row in blocks: `task` is one of them."""

    task: ClassVar
    example: ClassVar
    all_masked: ClassVar[str]

    def check(self, blocks, hint="", give=given_a_list):
        """Compare what the task makes of `given` (the blocks as a list, when None) with the reference."""
        raise NotImplementedError

    def test_worked_example(self):
        self.check([np.array(x, np.float32) for x in self.example])

    @by_split
    def test_splits(self, rng, lengths):
        blocks = cut(3 * rng.standard_normal(sum(lengths)).astype(np.float32), lengths)
        self.check(blocks, hint=EMPTY if 0 in lengths else "")

    def test_maximum_moves_at_every_block(self, rng):
        x = np.sort(rng.normal(0, 3, 30)).astype(np.float32)
        self.check(cut(x, (10, 10, 10)), hint="a larger maximum makes the sum so far smaller, never larger")

    def test_maximum_comes_first(self, rng):
        x = np.sort(rng.normal(0, 3, 30)).astype(np.float32)[::-1].copy()
        self.check(cut(x, (10, 10, 10)), hint="the maximum only ever moves up")

    @by_dtype
    def test_precisions(self, rng, dtype):
        self.check(cut(2 * rng.standard_normal(45).astype(dtype), (16, 16, 13)))

    @robust
    @pytest.mark.parametrize("size", [1e4, -3e4])
    @any_dtype
    def test_large_logits(self, rng, size, dtype):
        x = (size + 8 * rng.integers(-2, 3, 29)).astype(dtype)
        self.check(cut(x, (8, 8, 8, 5)), hint=OVERFLOW)

    @robust
    def test_large_logits_of_both_signs(self, rng):
        self.check(cut(rng.integers(-10_000, 10_001, 29).astype(np.float32), (8, 8, 8, 5)), hint=OVERFLOW)

    @pytest.mark.parametrize("shape", [(4,), (2, 3)])
    def test_rows_of_a_batch(self, rng, shape):
        x = rng.normal(0, 3, (*shape, 21)).astype(np.float32)
        self.check(cut(x, (4, 9, 8)), hint="the row runs along the last axis, the others are rows of their own")

    def test_batch_as_large_as_a_block(self, rng):
        self.check(cut(rng.normal(0, 3, (5, 15)).astype(np.float32), (5, 5, 5)), hint="keepdims or [..., None]")

    def test_masked_entries(self, rng):
        self.check(cut(some_masked(rng, rng.standard_normal((6, 24)).astype(np.float32)), (8, 8, 8)))

    @robust
    @pytest.mark.parametrize("masked", [0, 1, 2])
    def test_whole_block_masked(self, rng, masked):
        blocks = cut(rng.standard_normal(24).astype(np.float32), (8, 8, 8))
        blocks[masked][:] = -np.inf
        self.check(blocks, hint="−inf − (−inf): a block of −inf changes nothing, wherever it stands")

    @robust
    def test_everything_masked(self):
        self.check([np.full((2, 4), -np.inf, np.float32)] * 2, hint=self.all_masked)

    @robust
    def test_blocks_masked_in_some_rows(self, rng):
        x = rng.standard_normal((3, 12)).astype(np.float32)
        x[0, :4] = x[1, 4:8] = x[2] = -np.inf
        self.check(cut(x, (4, 4, 4)), hint="−inf − (−inf): one row's block may be masked while another's is not")

    @robust
    @by_split
    def test_blocks_that_pass(self, rng, lengths):
        blocks = cut(3 * rng.standard_normal((2, sum(lengths))).astype(np.float32), lengths)
        self.check(blocks, hint=PASSED, give=given_blocks_that_pass)

    @robust
    def test_arguments_are_left_alone(self, rng):
        for lengths in ((7, 7, 6), (20,)):
            blocks = cut(rng.standard_normal(20).astype(np.float32), lengths)
            with left_alone((f"x_blocks[{i}]" for i in range(len(blocks))), blocks):
                type(self).task(blocks)

    @robust
    @any_case
    @given(seed=seeds, lengths=splits, spread=ranges, share=st.sampled_from([0.0, 0.5]))
    def test_any_split(self, seed, lengths, spread, share):
        rng = np.random.default_rng(seed)
        blocks = cut(some_masked(rng, rng.normal(0, spread, (2, sum(lengths))), share), lengths)
        self.check(blocks, give=given_blocks_that_pass)


@probe
def peak_over(task, seed, n_blocks, shape, *before, n_iterables=1):
    """The peak bytes of a call with iterables of blocks, made when they are asked for, and how many were."""
    rng, made = np.random.default_rng(seed), []
    task(*before, *(fresh(rng, 3, shape, []) for _ in range(n_iterables)))
    blocks = [fresh(rng, n_blocks, shape, made) for _ in range(n_iterables)]
    return measure_arrays(task, *before, *blocks, warm=False).peak_bytes, len(made)


def peak_over_blocks(task, rng, n_blocks, shape, *before, n_iterables=1):
    """The peak bytes of a call with iterables of blocks, all of which must be asked for."""
    seed = int(rng.integers(2**32))
    peak, n_asked = peak_over(task, seed, n_blocks, shape, *before, n_iterables=n_iterables)
    assert_equal("the number of blocks asked for", n_asked, n_iterables * n_blocks)
    return peak


@probe
def given_drawn_blocks(task, *arguments):
    """What a task returns for its first arguments and, in place of each (shape, seeds), blocks drawn when asked for."""
    return task(*(drawn(*each) if isinstance(each, tuple) else each for each in arguments))


class TestOnlineSoftmaxStats(OverBlocks):
    task = online_softmax_stats
    example = [1, 2], [4], [3, -np.inf]
    all_masked = "−inf − (−inf): a row of −inf has m = −inf and l = 0"

    def check(self, blocks, hint="", give=given_a_list):
        dtype = blocks[0].dtype
        got = give(online_softmax_stats, blocks)
        m, l = assert_tuple("online_softmax_stats's result", got, ("m", "l"))
        x = np.concatenate(blocks, axis=-1)
        _, want_m, want_l = softmax_of_row(x)
        _, plain_m, plain_l = softmax_of_row(x, dtype)
        plain_l = looser(plain_l, want_l, len(blocks))
        values = {"m": (m, want_m, plain_m), "l": (l, want_l, plain_l)}

        def check(name):
            usual = lambda: {cause: pair["ml".index(name)] for cause, pair in stats_suspects(blocks).items()}  # noqa: E731
            compare(name, *values[name], usual, hint)
            assert_dtype(name, as_array(name, values[name][0]), dtype)

        compare_each(values, check)

    @robust
    def test_no_block_at_all(self):
        m, l = assert_tuple("online_softmax_stats's result", online_softmax_stats([]), ("m", "l"))
        assert_equal("m without blocks", float(m), -np.inf)
        assert_equal("l without blocks", float(l), 0.0)

    @small
    def test_memory_of_a_few_blocks(self, rng):
        n_blocks, n = 64, 4096
        few_columns = (64, n // 64)  # answers that take one at a time are right
        peak = peak_over_blocks(online_softmax_stats, rng, n_blocks, few_columns)
        hint = f"That is room for 14 of the {n_blocks} blocks. Usual cause: blocks or their copies are kept"
        assert_at_most("the peak", peak, 14 * n * 4 + BOOKKEEPING_BYTES, hint=hint)

    @small
    @pytest.mark.outside(mib=8)
    def test_many_blocks_seen_from_outside(self, rng, outside):
        blocks = Far(rng, (512, 2**7))
        m, l = assert_tuple(
            "online_softmax_stats's result",
            outside(given_drawn_blocks, online_softmax_stats, (blocks.shape, blocks.seeds)),
            ("m", "l"),
        )
        m_of_each, l_of_each = zip(*(softmax_of_row(block)[1:] for block in blocks.again()), strict=True)
        want_m = np.max(m_of_each, axis=0)
        want_l = np.sum(np.exp(m_of_each - want_m) * l_of_each, axis=0)
        close = np.allclose(m, want_m, rtol=0) and np.allclose(l, want_l, rtol=1e-4)
        require(close, f"within that bound m and l are not right, of {blocks}")


class TestOnlineSoftmax(OverBlocks):
    task = online_softmax
    example = [1, 2], [4]
    all_masked = "0/0 or −inf − (−inf): such a row gives 0"

    def check(self, blocks, hint="", give=given_a_list):
        got = give(online_softmax, blocks)
        x = np.concatenate(blocks, axis=-1)
        want, plain = softmax_of_row(x)[0], softmax_of_row(x, x.dtype)[0]
        empty = "the softmax is empty\nUsual cause: the blocks are gone through twice; a generator is used up"
        require(as_array("the softmax", got).size or not x.shape[-1], empty)
        plain = looser(plain, want, len(blocks))
        compare("the softmax", got, want, plain, lambda: weights_suspects(blocks), hint, x.dtype)

    @robust
    def test_no_block_at_all(self):
        got = as_array("the softmax of no blocks", online_softmax([]))
        assert_equal("its shape", got.shape, (0,))

    @small
    def test_memory_of_the_result(self, rng):
        n_blocks, n = 64, 1024
        peak = peak_over_blocks(online_softmax, rng, n_blocks, n)
        limit = int(2.5 * n_blocks * n * 4) + 14 * n * 4 + 2 * BOOKKEEPING_BYTES
        hint = "That is 2.5 times the result. Usual cause: the row is joined first, or scaled out of place"
        assert_at_most("the peak", peak, limit, hint=hint)

    @small
    @pytest.mark.outside(mib=46)
    def test_many_blocks_seen_from_outside(self, rng, outside):
        blocks = Far(rng, (256, 2**9), n_blocks=32)
        got = outside(given_drawn_blocks, online_softmax, (blocks.shape, blocks.seeds))
        x = np.concatenate(list(blocks.again()), axis=-1)[1].astype(np.float64)
        want = np.exp(x - x.max())
        close = getattr(got, "shape", ()) == (256, len(x)) and np.allclose(got[1], want / want.sum(), rtol=1e-3)
        require(close, f"within that bound the softmax is not right, of {blocks}")


# Attention of one query


def assert_attention(q, K_blocks, V_blocks, scale=None, hint="", attend=online_attention):
    """Compare the row's output with the reference."""
    got = attend(q, list(K_blocks), list(V_blocks), **({} if scale is None else {"scale": scale}))
    K, V = np.concatenate(K_blocks, axis=-2), np.concatenate(V_blocks, axis=-2)
    masked = np.isneginf(K).any(axis=-1)[..., None, :]
    case = Case(q[..., None, :], K, V, mask=masked, scale=scale, n_steps=len(K_blocks))
    usual = functools.partial(output_suspects, case, [block.shape[-2] for block in K_blocks])
    want, plain = (made.output[..., 0, :] for made in (case.want, case.plain))
    compare("the output", got, want, plain, usual, hint, q.dtype, case.roundings("output"))


@probe
def attention_on_nan(q, K_blocks, V_blocks):
    """What online_attention returns where uninitialised memory holds NaN."""
    with uninitialised_is_nan():
        return online_attention(q, K_blocks, V_blocks)


@probe
def attention_of_blocks_that_pass(q, K_blocks, V_blocks):
    """What online_attention returns for iterators of blocks, each overwritten when the next one is asked for."""
    return online_attention(q, passing(K_blocks), passing(V_blocks))


@probe
def attention_and_order(q, K_blocks, V_blocks):
    """What online_attention returns, and from which of its iterators, K or V, each block was asked for."""
    asked = []

    def noted(name, blocks):
        for block in blocks:
            asked.append(name)
            yield block

    return online_attention(q, noted("K", K_blocks), noted("V", V_blocks)), "".join(asked)


class TestOnlineAttention:
    def test_worked_example(self):
        q, K_1, K_2, V_1, V_2 = (np.array(x, np.float32) for x in ([1, 0], [[1, 0]], [[0, 1]], [[1]], [[0]]))
        assert_attention(q, [K_1, K_2], [V_1, V_2])

    @by_split
    def test_splits(self, rng, lengths):
        assert_attention(*row(rng, lengths), hint=EMPTY if 0 in lengths else "")

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

    @by_dtype
    def test_precisions(self, rng, dtype):
        assert_attention(*row(rng, (16, 16, 13), d=12, d_v=7, dtype=dtype, logit_scale=1.0))

    @robust
    def test_scale_keeps_the_dtype(self, rng):
        got = online_attention(*row(rng, (8, 3)), scale=np.float64(0.25))
        assert_dtype("the output with a scale of NumPy's float64", as_array("the output", got), np.float32)

    @robust
    @pytest.mark.parametrize("size", [9984, -29952])
    @any_dtype
    def test_large_logits(self, rng, size, dtype):
        assert_attention(*integer_row(rng, size, dtype), 1.0, hint="take the maximum from the scores before exp")

    def test_heads(self, rng):
        assert_attention(*row(rng, (5, 8, 2), d=6, d_v=4, batch=(3,)), hint="each head has m, l and o of its own")

    def test_batch_and_heads(self, rng):
        assert_attention(*row(rng, (4, 4, 1), d=4, d_v=4, batch=(4, 4)), hint="each head has m, l and o of its own")

    @robust
    def test_heads_far_apart(self, rng):
        q, K, V = row(rng, (5, 8, 2), d=6, d_v=4, batch=(3,))
        q[:] = rng.integers(-1, 2, q.shape)  # whole numbers: every order of computing gives these scores exactly
        q[:, 0] = -600, 0, 600
        for block in K:
            block[:] = rng.integers(-1, 2, block.shape)
            block[..., 0] = 1
        assert_attention(q, K, V, 1.0, hint="each head has a maximum of its own")

    @robust
    @pytest.mark.parametrize("masked", [0, 1, 2])
    def test_whole_block_masked(self, rng, masked):
        q, K, V = masked_row(rng, (6, 6, 6), lambda i, _: i == masked)
        assert_attention(q, K, V, hint="−inf − (−inf): a block of such scores changes nothing")

    def test_masked_keys(self, rng):
        assert_attention(*masked_row(rng, (6, 6, 5), lambda i, j: (i + j) % 2 == 0))

    @robust
    def test_blocks_masked_in_some_heads(self, rng):
        q, K, V = row(rng, (4, 4, 4), d=6, d_v=5, batch=(3,))
        q[:, -1] = 1
        for i, block in enumerate(K):
            block[..., -1] = np.where(np.arange(3) == i, -np.inf, 0)[:, None]
        assert_attention(q, K, V, hint="−inf − (−inf): one head's block may be masked while another's is not")

    @robust
    def test_everything_masked(self, rng):
        assert_attention(*masked_row(rng, (6, 6), lambda *_: True), hint="0/0 or −inf − (−inf): then the output is 0")

    @robust
    def test_uninitialised_memory_is_written_over(self, rng):
        assert_attention(*row(rng, (7, 0, 9)), hint=NAN_FROM_EMPTY, attend=attention_on_nan)

    @robust
    def test_empty_blocks_only(self, rng):
        got = as_array("the output", online_attention(*row(rng, (0, 0), d=4, d_v=6)))
        assert_equal("the output's shape", got.shape, (6,))
        require(not got.any(), f"the output of empty blocks is {got}, expected 0")

    @robust
    @by_split
    def test_blocks_that_pass(self, rng, lengths):
        q, K, V = row(rng, lengths, d_v=5)
        assert_attention(q, K, V, hint=PASSED, attend=attention_of_blocks_that_pass)

    @small
    def test_keys_and_values_side_by_side(self, rng):
        q, K, V = row(rng, (8, 8, 8, 3), d_v=5)
        orders = []

        def attend(*given):
            got, order = attention_and_order(*given)
            orders.append(order)
            return got

        assert_attention(q, K, V, attend=attend)
        asked = orders[0]
        ahead = [abs(asked[:i].count("K") - asked[:i].count("V")) for i in range(1, len(asked) + 1)]
        assert_equal("the order in which blocks were asked for", "".join(sorted(asked)), "KKKKVVVV")
        told = (
            f"one of the two is {max(ahead)} blocks ahead of the other, 1 is allowed: K's and V's blocks come in turn"
        )
        require(max(ahead) == 1, f"{told}\nUsual cause: all keys are gone through before the first value")

    @small
    def test_memory_of_a_few_blocks(self, rng):
        q = rng.standard_normal((64, 1)).astype(np.float32)
        n_blocks, n = 96, 1024
        few_keys = (64, n // 64, 1)  # answers that take one at a time are right
        peak = peak_over_blocks(online_attention, rng, n_blocks, few_keys, q, n_iterables=2)
        hint = f"That is room for 24 of the {2 * n_blocks} blocks. Usual cause: blocks are kept, or all their scores"
        assert_at_most("the peak", peak, 24 * n * 4 + BOOKKEEPING_BYTES, hint=hint)

    @small
    @pytest.mark.outside(mib=8)
    def test_many_blocks_seen_from_outside(self, rng, outside):
        K, V = Far(rng, (64, 2**7, 16), n_blocks=48), Far(rng, (64, 2**7, 8), n_blocks=48)
        q = rng.standard_normal((64, 16), dtype=np.float32)
        got = outside(given_drawn_blocks, online_attention, q, (K.shape, K.seeds), (V.shape, V.seeds))
        scores = np.concatenate([(k[1] @ q[1] / 4).astype(np.float64) for k in K.again()])
        weights = np.split(np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum(), 48)
        want = sum(w @ v[1] for w, v in zip(weights, V.again(), strict=True))
        close = getattr(got, "shape", ()) == (64, 8) and np.allclose(got[1], want, rtol=0, atol=1e-4)
        require(close, f"within that bound the output is not right, of {K} and as many of values")

    @robust
    def test_arguments_are_left_alone(self, rng):
        q, K, V = row(rng, (5, 4))
        with left_alone(("Q_row", *["K_blocks"] * 2, *["V_blocks"] * 2), (q, *K, *V)):
            online_attention(q, K, V)

    def assert_refused(self, shapes, when, mentions=()):
        """Expect an error for a query and blocks of keys and values, by turns, of these shapes."""
        q, *blocks = (np.ones(shape, np.float32) for shape in shapes)
        call = functools.partial(online_attention, q, blocks[::2], blocks[1::2])
        assert_raises(ValueError, call, when=when, mentions=map(str, mentions))

    @refuses
    @pytest.mark.parametrize(
        ("K_shape", "V_shape", "mentions"),
        [
            ((6, 7), (6, 3), ((8,), (6, 7))),
            ((6, 8), (4, 3), ((6, 8), (4, 3))),
            ((6, 8), (1, 3), ((6, 8), (1, 3))),
        ],
        ids=["other_d", "other_length", "one_value_for_all"],
    )
    def test_shapes_that_do_not_fit(self, K_shape, V_shape, mentions):
        self.assert_refused(((8,), K_shape, V_shape), "for shapes that do not fit", mentions)

    @refuses
    @pytest.mark.parametrize(
        ("K_shape", "V_shape"), [((5, 7), (5, 3)), ((5, 8), (4, 3))], ids=["other_d", "other_length"]
    )
    def test_later_block_that_does_not_fit(self, K_shape, V_shape):
        shapes = (8,), (5, 8), (5, 3), K_shape, V_shape
        self.assert_refused(shapes, "for a second block that does not fit", [K_shape])

    @refuses
    @pytest.mark.parametrize(("n_keys", "n_values"), [(3, 2), (2, 3)], ids=["more_keys", "more_values"])
    def test_more_blocks_of_one(self, rng, n_keys, n_values):
        q, K, V = row(rng, (4, 4, 4))
        call = functools.partial(online_attention, q, iter(K[:n_keys]), iter(V[:n_values]))
        assert_raises(ValueError, call, when=f"for {n_keys} blocks of keys and {n_values} of values")

    @refuses
    def test_no_block_at_all(self):
        self.assert_refused([(4,)], "when there is no block")

    @robust
    @any_case
    @given(seed=seeds, lengths=splits, spread=st.sampled_from([0.1, 1.0, 10.0]), d=st.integers(1, 5))
    def test_any_split(self, seed, lengths, spread, d):
        rng = np.random.default_rng(seed)
        q, K, V = row(rng, lengths, d=d, d_v=3, dtype=np.float64, logit_scale=spread)
        assert_attention(q, K, V, attend=attention_of_blocks_that_pass)


def assert_merged(state_a, state_b, want, n_steps=2, hint=""):
    """Compare merge_states(state_a, state_b) with `want`, a state in float64."""
    got = assert_tuple("merge_states's result", merge_states(state_a, state_b), ("m", "l", "o"))
    usual = functools.partial(merge_suspects, state_a, state_b, want)
    assert_state(got, want, np.asarray(state_a[2]).dtype, n_steps, usual, hint)


def assert_state(got, want, dtype, n_steps, usual=dict, hint=""):
    """Compare a state with `want`, a state in float64, each part by its name."""

    def check(name):
        i = "mlo".index(name)
        plain = looser(np.asarray(want[i]).astype(dtype), want[i], n_steps)
        causes = lambda: {cause: values[i] for cause, values in usual().items()}  # noqa: E731
        why = hint or ("o is not divided by l, neither before nor after merging" if name == "o" else "")
        compare(name, got[i], want[i], plain, causes, why)
        assert_dtype(name, as_array(name, got[i]), dtype)

    compare_each("mlo", check)


by_side = pytest.mark.parametrize("side", ["first", "second"])
one_or_many = pytest.mark.parametrize("batch", [(), (3,)], ids=["one_row", "batch"])


class TestMergeStates:
    WORKED: ClassVar = 3.0, np.exp(-1) + 2, np.array([10 * np.exp(-1) + 40])

    def test_worked_example(self):
        a, b = ((np.float32(m), np.float32(l), np.array(o, np.float32)) for m, l, o in ((2, 1, [10]), (3, 2, [40])))
        assert_merged(a, b, self.WORKED)

    def test_plain_numbers(self):
        assert_merged((2.0, 1.0, np.array([10.0])), (3.0, 2.0, np.array([40.0])), self.WORKED)

    @by_dtype
    def test_precisions(self, rng, dtype):
        assert_merged(*two_states(rng, dtype=dtype))

    @by_side
    def test_larger_maximum_on_either_side(self, rng, side):
        a, b, want = two_states(rng)
        a, b = sorted((a, b), key=lambda state: state[0], reverse=side == "first")
        assert_merged(a, b, want)

    def test_equal_maxima(self, rng):
        a, _, _ = two_states(rng)
        m, l, o = in_float64(a)
        assert_merged(a, a, (m, 2 * l, 2 * o))

    @pytest.mark.parametrize("shape", [(3,), (2, 5)])
    def test_rows_of_a_batch(self, rng, shape):
        assert_merged(*two_states(rng, batch=shape), hint="l has shape (...), o has (..., d_v): l[..., None]")

    def test_batch_as_wide_as_the_values(self, rng):
        assert_merged(*two_states(rng, batch=(4,), d_v=4), hint="l has shape (...), o has (..., d_v): l[..., None]")

    @robust
    @pytest.mark.parametrize("offset", [1e4, -1e4])
    def test_large_maxima(self, rng, offset):
        assert_merged(*two_states(rng, offset=offset), hint="exp takes a difference of maxima, never a maximum")

    @robust
    def test_maxima_far_apart(self, rng):
        a, b, _ = two_states(rng)
        far = np.float32(a[0] + 2e4), *a[1:]
        for pair in ((far, b), (b, far)):
            assert_merged(*pair, in_float64(far), hint="exp overflowed")

    @robust
    @by_side
    @one_or_many
    def test_no_keys_change_nothing(self, rng, side, batch):
        a, _, _ = two_states(rng, batch=batch)
        pair = (no_keys(batch=batch), a) if side == "first" else (a, no_keys(batch=batch))
        assert_merged(*pair, in_float64(a), n_steps=0, hint="(−inf, 0, 0) is the identity")

    @robust
    @by_side
    @any_dtype
    def test_no_keys_as_plain_numbers(self, rng, side, dtype):
        a, _, _ = two_states(rng, batch=(2,), dtype=dtype)
        none = (-np.inf, 0.0, 0.0)
        got = merge_states(*((none, a) if side == "first" else (a, none)))
        got = assert_tuple("merge_states's result", got, ("m", "l", "o"))
        assert_state(got, in_float64(a), dtype, 0, hint="(−inf, 0.0, 0.0) is the identity")

    @robust
    @one_or_many
    def test_no_keys_on_both_sides(self, batch):
        none, hint = no_keys(batch=batch), "−inf − (−inf): nothing and nothing is nothing"
        assert_merged(none, none, in_float64(none), hint=hint)

    @robust
    def test_no_keys_in_some_rows(self, rng):
        empty_a, empty_b = np.array([1, 0, 1, 0], bool), np.array([1, 1, 0, 0], bool)
        s, V = (rng.standard_normal(shape).astype(np.float32) for shape in ((4, 12), (4, 12, 4)))
        s[empty_a, :7] = s[empty_b, 7:] = -np.inf
        a, b = state_of(s[:, :7], V[:, :7]), state_of(s[:, 7:], V[:, 7:])
        assert_merged(a, b, state_of(s, V, np.float64), hint="one row may have no keys while another has some")

    @robust
    def test_states_are_left_alone(self, rng):
        a, b, _ = two_states(rng, batch=(3,))
        for pair in ((a, b), (b, a), (a, no_keys(batch=(3,)))):
            names = (f"{name} of {state}" for state in ("state_a", "state_b") for name in "mlo")
            with left_alone(names, (part for state in pair for part in state)):
                merge_states(*pair)

    @robust
    @any_case
    @given(seed=seeds, spread=ranges, batch=st.sampled_from([(), (2,)]), sizes=st.tuples(*[st.integers(0, 6)] * 3))
    def test_associative(self, seed, spread, batch, sizes):
        a, b, c, want = some_states(seed, spread, batch, sizes)
        left = merge_states(merge_states(a, b), c)
        right = merge_states(a, merge_states(b, c))
        for name, got in (("(a, b), c", left), ("a, (b, c)", right)):
            got = assert_tuple(f"merged as {name}", got, ("m", "l", "o"))
            assert_state(got, want, np.float64, 4, hint=f"merged as {name}: the order must not matter")

    @robust
    @any_case
    @given(seed=seeds, spread=ranges, sizes=st.tuples(*[st.integers(0, 6)] * 2))
    def test_commutative(self, seed, spread, sizes):
        a, b, want = some_states(seed, spread, (2,), sizes)
        for pair in ((a, b), (b, a)):
            assert_merged(*pair, want)

    @robust
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
