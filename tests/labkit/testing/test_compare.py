"""The assertions students meet: each passes what is right, fails what is wrong, and says which and why."""

from __future__ import annotations

import re
from functools import partial

import numpy as np
import pytest
import torch

from labkit.testing import compare
from labkit.testing.attention.cases import array_case, tensor_case
from labkit.testing.attention.reference import attention, random_qkv
from labkit.testing.compare import (
    Tolerance,
    assert_at_most,
    assert_close,
    assert_dtype,
    assert_equal,
    assert_keys,
    assert_raises,
    assert_refused,
    assert_tuple,
    assert_type,
    assert_unchanged,
    is_mentioned,
    require_at_least,
    require_at_most,
)

WANT = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
PLAIN = WANT.astype(np.float32)


def message(call) -> str:
    """What the assertion says."""
    with pytest.raises(AssertionError) as caught:
        call()
    return str(caught.value)


def close(got, **options):
    """assert_close of a quantity named O."""
    return assert_close("O", got, WANT, baseline=PLAIN, **options)


def test_close_passes_what_rounding_explains():
    close(PLAIN)
    close(WANT)
    close(WANT * (1 + 3e-7))


def test_close_says_how_far_where_and_what():
    got = WANT.copy()
    got[1, 2] = 6.5
    said = message(lambda: close(got, hint="the last column is special")).splitlines()
    assert said == [
        "O is off by 0.5 at [1, 2]; rounding explains 5.7e-06",
        "got 6.5, expected 6; 1 of 6 elements are off",
        "Usual cause: the last column is special",
    ]


def test_close_recognises_a_usual_mistake():
    usual = {"it is halved": WANT / 2, "it is doubled": lambda: WANT * 2}
    assert "That is exactly what comes out when it is doubled" in message(
        lambda: close(WANT * 2, mistakes=usual, hint="h")
    )
    said = message(lambda: close(WANT * 3, mistakes=usual, hint="h"))
    assert "That is" not in said
    assert said.endswith("Usual cause: h")


def test_mistakes_that_lead_to_the_same_are_all_named():
    for value in (WANT / 2, WANT * [[1.0], [np.nan]]):
        usual = {"one": value, "other": lambda value=value: value.copy(), "third": WANT * 3}
        assert "exactly what comes out when one; or when other" in message(lambda: close(value, mistakes=usual))  # noqa: B023
    assert message(lambda: assert_equal("n", 6, 3, mistakes={"one": 6, "other": 6, "third": 7})).endswith(
        "That is exactly what comes out when one; or when other"
    )


def test_a_known_mistake_that_leads_to_nan_fits_at_the_finite_places_too():
    nan_row = np.array([[1.0], [np.nan]])
    usual = {"it is halved, and its last row 0/0": WANT * nan_row / 2, "its last row is 0/0": WANT * nan_row}
    assert "exactly what comes out when its last row is 0/0" in message(lambda: close(WANT * nan_row, mistakes=usual))
    del usual["its last row is 0/0"]
    assert "exactly" not in message(lambda: close(WANT * nan_row, mistakes=usual))
    assert "exactly" not in message(lambda: close(WANT * np.nan, mistakes={"it is 0/0": WANT * np.nan}))


@pytest.mark.parametrize(
    ("got", "says"),
    [
        (None, "O is None, expected an array\nUsual cause: a path through the function ends without `return`"),
        ("text", "O is a str, expected an array"),
        ([1.0], "O is a list, expected an array"),
        (True, "O is a bool, expected an array"),
        (WANT.astype(complex), "O is an array of complex128, expected real numbers"),
        (np.array(["a"]), "O is an array of <U1, expected real numbers"),
        (WANT.T, "O has shape (3, 2), expected (2, 3)"),
        (WANT[0], "O has shape (3,), expected (2, 3)"),
        (WANT * np.nan, "O is NaN at [0, 0], expected 1; all 6 elements are NaN\nUsual cause: −inf − (−inf) or 0/0"),
        (WANT * np.inf, "O is +inf at [0, 0], expected 1"),
    ],
)
def test_close_of_what_cannot_be_compared(got, says):
    assert says in message(lambda: close(got))


def test_close_wants_infinities_in_their_places():
    want = np.array([-np.inf, 1.0])
    plain = want.astype(np.float32)
    assert_close("lse", plain, want, baseline=plain)
    assert (
        message(lambda: assert_close("lse", np.array([-1e9, 1.0]), want, baseline=plain))
        == "lse is -1e+09 at [0], expected −inf"
    )
    assert "lse is −inf at [1], expected 1" in message(
        lambda: assert_close("lse", np.array([-np.inf, -np.inf]), want, baseline=plain)
    )


