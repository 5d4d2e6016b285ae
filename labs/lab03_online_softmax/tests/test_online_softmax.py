"""Lab 03's suite: softmax and attention over blocks that come once, and states that merge in any order."""

import functools
import re
from typing import ClassVar

import numpy as np
import pytest
from online_softmax import merge_states, online_attention, online_softmax, online_softmax_stats, safe_softmax

from labkit.meters.arrays import BOOKKEEPING_BYTES
from labkit.testing.attention.cases import Case, array_case, worked_example
from labkit.testing.attention.table import attention_cases
from labkit.testing.compare import (
    NAN_FROM_EMPTY,
    as_array,
    assert_at_most,
    assert_dtype,
    assert_equal,
    assert_raises,
    assert_tuple,
    require,
)
from labkit.testing.unchanged import copied, report_mutation_first, unchanged

from .probes import attention_and_order, attention_on_nan, drawn, given_blocks_that_pass, given_drawn_blocks
from .support import (
    EMPTY,
    MASKED,
    SPLITS,
    assert_near,
    assert_output,
    assert_parts,
    assert_state,
    axis_mistakes,
    block_rows,
    blocks_by_name,
    cut,
    in_blocks,
    lengths_of,
    masked_row,
    merge_mistakes,
    no_keys,
    peak_bytes,
    softmax_of_row,
    state_of,
    states_of_parts,
    stats_mistakes,
    two_states,
    weights_mistakes,
    weights_tolerance,
)

by_split = pytest.mark.parametrize(
    "split",
    [pytest.param(cut, id=name, marks=pytest.mark.robust if cut and 0 in cut else ()) for name, cut in SPLITS.items()],
)
by_dtype = pytest.mark.parametrize(
    "dtype", [pytest.param(np.float16, marks=pytest.mark.robust), np.float32, np.float64]
)
any_dtype = pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
by_masked = pytest.mark.parametrize(("hidden", "hint"), MASKED.values(), ids=MASKED)

PASSED = "a block is looked at after the next one was asked for"
ALL_MASKED = "0/0 or −inf − (−inf): such a row gives 0"


class TestSafeSoftmax:
    def check(self, x, axis=-1, hint="", given=()):
        last = np.moveaxis(x, axis, -1)
        want, baseline = (np.moveaxis(softmax_of_row(last, dtype)[0], -1, axis) for dtype in (np.float64, x.dtype))
        got = safe_softmax(x, *given)
        assert_near("the softmax", got, want, baseline, functools.partial(axis_mistakes, x, axis), hint, x.dtype)

    @pytest.mark.robust
    def test_worked_example(self):
        self.check(np.array([1000, 1001, -np.inf], np.float32), hint="take the maximum from every number before exp")

    @pytest.mark.basic
    @by_dtype
    def test_precisions(self, rng, dtype):
        hint = "a step is done in float32, or a small number was added to the sums" if dtype == np.float64 else ""
        self.check(rng.standard_normal((5, 33)).astype(dtype), hint=hint)

    @pytest.mark.parametrize("axis", [0, 1, -2, 2])
    def test_other_axes(self, rng, axis):
        self.check(rng.standard_normal((4, 5, 3)).astype(np.float32), axis, given=(axis,), hint="axis is not used")

    @pytest.mark.robust
    @pytest.mark.parametrize("size", [1e4, -3e4])
    @any_dtype
    def test_large_logits(self, rng, size, dtype):
        x = (size + 8 * rng.integers(-2, 3, (4, 21))).astype(dtype)
        self.check(x, hint="exp overflows or vanishes: take the row's maximum from every number first")

    @pytest.mark.robust
    def test_rows_far_apart(self, rng):
        x = rng.standard_normal((3, 17)).astype(np.float32) + np.array([[-500], [0], [500]], np.float32)
        self.check(x, hint="every row has a maximum of its own")

    @pytest.mark.parametrize("size", [0, pytest.param(-3e4, marks=pytest.mark.robust)])
    def test_masked_entries(self, rng, size):
        x = (size + rng.standard_normal((7, 12))).astype(np.float32)
        x[rng.random(x.shape) < 0.4] = -np.inf
        self.check(x, hint="−inf is replaced by a number that is not small beside these")

    @pytest.mark.robust
    @pytest.mark.parametrize(
        ("size", "hint"),
        [(0, ALL_MASKED), (1e4, f"{ALL_MASKED}; it must leave the others theirs: each row takes its own maximum")],
        ids=["ordinary", "large_logits"],
    )
    def test_row_masked_throughout(self, rng, size, hint):
        x = (size + rng.standard_normal((4, 9))).astype(np.float32)
        x[2] = -np.inf
        self.check(x, hint=hint)

    @pytest.mark.robust
    def test_argument_is_left_alone(self, rng):
        x = rng.standard_normal((3, 5)).astype(np.float32)
        with unchanged({"x": x}):
            safe_softmax(x)

    @pytest.mark.refuses
    def test_axis_that_is_not_there(self):
        call = functools.partial(safe_softmax, np.ones((2, 3), np.float32), axis=2)
        assert_raises(ValueError, call, when="for axis 2 of two", mentions={"axis": 2})


