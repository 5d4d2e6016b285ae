"""Attention weights, counted whatever computes them."""

import types

import numpy as np
import pytest

from labkit.meters.weights import weights_computed

WAYS = """
import numpy as np
from numpy import exp as power

def standard_attention(Q, K, V):
    import math
    rows = [[math.exp(sum(a * b for a, b in zip(q, k))) for k in K.tolist()] for q in Q.tolist()]
    return np.array(rows) @ V

def by_name(n):
    return standard_attention(np.ones((n, 2)), np.ones((n, 2)), np.ones((n, 2)))

def by_rows(n):
    return [np.exp(np.ones(n), out=np.empty(n)) for _ in range(n)]

def imported(n):
    return power(np.ones((n, n)))

def to_base_two(n):
    return np.power(2.0, np.ones((n, n)))

def for_show(n):
    return np.ones((n, n))
"""


@pytest.fixture(scope="module")
def ways():
    module = types.ModuleType("ways")
    exec(WAYS, module.__dict__)
    return module


@pytest.mark.parametrize("way", ["by_name", "by_rows", "imported", "to_base_two"])
def test_weights_are_seen_however_they_are_computed(ways, way):
    names = dict(vars(ways))
    _, seen = weights_computed(getattr(ways, way), 5)
    assert seen[5] == 25
    assert vars(ways) == names
    assert isinstance(np.exp, np.ufunc)


def test_arrays_made_for_show_are_none(ways):
    assert weights_computed(ways.for_show, 5)[1] == {}


def test_what_was_replaced_comes_back_after_an_error(ways):
    def fails():
        np.exp(np.ones(3))
        raise KeyError

    with pytest.raises(KeyError):
        weights_computed(fails, others=[ways.by_rows])
    assert isinstance(np.exp, np.ufunc)
    assert isinstance(ways.power, np.ufunc)