def test_close_wants_the_dtype():
    assert "O is float64, expected float32, the dtype of the input" in message(lambda: close(WANT, dtype=np.float32))
    close(PLAIN, dtype=np.float32)


def test_close_of_numbers_that_do_not_depend_on_the_largest():
    """The floor of the tolerance is relative: tiny quantities are graded as strictly as large ones."""
    for factor in (1e-30, 1.0, 1e30):
        want = WANT * factor
        assert_close("O", want * (1 + 1e-7), want, baseline=want.astype(np.float32))
        message(lambda want=want: assert_close("O", want * (1 + 1e-5), want, baseline=want.astype(np.float32)))


def test_tolerance_is_about_four_times_what_the_precision_loses():
    rng = np.random.default_rng(0)
    for dtype in (np.float16, np.float32):
        Q, K, V = random_qkv(rng, n_queries=129, d=64, dtype=dtype)
        want = attention(Q, K, V).output
        plain = attention(Q, K, V, dtype=dtype).output
        lost = np.abs(plain - want).max()
        eps = np.finfo(dtype).eps
        assert 4 * lost <= Tolerance().limit(want, plain).allowed <= 4 * lost + 9 * eps * np.abs(want).max()


def test_tolerance_of_nothing_finite_is_zero():
    assert Tolerance().limit([-np.inf], np.array([-np.inf], np.float32)).allowed == 0


def test_equal():
    for got in (3, np.int64(3), 3.0):
        assert_equal("n", got, 3)
    assert_equal("list", [1, 2], [1, 2])
    assert_equal("array", np.array([1, 2]), [1, 2])
    assert message(lambda: assert_equal("n", 6_000, 3_000)) == "n is 6,000, expected 3,000 (2 times as much)"
    assert message(lambda: assert_equal("n", 10, 9_000)) == "n is 10, expected 9,000 (1/900 of it)"
    assert message(lambda: assert_equal("n", 4, 4_004)) == "n is 4, expected 4,004 (1/1,001 of it)"
    assert message(lambda: assert_equal("n", 2, 3)) == "n is 2, expected 3 (0.667 of it)"
    assert message(lambda: assert_equal("n", 4_000, 4_004)) == "n is 4,000, expected 4,004 (0.999 of it)"
    assert message(lambda: assert_equal("n", -1, 3)) == "n is -1, expected 3"
    assert message(lambda: assert_equal("n", {}.values(), 3)) == "n is dict_values([]), expected 3"
    assert message(lambda: assert_equal("n", iter(()), 3)) == "n is a tuple_iterator, expected 3"
    assert message(lambda: assert_equal("n", 60_001, 60_000)) == "n is 60,001, expected 60,000"
    assert message(lambda: assert_equal("n", 6, 3, mistakes={"doubled": 6}, hint="h")).endswith(
        "That is exactly what comes out when doubled"
    )
    assert message(lambda: assert_equal("n", 7, 3, mistakes={"doubled": 6}, hint="h")).endswith("Usual cause: h")
    assert message(lambda: assert_equal("flag", True, 1)) == "flag is True, expected 1"
    assert len(message(lambda: assert_equal("long", list(range(10_000)), 3))) < 200


def test_at_most():
    assert_at_most("peak", 10, 10)
    assert message(lambda: assert_at_most("peak", 4_000, 1_000, hint="Too much.")) == (
        "peak is 4,000 bytes, at most 1,000 are allowed, 4 times as much\nToo much."
    )
    assert message(lambda: assert_at_most("peak", 57_554, 57_344)) == (
        "peak is 57,554 bytes, at most 57,344 are allowed, 210 too many"
    )
    assert message(lambda: assert_at_most("the bytes loaded", 2_000, 1_000)) == (
        "the bytes loaded are 2,000, at most 1,000 are allowed, 2 times as much"
    )
    assert message(lambda: assert_at_most("calls", 1, 0, unit="")) == "calls is 1, at most 0 are allowed"


def test_keys():
    assert assert_keys("r", {"b": 1, "a": 2}, ("a", "b")) == {"b": 1, "a": 2}
    assert message(lambda: assert_keys("r", {"a": 1, "c": 2}, ("a", "b"))) == (
        "r lacks b and has c, which the handout does not name"
    )
    assert message(lambda: assert_keys("r", (1, 2), ("a",))) == "r is a tuple, expected a dict with the keys a"
    assert "ends without `return`" in message(lambda: assert_keys("r", None, ("a",)))