by_row = pytest.mark.parametrize("row", block_rows())


def assert_stats(blocks, hint="", stats=online_softmax_stats):
    """Call online_softmax_stats with copies of blocks, and compare m and l."""
    given = list(copied(*blocks))
    with report_mutation_first(blocks_by_name(given)):
        got = assert_tuple("online_softmax_stats's result", stats(given), ("m", "l"))
        x = np.concatenate(blocks, axis=-1)
        want, baseline = softmax_of_row(x)[1:], softmax_of_row(x, x.dtype)[1:]
        assert_parts("ml", got, want, baseline, functools.partial(stats_mistakes, blocks), hint)


class TestOnlineSoftmaxStats:
    @pytest.mark.basic
    def test_worked_example(self):
        assert_stats([np.array(x, np.float32) for x in ([1, 2], [4], [3, -np.inf])])

    @pytest.mark.basic
    @by_row
    def test_results(self, rng, row):
        assert_stats(row.draw(rng), row.hint)

    @pytest.mark.robust
    def test_blocks_that_pass(self, rng):
        blocks = cut(rng.normal(0, 3, (2, 31)).astype(np.float32), (7, 1, 20, 3))
        assert_stats(blocks, PASSED, functools.partial(given_blocks_that_pass, online_softmax_stats))

    @pytest.mark.robust
    def test_arguments_are_left_alone(self, rng):
        blocks = cut(rng.standard_normal(20).astype(np.float32), (7, 7, 6))
        with unchanged(blocks_by_name(blocks)):
            online_softmax_stats(blocks)

    @pytest.mark.robust
    def test_no_block_at_all(self):
        m, l = assert_tuple("online_softmax_stats's result", online_softmax_stats([]), ("m", "l"))
        assert_equal("m without blocks", float(m), -np.inf)
        assert_equal("l without blocks", float(l), 0.0)

    @pytest.mark.cost
    def test_memory_of_a_few_blocks(self, rng):
        few_columns = (64, 64)  # functions that take one column at a time are right
        peak = peak_bytes(rng, online_softmax_stats, (few_columns, 64))
        hint = "That is room for 14 of the 64 blocks. Usual cause: blocks or their copies are kept"
        assert_at_most("the peak", peak, 14 * 64 * 64 * 4 + BOOKKEEPING_BYTES, hint=hint)

    @pytest.mark.cost
    @pytest.mark.memory_limit(mib=8)
    def test_many_blocks_seen_from_outside(self, rng, memory_limit):
        shape, seeds = (512, 2**7), rng.integers(0, 2**32, 64)
        got = memory_limit(given_drawn_blocks, online_softmax_stats, (shape, seeds))
        m, l = assert_tuple("online_softmax_stats's result", got, ("m", "l"))
        m_of_each, l_of_each = zip(*(softmax_of_row(block)[1:] for block in drawn(shape, seeds)), strict=True)
        want_m = np.max(m_of_each, axis=0)
        want_l = np.sum(np.exp(m_of_each - want_m) * l_of_each, axis=0)
        close = np.allclose(m, want_m, rtol=0) and np.allclose(l, want_l, rtol=1e-4)
        require(close, "memory stayed within the limit, but m and l are wrong for 64 blocks of 512 × 128")


def assert_weights(blocks, hint="", softmax=online_softmax):
    """Call online_softmax with copies of blocks, and compare the weights."""
    given = list(copied(*blocks))
    with report_mutation_first(blocks_by_name(given)):
        got = softmax(given)
        x = np.concatenate(blocks, axis=-1)
        want, baseline = softmax_of_row(x)[0], softmax_of_row(x, x.dtype)[0]
        empty = "the softmax is empty\nUsual cause: the blocks are gone through twice; a generator is used up"
        require(as_array("the softmax", got).size, empty)
        assert_near(
            "the softmax",
            got,
            want,
            baseline,
            functools.partial(weights_mistakes, blocks),
            hint,
            x.dtype,
            tolerance=weights_tolerance(x),
        )


