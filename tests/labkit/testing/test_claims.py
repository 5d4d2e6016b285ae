"""No message claims a mistake that was not made: right results, disturbed in ways that no known mistake describes."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.suite.forked import run_forked
from labkit.suite.messages import result_lines
from labkit.testing import compare
from labkit.testing.attention.cases import array_case
from labkit.testing.attention.mistakes import attention_mistakes
from tests.student import LAB, solution_text

BLOCKS = (8, 8)
FACTORS = (1.1, 8, 1000)
LOGITS = 8
"""So large that some keys weigh next to nothing: leaving them out, as a mistake may, looks like rounding."""


def drawn(seed, causal):
    """A case whose blocks do not divide its lengths."""
    rng = np.random.default_rng(seed)
    return array_case(rng, n_queries=21, n_keys=19, d=6, d_v=5, causal=causal, logit_scale=LOGITS)


def said(case, got):
    """What the assertion says of `got`; nothing when it passes."""
    try:
        case.check("O", got, attention_mistakes(case, *BLOCKS), hint="a hint")
    except AssertionError as error:
        return str(error)
    return ""


def in_bfloat16(values):
    """Cut off to bfloat16."""
    return (np.ascontiguousarray(values, np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def one_element(case, rng, factor):
    got = case.want["O"].copy()
    allowed = case.tolerance.limit(case.want["O"], case.baseline["O"]).allowed
    got[tuple(rng.integers(n) for n in got.shape)] += factor * allowed
    return got


def one_element_in_bfloat16(case, rng, _factor):
    got = case.want["O"].astype(np.float32)
    at = tuple(rng.integers(n) for n in got.shape)
    got[at] = in_bfloat16(got)[at]
    return got


def a_little_in_the_sum(case, _rng, factor):
    return case.want["O"] / (1 + factor * 1e-6)


def one_row(case, rng, factor):
    got = case.want["O"].copy()
    got[rng.integers(len(got))] *= 1 + factor * 1e-5
    return got


def one_element_is(value):
    def disturb(case, rng, _factor):
        got = case.want["O"].copy()
        got[tuple(rng.integers(n) for n in got.shape)] = value
        return got

    disturb.__name__ = f"one_element_is_{value}"
    return disturb


def everything_is_nan(case, _rng, _factor):
    return np.full_like(case.want["O"], np.nan)


DISTURBANCES = [
    one_element,
    one_element_in_bfloat16,
    a_little_in_the_sum,
    one_row,
    *map(one_element_is, (np.nan, np.inf, -np.inf)),
    everything_is_nan,
]


def claims(disturb, causal):
    """All that is said for certain of disturbed right results."""
    found = []
    for seed in range(3):
        case = drawn(seed, causal)
        for factor in FACTORS:
            text = said(case, disturb(case, np.random.default_rng(seed), factor))
            found += [text] if "That is exactly" in text else []
    return found


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("disturb", DISTURBANCES)
def test_nothing_is_claimed(disturb, causal):
    assert claims(disturb, causal) == []


def test_a_mistake_that_is_merely_near_is_not_named(monkeypatch):
    """An error just over the tolerance lies near any known mistake of about its size."""
    want = np.array([1.0, 2.0, 3.0])
    plain = want.astype(np.float32)
    allowed = compare.TOLERANCE.limit(want, plain).allowed
    got, near = want + np.array([3 * allowed, 0, 0]), want + np.array([0, 2 * allowed, 0])

    def told():
        with pytest.raises(AssertionError) as caught:
            compare.assert_close("O", got, want, baseline=plain, mistakes={"another element is off": near})
        return str(caught.value)

    assert "That is exactly" not in told()
    monkeypatch.setattr(compare, "NEAR_SHARE", 1e9)
    monkeypatch.setattr(compare, "RIVALS", 0)
    assert "That is exactly" in told(), "this is what keeps it out"


@pytest.mark.parametrize("causal", [False, True])
def test_every_mistake_that_was_made_is_recognised(causal):
    case = drawn(0, causal)
    for cause, value in attention_mistakes(case, *BLOCKS).items():
        with np.errstate(all="ignore"):
            made = value() if callable(value) else value
        if (text := said(case, made["O"].astype(np.float32))) and " is NaN" not in text:
            assert "That is exactly" in text, (cause, text)


def said_of(folder, source, tests):
    """The messages of these tests of Lab 01 about `source`."""
    (folder / LAB.student_file.name).write_text(source, encoding="utf-8")
    run = run_forked(LAB, "--src", str(folder), "-k", tests)
    return "\n".join(line for result in run.results for line in result_lines(result))


def test_a_tests_own_hint_is_not_shown_where_plain_tests_fail_too(tmp_path):
    """What is wrong for ordinary inputs is not what a test of special ones looks for."""
    right = "weights = powers / np.where(totals == 0, 1, totals)"
    source = solution_text().replace(right, f"{right} * 0.9")
    hint = "N_q is taken for N_k somewhere"
    assert hint not in said_of(tmp_path, source, "N63-full or N5x129-full")
    assert hint in said_of(tmp_path, source, "N5x129-full")


def test_results_that_are_right_are_named():
    case = drawn(0, causal=False)
    got = {"O": case.want["O"], "L": case.want["L"] / 2, "P": case.want["P"]}
    with pytest.raises(AssertionError, match=r"L is off by .*\nO and P are right, only L is off\ngot"):
        compare.compare_each(got, lambda name: case.check(name, got[name]))
    del got["O"], got["P"]
    with pytest.raises(AssertionError, match=r"elements are off\ncompared with"):
        compare.compare_each(got, lambda name: case.check(name, got[name]))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("totals = powers.sum(axis=-1)", "one number a row, (5,), meets the rows, (5,129)"),
        ("totals = powers[..., :0].max(axis=-1, keepdims=True)", "there is nothing to reduce"),
    ],
)
def test_numpys_error_comes_with_its_usual_cause(tmp_path, line, says):
    source = solution_text().replace("totals = powers.sum(axis=-1, keepdims=True)", line)
    assert says in said_of(tmp_path, source, "N5x129-full")
