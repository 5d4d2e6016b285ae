"""Plain computations are made as far as they decide, and of the inputs as they were."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from labkit.testing import margins
from labkit.testing.attention.tensor_cases import Case
from labkit.testing.compare import assert_close, tolerance
from labkit.testing.lazily import Lazily

WANT = np.array([1.0, 2.0])


@pytest.fixture
def made():
    """The errors of the plain computations that were made."""
    return []


@pytest.fixture
def plain(made):
    """Three of them, each ten times as far off as the one before."""

    def maker(error):
        def make():
            made.append(error)
            return (WANT + error).astype(np.float32)

        return make

    return Lazily([maker(error) for error in (0.01, 0.1, 1.0)])


@pytest.mark.parametrize(("off", "needed"), [(0.02, [0.01]), (0.2, [0.01, 0.1]), (2.0, [0.01, 0.1, 1.0])])
def test_no_more_are_made_than_decide(made, plain, off, needed):
    for _ in range(2):
        assert_close("O", WANT + off, WANT, plain=plain)
    assert made == needed


def test_the_worst_of_all_is_told(made, plain):
    with pytest.raises(AssertionError, match=r"off by 9\.5.*rounding explains 4"):
        assert_close("O", WANT + 9.5, WANT, plain=plain)
    assert made == [0.01, 0.1, 1.0]


def test_whoever_asks_for_margins_gets_those_of_all(plain, monkeypatch):
    monkeypatch.setattr(margins, "kept", [])
    assert_close("O", WANT + 0.02, WANT, plain=plain)
    assert [margin.share for margin in margins.kept] == [pytest.approx(0.02 / tolerance(WANT, plain))]


def test_it_is_a_sequence(made, plain):
    both = plain.map(lambda x: x - WANT) + plain
    assert len(both) == 6
    assert both[1] == pytest.approx(0.1, abs=1e-6)
    assert made == [0.1]
    assert [float(x[0]) for x in both] == pytest.approx([0.01, 0.1, 1.0, 1.01, 1.1, 2.0], abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_inputs_that_change_later_change_nothing(dtype):
    changed, still = (Case(np.random.default_rng(0), n=9, causal=True, dtype=dtype) for _ in range(2))
    plain = changed.plain
    for x in (*changed.inputs, changed.dO):
        x.fill_(7)
    for name, each in still.plain.items():
        for mine, other in zip(plain[name], each, strict=True):
            np.testing.assert_array_equal(mine, other)