class TestOnlineSoftmax:
    @pytest.mark.basic
    def test_worked_example(self):
        assert_weights([np.array(x, np.float32) for x in ([1, 2], [4])])

    @pytest.mark.basic
    @by_row
    def test_results(self, rng, row):
        assert_weights(row.draw(rng), row.hint)

    @pytest.mark.robust
    def test_blocks_that_pass(self, rng):
        blocks = cut(rng.normal(0, 3, (2, 31)).astype(np.float32), (7, 1, 20, 3))
        assert_weights(blocks, PASSED, functools.partial(given_blocks_that_pass, online_softmax))

    @pytest.mark.robust
    def test_arguments_are_left_alone(self, rng):
        blocks = cut(rng.standard_normal(20).astype(np.float32), (7, 7, 6))
        with unchanged(blocks_by_name(blocks)):
            online_softmax(blocks)

    @pytest.mark.robust
    def test_no_block_at_all(self):
        assert_equal("the shape of the softmax of no blocks", np.shape(online_softmax([])), (0,))

    @pytest.mark.cost
    def test_memory_of_the_result(self, rng):
        n_blocks, n = 64, 1024
        peak = peak_bytes(rng, online_softmax, (n, n_blocks))
        limit = int(2.5 * n_blocks * n * 4) + 14 * n * 4 + 2 * BOOKKEEPING_BYTES
        hint = "That is 2.5 times the result. Usual cause: the row is joined first, or scaled out of place"
        assert_at_most("the peak", peak, limit, hint=hint)

    @pytest.mark.cost
    @pytest.mark.memory_limit(mib=49)
    def test_many_blocks_seen_from_outside(self, rng, memory_limit):
        shape, seeds = (256, 2**9), rng.integers(0, 2**32, 32)
        got = memory_limit(given_drawn_blocks, online_softmax, (shape, seeds))
        x = np.concatenate([block[1] for block in drawn(shape, seeds)]).astype(np.float64)
        want = softmax_of_row(x)[0]
        close = getattr(got, "shape", ()) == (256, len(x)) and np.allclose(got[1], want, rtol=1e-3)
        require(close, "memory stayed within the limit, but the softmax is wrong for 32 blocks of 256 × 512")


def one_query(rng, *, n=None, n_queries=1, n_keys=None, **sizes):
    """A case of one query, whatever `n_queries` is."""
    return array_case(rng, n_queries=1, n_keys=n_keys or n, **sizes)


def attend(case, lengths=None, hint="", nan_hint="", attention=online_attention):
    """Call online_attention with copies of a case's arrays, the keys in blocks of these lengths, and compare."""
    q, K, V = in_blocks(*case.inputs, lengths)
    with report_mutation_first({"Q_row": q, **blocks_by_name(K, "K_blocks"), **blocks_by_name(V, "V_blocks")}):
        got = attention(q, K, V, **({} if case.scale is None else {"scale": case.scale}))
        assert_output(case, got, lengths, hint, nan_hint)


CASES = attention_cases("full", dtypes=("float16", "float32", "float64"), sums="own")
ONE_QUERY = [row for row in CASES if not re.match(r"N\d+x\d+", row.id)]


