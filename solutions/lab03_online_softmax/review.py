"""What every right online_softmax.py does, and no wrong one."""

import itertools

import numpy as np
import pytest
from online_softmax import merge_states, online_attention, online_softmax, online_softmax_stats, safe_softmax

from labkit.meters.arrays import BOOKKEEPING_BYTES, measure_arrays, uninitialised_is_nan

TOLERANCES = {np.float64: 1e-11, np.float32: 1e-4, np.float16: 1e-2}
CUTS = [[5, 0, 7, 1, 3], [0, 16], [4, 4, 4, 4]]  # lengths of blocks, 16 in all
every = pytest.mark.parametrize(("batch", "dtype"), list(itertools.product([(), (3,), (2, 3)], TOLERANCES)))


def near(got, want, dtype, tolerance=None):
    assert np.asarray(got).dtype == dtype and np.shape(got) == np.shape(want)
    assert np.allclose(got, np.float64(want), *[tolerance or TOLERANCES[dtype]] * 2)


def scores(rng, batch, dtype):
    """Rows of scores: ordinary, far above and below one another, hidden at the start, at places, throughout."""
    x = rng.normal(size=(*batch, 16))
    hidden = np.where(np.isin(np.arange(16), [0, 1, 2, 3, 4, 5, 9]), -np.inf, x)
    one_row = hidden.copy()
    one_row[(0,) * len(batch)] = -np.inf
    far = [] if dtype == np.float16 else [x + 5e3 * rng.normal(size=(*batch, 1)), x - 5e4, one_row - 3e4]
    return [each.astype(dtype) for each in (x, hidden, one_row, *far)]


def stats(x):
    """m, l and the weights in float64."""
    x = np.float64(x)
    m = x.max(-1, initial=-np.inf)
    powers = np.exp(x - np.where(m == -np.inf, 0, m)[..., None])
    l = powers.sum(-1)
    return m, l, powers / np.where(l == 0, 1, l)[..., None]


def passing(x, cut, axis=-1):
    """Blocks that become NaN when the next one is asked for, and may not be written into meanwhile."""
    for end, length in zip(itertools.accumulate(cut), cut, strict=True):
        block = x.take(range(end - length, end), axis)
        before = block.copy()
        yield block
        assert np.array_equal(block, before, equal_nan=True)
        block.fill(np.nan)


def peak_of(function, *arrays, n=96):
    """The peak of a call with `n` blocks, each made when it is asked for, in blocks."""
    peak = measure_arrays(lambda: function(*(map(x.__add__, range(n)) for x in arrays))).peak_bytes
    return (peak - BOOKKEEPING_BYTES) / arrays[0].nbytes


@every
def test_safe_softmax(rng, batch, dtype):
    for x, axis in itertools.product(scores(rng, batch, dtype), range(-1, len(batch))):
        before, moved = x.copy(), np.moveaxis(x, axis, -1)
        near(np.moveaxis(safe_softmax(x, axis), axis, -1), stats(moved)[2], dtype)
        assert np.array_equal(x, before)
    with pytest.raises(ValueError, match="axis"):
        safe_softmax(np.ones((2, 3)), 2)


@every
def test_online_softmax(rng, batch, dtype):
    for x, cut in itertools.product(scores(rng, batch, dtype), CUTS):
        rounded = np.finfo(dtype).eps * np.abs(x[np.isfinite(x)]).max(initial=0)  # of the scores, in exp(x − L)
        near(online_softmax(passing(x, cut)), stats(x)[2], dtype, TOLERANCES[dtype] + 2 * rounded)
    assert online_softmax([]).shape == (0,) == online_softmax(iter(())).shape
    assert peak_of(online_softmax, np.ones((*batch, 256), np.float32)) <= 2.5 * 96 + 14


@every
def test_online_softmax_stats(rng, batch, dtype):
    for x, cut in itertools.product(scores(rng, batch, dtype), CUTS):
        for got, want in zip(online_softmax_stats(passing(x, cut)), stats(x)[:2], strict=True):
            near(got, want, dtype)
    assert online_softmax_stats([]) == (-np.inf, 0)
    assert peak_of(online_softmax_stats, np.ones((*batch, 128))) <= 14


@every
@pytest.mark.parametrize("scale", [None, 0.0, np.float64(0.3)])
def test_online_attention(rng, batch, dtype, scale):
    for s, cut in itertools.product(scores(rng, batch, dtype), CUTS):
        Q, K, V = (rng.normal(size=(*batch, *size)).astype(dtype) for size in ((5,), (16, 5), (16, 3)))
        Q[..., 0], K[..., 0] = 1, np.where(np.isneginf(s) & (scale == 0), 0, s)
        S = (np.float64(K) @ np.float64(Q)[..., None])[..., 0] * (5**-0.5 if scale is None else scale)
        before = Q.copy()
        with uninitialised_is_nan():
            got = online_attention(Q, passing(K, cut, -2), passing(V, cut, -2), scale)
        near(got, (stats(S)[2][..., None, :] @ np.float64(V))[..., 0, :], dtype, 1e-9 if dtype == np.float64 else 1e-2)
        assert np.array_equal(Q, before)
    Q, K, V = (rng.normal(size=size) for size in (5, (50, 5), (50, 3)))
    for keys, values in (([K, K[:, :4]], [V, V]), ([K, K], [V, V[:1]]), ([K, K], [V]), ([K], [V, V]), ([], [])):
        with pytest.raises(ValueError, match=r"."):
            online_attention(Q, iter(keys), iter(values))
    assert peak_of(lambda *both: online_attention(np.stack([Q, Q]), *both), np.stack([K, K]), np.stack([V, V])) <= 24


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_merge_states(rng, dtype):
    x, V = rng.normal(size=(3, 3, 12)) * 8 + 5e3 * rng.integers(-1, 2, (3, 1, 1)), rng.normal(size=(3, 3, 12, 3))
    x[0, 0], x[1, :2, :4], x[2, 2, 4:], x[..., 4] = -np.inf, -np.inf, -np.inf, x[..., 4] - 6e2

    def state(first, last):
        m, l, weights = stats(x[..., first:last])
        o = (weights[..., None, :] @ V[..., first:last, :])[..., 0, :] * l[..., None]
        return tuple(value.astype(dtype) for value in (m, l, o))

    a, b, c, nothing = state(0, 4), state(4, 8), state(8, 12), (-np.inf, 0.0, 0.0)
    before = [value.copy() for value in (*a, *b, *c)]
    for got in (merge_states(merge_states(a, b), c), merge_states(c, merge_states(b, a))):
        for value, right in zip(got, state(0, 12), strict=True):
            near(value, right, dtype, 1e-3 if dtype == np.float32 else 1e-9)
    assert all(map(np.array_equal, (*a, *b, *c), before))
    for merged in (merge_states(nothing, a), merge_states(a, nothing)):
        assert all(map(np.array_equal, merged, a))