def test_tuple():
    assert assert_tuple("r", (1, 2), ("a", "b")) == (1, 2)
    assert message(lambda: assert_tuple("r", (1, 2, 3), ("a", "b"))) == "r is a tuple of 3, expected the tuple (a, b)"
    assert message(lambda: assert_tuple("r", PLAIN, ("a",))) == "r is an ndarray, expected the tuple (a)"
    assert message(lambda: assert_tuple("r", [1, 2], ("a", "b"))) == "r is a list, expected the tuple (a, b)"


def test_type():
    assert_type("n", 3, int, "an int")
    assert_type("n", True, bool, "a bool")
    assert message(lambda: assert_type("n", True, int, "an int")) == "n is a bool, expected an int"
    assert (
        message(lambda: assert_type("n", 2.0, (int, np.integer), "a whole number"))
        == "n is a float, expected a whole number"
    )


def test_dtype():
    assert_dtype("O", PLAIN, np.float32)
    assert "Usual cause: a float64 scalar met the array" in message(lambda: assert_dtype("O", WANT, np.float32))
    tensor = torch.from_numpy(WANT)
    assert "added up in float64" in message(lambda: assert_dtype("O", tensor, torch.float32))
    assert (
        message(lambda: assert_dtype("O", PLAIN, np.float64))
        == "O is float32, expected float64, the dtype of the input"
    )


def test_dtype_of_tensors():
    import torch

    assert_dtype("O", torch.zeros(1, dtype=torch.bfloat16), torch.bfloat16)
    assert "O is float32, expected bfloat16" in message(lambda: assert_dtype("O", torch.zeros(1), torch.bfloat16))
    close(torch.tensor(PLAIN, requires_grad=True), dtype=torch.float32)


def test_unchanged():
    before = np.array([1.0, np.nan])
    assert_unchanged("Q", before.copy(), before)
    assert "Q, an argument, was changed in place" in message(lambda: assert_unchanged("Q", before + 1, before))


@pytest.mark.parametrize(
    ("text", "right", "wrong"),
    [
        ("k", ("k is empty", "the argument 'k'", "(k, v)"), ("a key", "block_k", "no k2")),
        ("window", ("window=0 is too small", "`window`"), ("windows are positive", "sliding_window")),
        ("0", ("got 0", "0.", "(0, 3)"), ("10 blocks", "0.5", "1.0")),
        ("-1", ("got -1", "got −1"), ("got 1", "got -10")),
        ("mat1 and mat2", ("mat1 and mat2 do not fit",), ("mat1, mat2",)),
    ],
)
def test_mentioned_as_a_whole_word(text, right, wrong):
    assert [is_mentioned(text, message) for message in (*right, *wrong)] == [True] * len(right) + [False] * len(wrong)


def test_one_text_is_no_list_of_letters():
    with pytest.raises(TypeError, match="mentions='ab'"):
        assert_raises(ValueError, lambda: 7, when="for X", mentions="ab")


def test_raises():
    def fail(error):
        raise error

    assert_raises(ValueError, lambda: fail(ValueError("Q (3, 4)")), when="for X", mentions=("(3, 4)",))
    assert "does not mention (5, 4); it says: Q (3, 4)" in message(
        lambda: assert_raises(ValueError, lambda: fail(ValueError("Q (3, 4)")), when="for X", mentions=("(5, 4)",))
    )
    for said in ("[3, 4]", "torch.Size([3, 4])", "3 × 4", "3x4"):
        assert_raises(ValueError, lambda said=said: fail(ValueError(f"Q {said}")), when="for X", mentions=("(3, 4)",))
    for said in ("13, 4", "3, 40", "3 and 5"):
        call = partial(
            assert_raises, ValueError, lambda said=said: fail(ValueError(said)), when="", mentions=("(3, 4)",)
        )
        assert "does not mention (3, 4)" in message(call)
    for said in ("window must be positive", "0 is not positive"):
        assert_raises(ValueError, lambda said=said: fail(ValueError(said)), when="", mentions={"window": 0})
    call = partial(
        assert_raises, ValueError, lambda: fail(ValueError("no")), when="for X", mentions={"window": 0, "k": 5}
    )
    assert message(call) == "the ValueError for X does not mention window or 0, k or 5; it says: no"
    call = partial(assert_raises, ValueError, lambda: 7, when="for X", mentions=())
    assert message(call) == "no ValueError for X; it returned 7"
    with pytest.raises(KeyError) as caught:
        assert_raises((ValueError, TypeError), lambda: fail(KeyError("x")), when="for X", mentions=("(3, 4)",))
    assert caught.value.__notes__ == ["Expected for X: a ValueError or TypeError that mentions (3, 4)"]