class TestOnlineAttention:
    @pytest.mark.basic
    def test_worked_example(self):
        attend(Case(*worked_example()))

    @pytest.mark.basic
    @pytest.mark.parametrize("row", ONE_QUERY)
    def test_results(self, rng, row):
        attend(row.draw(one_query, rng), hint=row.hint, nan_hint=row.nan_hint)

    @by_split
    def test_splits(self, rng, split):
        lengths = lengths_of(split, rng)
        case = one_query(rng, n_keys=sum(lengths), logit_scale=3.0)
        attend(case, lengths, hint=EMPTY if 0 in lengths else "")

    @pytest.mark.robust
    def test_uninitialised_memory_is_written_over(self, rng):
        case = one_query(rng, n_keys=21, d=8, d_v=5, batch=(2,))
        attend(case, (7, 0, 14), nan_hint=NAN_FROM_EMPTY, attention=attention_on_nan)

    @pytest.mark.parametrize("scale", [0.5, 0.0, -0.25])
    def test_scale_given(self, rng, scale):
        case = one_query(rng, n=22)
        case.scale = scale
        attend(case)

    @pytest.mark.robust
    def test_scale_keeps_the_dtype(self, rng):
        q, K, V = in_blocks(*one_query(rng, n=11).inputs)
        got = online_attention(q, K, V, scale=np.float64(0.25))
        assert_dtype("the output with a scale of NumPy's float64", as_array("the output", got), np.float32)

    @pytest.mark.robust
    @by_masked
    def test_masked_blocks(self, rng, hidden, hint):
        attend(masked_row(rng, hidden), (4, 4, 4), hint=hint)

    @pytest.mark.robust
    def test_empty_blocks_only(self, rng):
        case = one_query(rng, n=1, d=4, d_v=6)
        got = as_array("the output", online_attention(*in_blocks(case.Q, case.K[:0], case.V[:0])))
        assert_equal("the output's shape", got.shape, (6,))
        require(not got.any(), f"the output of empty blocks is {got}, expected 0")

    @pytest.mark.robust
    def test_blocks_that_pass(self, rng):
        passing = functools.partial(given_blocks_that_pass, online_attention)
        case = one_query(rng, n=31, d_v=5, logit_scale=3.0)
        attend(case, (7, 1, 20, 3), hint=PASSED, attention=passing)

    @pytest.mark.robust
    def test_arguments_are_left_alone(self, rng):
        q, K, V = in_blocks(*one_query(rng, n=20, d=8).inputs)
        given = {"Q_row": q, **blocks_by_name(K, "K_blocks"), **blocks_by_name(V, "V_blocks")}
        with unchanged(given):
            online_attention(q, K, V)

    @pytest.mark.cost
    def test_keys_and_values_side_by_side(self, rng):
        case, lengths = one_query(rng, n=27, d_v=5), (8, 8, 8, 3)
        got, asked = attention_and_order(*in_blocks(*case.inputs, lengths))
        assert_output(case, got, lengths)
        ahead = [abs(asked[:i].count("K") - asked[:i].count("V")) for i in range(1, len(asked) + 1)]
        assert_equal("the order in which blocks were asked for", "".join(sorted(asked)), "KKKKVVVV")
        told = (
            f"one of the two is {max(ahead)} blocks ahead of the other, 1 is allowed: K's and V's blocks come in turn"
        )
        require(max(ahead) == 1, f"{told}\nUsual cause: all keys are gone through before the first value")

    @pytest.mark.cost
    def test_memory_of_a_few_blocks(self, rng):
        q = rng.standard_normal((64, 1)).astype(np.float32)
        few_keys = (64, 16, 1)  # functions that take one key at a time are right
        peak = peak_bytes(rng, online_attention, q, (few_keys, 96), (few_keys, 96))
        hint = "That is room for 24 of the 192 blocks. Usual cause: blocks are kept, or all their scores"
        assert_at_most("the peak", peak, 24 * 64 * 16 * 4 + BOOKKEEPING_BYTES, hint=hint)

    @pytest.mark.cost
    @pytest.mark.memory_limit(mib=8)
    def test_many_blocks_seen_from_outside(self, rng, memory_limit):
        K, V = (((64, 2**7, width), rng.integers(0, 2**32, 48)) for width in (16, 8))
        q = rng.standard_normal((64, 16), dtype=np.float32)
        got = memory_limit(given_drawn_blocks, online_attention, q, K, V)
        scores = np.concatenate([k[1] @ q[1] / 4 for k in drawn(*K)])
        want = softmax_of_row(scores)[0] @ np.concatenate([v[1] for v in drawn(*V)])
        close = getattr(got, "shape", ()) == (64, 8) and np.allclose(got[1], want, rtol=0, atol=1e-4)
        require(close, "memory stayed within the limit, but the output is wrong for 48 blocks of 128 keys in 64 heads")

    @pytest.mark.refuses
    @pytest.mark.parametrize(
        ("K_shapes", "V_shapes", "mentions"),
        [
            pytest.param([(6, 7)], [(6, 3)], ["(8,)", "(6, 7)"], id="other_d"),
            pytest.param([(6, 8)], [(4, 3)], ["(6, 8)", "(4, 3)"], id="other_length"),
            pytest.param([(6, 8)], [(1, 3)], ["(6, 8)", "(1, 3)"], id="one_value_for_all"),
            pytest.param([(5, 8), (5, 7)], [(5, 3), (5, 3)], ["(5, 7)"], id="other_d_in_a_later_block"),
            pytest.param([(5, 8), (5, 8)], [(5, 3), (4, 3)], ["(5, 8)"], id="other_length_in_a_later_block"),
            pytest.param([(5, 8)] * 3, [(5, 3)] * 2, [], id="more_keys"),
            pytest.param([(5, 8)] * 2, [(5, 3)] * 3, [], id="more_values"),
            pytest.param([], [], [], id="no_block"),
        ],
    )
    def test_blocks_that_do_not_fit(self, K_shapes, V_shapes, mentions):
        q = np.ones(8, np.float32)
        K, V = ([np.ones(shape, np.float32) for shape in shapes] for shapes in (K_shapes, V_shapes))
        when = f"for Q_row (8,), blocks of keys {K_shapes} and of values {V_shapes}"
        assert_raises(ValueError, lambda: online_attention(q, K, V), when=when, mentions=mentions)


by_side = pytest.mark.parametrize("side", ["first", "second"])


class TestMergeStates:
    WORKED: ClassVar = 3.0, np.exp(-1) + 2, np.array([10 * np.exp(-1) + 40])

    def check(self, state_a, state_b, want, hint=""):
        """Compare merge_states(state_a, state_b) with `want`, a state in float64."""
        usual = functools.partial(merge_mistakes, state_a, state_b, want)
        dtype = np.asarray(state_a[2] if np.ndim(state_a[2]) else state_b[2]).dtype
        assert_state(merge_states(state_a, state_b), want, dtype, usual, hint)

    @pytest.mark.basic
    def test_worked_example(self):
        a, b = ((np.float32(m), np.float32(l), np.array(o, np.float32)) for m, l, o in ((2, 1, [10]), (3, 2, [40])))
        self.check(a, b, self.WORKED)

    @pytest.mark.basic
    @by_dtype
    def test_precisions(self, rng, dtype):
        self.check(*two_states(rng, dtype=dtype))

    @pytest.mark.parametrize("batch", [(2, 5), (4,)], ids=["B2x5", "B4-as-wide-as-o"])
    def test_rows_of_a_batch(self, rng, batch):
        self.check(*two_states(rng, batch=batch, d_v=4), hint="l has shape (...), o has (..., d_v): l[..., None]")

    @pytest.mark.robust
    @pytest.mark.parametrize("offset", [1e4, -1e4])
    def test_large_maxima(self, rng, offset):
        self.check(*two_states(rng, offset=offset), hint="exp takes a difference of maxima, never a maximum")

    @pytest.mark.robust
    @pytest.mark.parametrize("form", ["one_row", "batch", "plain_numbers"])
    @by_side
    def test_no_keys_change_nothing(self, rng, side, form):
        batch = () if form == "one_row" else (3,)
        a, _, _ = two_states(rng, batch=batch)
        none = (-np.inf, 0.0, 0.0) if form == "plain_numbers" else no_keys(batch)
        pair = (none, a) if side == "first" else (a, none)
        self.check(*pair, [np.float64(part) for part in a], hint="(−inf, 0, 0) is the identity")

    @pytest.mark.robust
    @pytest.mark.parametrize("batch", [(), (3,)], ids=["one_row", "batch"])
    def test_no_keys_on_both_sides(self, batch):
        none = no_keys(batch)
        self.check(none, none, none, hint="−inf − (−inf): nothing and nothing is nothing")

    @pytest.mark.robust
    def test_no_keys_in_some_rows(self, rng):
        empty_a, empty_b = np.array([1, 0, 1, 0], bool), np.array([1, 1, 0, 0], bool)
        s, V = (rng.standard_normal(shape).astype(np.float32) for shape in ((4, 12), (4, 12, 4)))
        s[empty_a, :7] = s[empty_b, 7:] = -np.inf
        a, b = state_of(s[:, :7], V[:, :7]), state_of(s[:, 7:], V[:, 7:])
        self.check(a, b, state_of(s, V, np.float64), hint="one row may have no keys while another has some")

    @pytest.mark.robust
    def test_states_are_left_alone(self, rng):
        a, b, _ = two_states(rng, batch=(3,))
        for pair in ((a, b), (b, a), (a, no_keys((3,)))):
            names = [f"{name} of {state}" for state in ("state_a", "state_b") for name in "mlo"]
            with unchanged(dict(zip(names, (*pair[0], *pair[1]), strict=True))):
                merge_states(*pair)

    @pytest.mark.robust
    @pytest.mark.parametrize("spread", [0.1, 1.0, 30.0, 1e4])
    def test_any_order_of_merging(self, rng, spread):
        for _ in range(10):
            sizes = rng.integers(0, 7, rng.integers(2, 7))
            states, want = states_of_parts(rng, sizes, spread)
            while len(states) > 1:
                a, b = (states.pop(rng.integers(len(states))) for _ in "ab")
                states.append(merge_states(a, b))
            hint = f"the states of {len(sizes)} sets of keys, merged pair by pair in a random order"
            assert_state(merge_states(states[0], (-np.inf, 0.0, 0.0)), want, np.float64, hint=hint)