def test_refused():
    def halve(n, by):
        if n % 2:
            raise ValueError(f"n is {n}")

    assert_refused(halve, [((3, 1), "for an odd n", ["3"])])
    table = [((3, 1), "for an odd n", ["3"]), ((4, 1), "for 4", [])]
    assert message(lambda: assert_refused(halve, table)) == "no ValueError for 4; it returned None"


def test_nan_in_rows_that_a_mistake_leaves_without_keys():
    """The numbers of the other rows say which mistake it is."""
    want, inverted = (np.array(each, np.float32) for each in ([[0.4, 0.6], [1, 0]], [[0, 0], [0, 1]]))

    def told(got, mistake):
        return message(lambda: assert_close("P", got, want, baseline=want, mistakes={"it is inverted": mistake}))

    got = np.where([[True], [False]], np.nan, inverted)
    assert "exactly what comes out when it is inverted; a row that is left without keys is 0/0" in told(got, inverted)
    got[1] = want[1]
    assert "exactly" not in told(got, np.where([[True], [False]], 0, want)), "no number says so"


def test_of_causes_that_fit_the_first_two_are_named():
    fitting = {f"cause {i}": 2 for i in range(4)}
    told = message(lambda: assert_equal("x", 2, 1, mistakes=fitting))
    assert told.endswith("exactly what comes out when cause 0; or when cause 1")


def test_notes_say_what_was_compared_with_what_and_how_the_limit_was_made():
    case = array_case(np.random.default_rng(0), n=3, d=2, causal=True)
    with pytest.raises(AssertionError) as caught:
        case.check("O", case.want["O"] + 1)
    reference, limit, sizes = caught.value.__notes__
    assert reference == "compared with labkit.testing.attention.reference.attention"
    assert re.fullmatch(
        r"allowed \S+ = 4 × \S+ \(error of the baseline\) \+ \S+ × 1.2e-07 × \S+ "
        r"\(roundings × unit of float32 × largest\)",
        limit,
    )
    assert sizes == "Q (3, 2) float32, K (3, 2) float32, V (3, 2) float32, causal=True"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_twice_a_tolerance_allows_twice_as_much(dtype):
    """Also where the baseline is rounded to bfloat16, which NumPy keeps in float32."""
    case = tensor_case(np.random.default_rng(0), n=9, d=4, dtype=dtype)
    once, twice = (
        tolerance.limit(case.want["O"], case.baseline["O"]).allowed
        for tolerance in (case.tolerance, case.tolerance.times(2))
    )
    assert twice == pytest.approx(2 * once)


def test_rows_that_are_wrong_throughout_are_told():
    want = np.random.default_rng(1).standard_normal((2, 7, 5)).astype(np.float32)
    got = want.copy()
    got[:, 4:] = 3e37
    told = message(lambda: assert_close("O", got, want, baseline=want)).splitlines()
    assert told[1].endswith("30 of 70 elements are off: rows 4 to 6, no others")
    assert told[2].startswith("Usual cause: nothing is written there")
    causal = want.copy()
    causal[:, 4:] *= 2
    told = message(lambda: assert_close("O", causal, want, baseline=want))
    assert "rows 4 to 6" in told
    assert "nothing is written" not in told, "sums that are wrong from some row on"
    got[0, 1, 1] = 5
    assert "rows" not in message(lambda: assert_close("O", got, want, baseline=want))
    got[0, 1, 1], got[:, 4:] = want[0, 1, 1], np.nan
    assert "rows 4 to 6" in message(lambda: assert_close("O", got, want, baseline=want))


def test_margins_of_limits_from_above_and_from_below_are_recorded(monkeypatch):
    recorded = []
    monkeypatch.setattr(compare, "margin_recorder", lambda what, _kind, share: recorded.append((what, share)))
    require_at_most("the work", 3, 4, "too much")
    require_at_least("the steps", 8, 2, "too few")
    assert recorded == [("the work", 0.75), ("the steps", 0.25)]


@pytest.mark.parametrize("got", [1, 0, float("nan")])
def test_too_few_and_not_a_number_are_refused(got):
    with pytest.raises(AssertionError, match="too few"):
        require_at_least("the steps", got, 2, "too few")


def test_terms_that_cancel_leave_their_rounding_errors():
    got, want, plain = np.array([2e-7], np.float32), [0.0], np.array([0.0], np.float32)
    with pytest.raises(AssertionError, match="rounding explains 0"):
        assert_close("dQ", got, want, baseline=plain)
    assert_close("dQ", got, want, baseline=plain, tolerance=Tolerance(largest=1.0))
