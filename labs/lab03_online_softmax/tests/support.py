"""References in float64, inputs in blocks, and the values that known mistakes lead to.

Numbers are along the last axis; leading axes are rows of their own. A state is (m, l, o): the maximum score, the sum of
exp(score − m), and the sum of exp(score − m) · value.
"""

import functools
from dataclasses import dataclass

import numpy as np
import pytest

from labkit.testing.attention.cases import array_case
from labkit.testing.attention.mistakes import pass_mistakes, scale_mistakes
from labkit.testing.compare import (
    NAN_HINT,
    TOLERANCE,
    as_array,
    assert_close,
    assert_dtype,
    assert_equal,
    assert_tuple,
    compare_each,
)

from .probes import peak_over_drawn_blocks

SPLITS = {
    "equal": (8, 8, 8, 8),
    "ragged_last": (16, 16, 5),
    "unequal": (7, 1, 20, 3),
    "one_block": (23,),
    "one_by_one": (1,) * 9,
    "random": None,
    "empty_blocks": (0, 6, 0, 0, 9, 0),
}
MASKED = {
    "first_block": (np.arange(12) < 4, "−inf − (−inf): a block of −inf changes nothing, wherever it is"),
    "last_block": (np.arange(12) >= 8, "−inf − (−inf): a block of −inf changes nothing, wherever it is"),
    "everything": (np.arange(12) >= 0, "0/0 or −inf − (−inf): such a row gives 0, and m = −inf with l = 0"),
    "another_block_in_each_row": (
        np.eye(3, dtype=bool).repeat(4, axis=1),
        "−inf − (−inf): one row's block may be masked while another's is not",
    ),
}
"""Which of twelve keys, in three blocks of four, are masked out in three rows; and the usual cause of an error."""


EMPTY = "a block may be empty, the first one too: its maximum is −inf, and −inf − (−inf) is NaN"
OVERFLOW = "exp overflows or vanishes: take the maximum so far from every number first"
OTHER_ROWS = "the row is along the last axis, the others are rows of their own: keepdims=True"


@dataclass(frozen=True)
class BlockRow:
    """Normal numbers in blocks of these lengths (None: random ones) along the last axis, and a usual cause of errors.

    With `far`, steps of 8 about that number; `hidden` ones are −inf.
    """

    lengths: tuple[int, ...] | None
    shape: tuple[int, ...] = ()
    spread: float = 3.0
    far: float = 0.0
    dtype: str = "float32"
    hidden: np.ndarray | bool = False
    hint: str = ""

    def draw(self, rng):
        lengths = lengths_of(self.lengths, rng)
        shape = (*self.shape, sum(lengths))
        x = self.far + 8 * rng.integers(-2, 3, shape) if self.far else rng.normal(0, self.spread, shape)
        return cut(np.where(self.hidden, -np.inf, x).astype(self.dtype), lengths)


def block_rows():
    """What both functions of a row in blocks must get right, as pytest's parameters."""
    dtypes = ("float16", "float32", "float64")
    exact = {
        **{name: BlockRow(lengths) for name, lengths in SPLITS.items() if name != "empty_blocks"},
        **{dtype: BlockRow((16, 16, 13), spread=2.0, dtype=dtype) for dtype in dtypes[1:]},
        "B2x3": BlockRow((4, 9, 8), (2, 3), hint=OTHER_ROWS),
        "B5-as-a-block": BlockRow((5, 5, 5), (5,), hint=OTHER_ROWS),
    }
    robust = {
        "empty_blocks": BlockRow(SPLITS["empty_blocks"], hint=EMPTY),
        "float16": BlockRow((16, 16, 13), spread=2.0, dtype="float16"),
        **{
            f"about_{far:.0f}-{dtype}": BlockRow((8, 8, 8, 5), far=far, dtype=dtype, hint=OVERFLOW)
            for far in (1e4, -3e4)
            for dtype in dtypes
        },
        **{
            f"masked-{name}": BlockRow((4, 4, 4), (3,), spread=1.0, hidden=hidden, hint=hint)
            for name, (hidden, hint) in MASKED.items()
        },
    }
    rows = [pytest.param(row, id=name) for name, row in exact.items()]
    return rows + [pytest.param(row, id=name, marks=pytest.mark.robust) for name, row in robust.items()]


def blocks_by_name(blocks, name="x_blocks"):
    """Blocks by what they are called in a message."""
    return {f"{name}[{i}]": block for i, block in enumerate(blocks)}


def cut(x, lengths, axis=-1):
    """`x` in blocks of these lengths along one axis."""
    return np.split(x, np.cumsum(lengths)[:-1], axis=axis)


def lengths_of(split, rng):
    """The lengths of a split of SPLITS; those of the random one are drawn."""
    return split if split else tuple(int(n) for n in rng.integers(1, 12, 6))


def softmax_of_row(x, dtype=np.float64):
    """(weights, m, l) of the whole row, every step in `dtype`, sums from left to right."""
    x = np.asarray(x).astype(dtype)
    m = x.max(axis=-1, initial=-np.inf)
    powers = np.exp(x - finite(m)[..., None])
    l = np.add.accumulate(powers, axis=-1)[..., -1] if x.shape[-1] else np.zeros_like(m)
    return powers / np.where(l == 0, 1, l)[..., None], m, l


def weights_tolerance(x):
    """The error allowed of weights computed as exp(x − L), with a log-sum-exp L in float32 at least."""
    return TOLERANCE if x.dtype == np.float16 else TOLERANCE.for_scores(x)


def finite(m):
    """`m` with 0 for −inf."""
    return np.where(np.isneginf(m), 0, m)


def assert_near(name, got, want, baseline, mistakes, hint="", dtype=None, tolerance=TOLERANCE, nan_hint=""):
    """As `assert_close`, where the hint is for NaN too, and `mistakes()` are made only when something is off."""
    with np.errstate(all="ignore"):
        assert_close(
            name,
            got,
            want,
            baseline=baseline,
            tolerance=tolerance,
            dtype=dtype,
            mistakes=mistakes,
            hint=hint,
            nan_hint=nan_hint or hint or NAN_HINT,
        )


def assert_parts(names, got, want, baseline, mistakes, hint=""):
    """Compare the parts of a tuple by their names; mistakes are tuples of the same parts."""

    def check(name):
        i = names.index(name)

        def of_this_part():
            return {cause: values[i] for cause, values in mistakes().items()}

        assert_near(name, got[i], want[i], baseline[i], of_this_part, hint)
        assert_dtype(name, as_array(name, got[i]), np.asarray(baseline[i]).dtype)

    compare_each(names, check)


def peak_bytes(rng, task, *arguments):
    """The peak of a call in which each (shape, number of blocks) becomes blocks; all must be asked for."""
    n_blocks = sum(each[1] for each in arguments if isinstance(each, tuple))
    seeds = rng.integers(0, 2**32, n_blocks)
    given = [(each[0], seeds[: each[1]]) if isinstance(each, tuple) else each for each in arguments]
    peak, n_asked = peak_over_drawn_blocks(task, *given)
    assert_equal("the number of blocks asked for", n_asked, n_blocks)
    return peak


# Softmax


def axis_mistakes(x, axis):
    """Softmax along other axes than the one asked for."""
    others = [other for other in range(x.ndim) if other != axis % x.ndim]
    found = {
        f"the weights add up to 1 along axis {other}": np.moveaxis(
            softmax_of_row(np.moveaxis(x, other, -1))[0], -1, other
        )
        for other in others
    }
    if found:
        all_together = softmax_of_row(x.reshape(-1))[0].reshape(x.shape)
        found["one maximum or one sum serves all rows together"] = all_together
    return found


def stats_mistakes(blocks):
    """(m, l) as known mistakes have them."""
    x = np.concatenate(blocks, axis=-1).astype(np.float64)
    _, m, l = softmax_of_row(x)
    above_0 = np.maximum(m, 0)
    top, of_last = x.max(initial=-np.inf), softmax_of_row(blocks[-1])[1]
    sums = [powers.sum(-1) for powers in _powers_at_the_time(blocks)]
    known = np.stack([softmax_of_row(block)[1] for block in blocks])
    so_far = np.maximum.accumulate(known)
    factors = np.exp(so_far[:-1] - finite(so_far[1:]))
    swapped = sums[0] + sum(
        f * s for f, s in zip(np.where(np.isneginf(so_far[:-1]), 1, factors), sums[1:], strict=True)
    )
    return {
        "l is not rescaled when the maximum moves": (m, np.asarray(sum(sums))),
        "l keeps only the last block": (m, sums[-1]),
        "the factor that rescales meets the new block, and not the l before": (m, np.asarray(swapped)),
        "m starts at 0: it must lie below every score": (above_0, np.exp(x - above_0[..., None]).sum(-1)),
        "l comes first: the result is (m, l)": (l, m),
        "the maximum is that of the last block": (of_last, np.exp(x - finite(of_last)[..., None]).sum(-1)),
        "the maximum is taken over all rows together": (np.full_like(m, top), np.exp(x - finite(top)).sum(-1)),
    }


def weights_mistakes(blocks):
    """The joined weights as known mistakes have them."""
    x = np.concatenate(blocks, axis=-1).astype(np.float64)
    l = softmax_of_row(x)[2]
    ends = np.cumsum([block.shape[-1] for block in blocks])
    so_far = [softmax_of_row(x[..., :end])[0][..., end - b.shape[-1] :] for b, end in zip(blocks, ends, strict=True)]
    at_the_time = np.concatenate(_powers_at_the_time(blocks), axis=-1)
    return {
        "each block keeps the maximum known at its time": at_the_time / np.where(l == 0, 1, l)[..., None],
        "each block is divided by the l known at its time": np.concatenate(so_far, axis=-1),
        "each block is a softmax of its own": np.concatenate([softmax_of_row(b)[0] for b in blocks], axis=-1),
    }


def _powers_at_the_time(blocks):
    """exp(x − m) of each block, with the maximum known at its time."""
    peaks = np.stack([block.max(axis=-1, initial=-np.inf) for block in blocks], axis=-1).astype(np.float64)
    known = finite(np.maximum.accumulate(peaks, axis=-1))
    return [np.exp(block - known[..., j, None]) for j, block in enumerate(blocks)]


# Attention of one query


def three_lengths(n):
    """The lengths of three blocks of n keys together, or of n blocks where there are fewer."""
    return [len(block) for block in np.array_split(np.arange(n), max(1, min(3, n)))]


def in_blocks(Q, K, V, lengths=None):
    """The query (..., d) of Q (..., 1, d), and blocks of the keys and values, of these lengths or as long as may be."""
    lengths = lengths or three_lengths(K.shape[-2])
    return Q[..., 0, :], cut(K, lengths, -2), cut(V, lengths, -2)


def masked_row(rng, hidden):
    """A query for each of three heads, and twelve keys, of which `hidden` ones are masked out.

    The query has a last feature of 1, a key one of −inf or 0.
    """
    case = array_case(rng, n_queries=1, n_keys=12, d=9, d_v=4, batch=(3,))
    case.mask = np.broadcast_to(hidden, (3, 12))[:, None, :]
    case.Q[..., -1], case.K[..., -1] = 1, np.where(hidden, -np.inf, 0)
    return case


def output_mistakes(case, lengths):
    """One query's output as known mistakes have it, whose keys come in blocks of these lengths."""
    ends = np.cumsum(lengths)
    found = pass_mistakes(case, [slice(end - n, end) for n, end in zip(lengths, ends, strict=True)])
    found |= {cause: functools.partial(case.results, scale=scale) for cause, scale in scale_mistakes(case).items()}
    if len(lengths) > 1:
        last = np.arange(case.n_keys) >= ends[-2]
        found["the last block is dropped"] = functools.partial(case.results, hidden=case.hidden | last)
    return {cause: made()["O"][..., 0, :] for cause, made in found.items()}


def assert_output(case, got, lengths=None, hint="", nan_hint=""):
    """Compare the output of one query, whose keys come in blocks of these lengths, and name a known mistake."""
    want, baseline = (made["O"][..., 0, :] for made in (case.want, case.baseline))
    usual = functools.partial(output_mistakes, case, lengths or three_lengths(case.n_keys))
    assert_near("the output", got, want, baseline, usual, hint, case.Q.dtype, case.tolerance, nan_hint)


# States


def state_of(scores, V, dtype=None):
    """The state of a set of keys, computed in float64 and rounded to `dtype` (that of the scores, when None)."""
    s = scores.astype(np.float64)
    m = s.max(axis=-1, initial=-np.inf)
    powers = np.exp(s - finite(m)[..., None])
    o = (powers[..., None, :] @ V.astype(np.float64))[..., 0, :]
    return tuple(np.asarray(x, dtype or scores.dtype)[()] for x in (m, powers.sum(axis=-1), o))


def no_keys(batch=()):
    """The state of no keys, as arrays, with values of width 4."""
    return np.full(batch, -np.inf, np.float32)[()], np.zeros(batch, np.float32)[()], np.zeros((*batch, 4), np.float32)


def two_states(rng, d_v=4, batch=(), dtype=np.float32, offset=0.0):
    """States of 7 keys and of 5, with scores about `offset`, and of all 12 in float64.

    Their maxima are 2.5 to 4 apart: the lower state counts for some percent, so that it shows when a merge forgets it,
    or its rescaling, in half precision too.
    """
    s = rng.normal(0, 3, (*batch, 12)) + offset
    gap = rng.uniform(2.5, 4, (*batch, 1)) * rng.choice([-1, 1], (*batch, 1))
    s[..., 7:] += s[..., :7].max(-1, keepdims=True) - s[..., 7:].max(-1, keepdims=True) + gap
    s = s.astype(dtype)
    V = rng.standard_normal((*batch, 12, d_v)).astype(dtype)
    return state_of(s[..., :7], V[..., :7, :]), state_of(s[..., 7:], V[..., 7:, :]), state_of(s, V, np.float64)


def states_of_parts(rng, sizes, spread):
    """The states of sets of keys of these sizes, some keys masked; and the state of all together."""
    s, V = rng.normal(0, spread, (2, sum(sizes))), rng.standard_normal((2, sum(sizes), 3))
    s[rng.random(s.shape) < 0.2] = -np.inf
    parts = zip(cut(s, sizes), cut(V, sizes, -2), strict=True)
    return [state_of(*part) for part in parts], state_of(s, V)


def merge_mistakes(state_a, state_b, want):
    """A merged state as known mistakes have it; `want` is right."""
    (m_a, l_a, o_a), (m_b, l_b, o_b), (m, l, o) = (map(np.float64, state) for state in (state_a, state_b, want))
    w_a, w_b = l_a * np.exp(m_a - finite(m)), l_b * np.exp(m_b - finite(m))
    averaged = (w_a[..., None] * o_a + w_b[..., None] * o_b) / np.where(l == 0, 1, l)[..., None]
    larger = m_a >= m_b
    alone = np.where(larger, w_a, w_b), np.where(larger[..., None], w_a[..., None] * o_a, w_b[..., None] * o_b)
    of_second = np.exp(finite(m) - finite(m_b))
    return {
        "the rescaled states are averaged: they are added": (m, l / 2, o / 2),
        "the state with the smaller maximum is left out: it counts, however far below it lies": (m, *alone),
        "m is the second state's: it is the larger of the two": (m_b, l * of_second, o * of_second[..., None]),
        "l and o are added without rescaling": (m, l_a + l_b, o_a + o_b),
        "l and o are averaged": (m, (l_a + l_b) / 2, (o_a + o_b) / 2),
        "o is taken for divided by l, and averaged: it is Σ exp(s − m)·v, undivided": (m, l, averaged),
        "o is divided by l: it is to stay undivided": (m, l, o / np.where(l == 0, 1, l)[..., None]),
    }


def assert_state(got, want, dtype, mistakes=dict, hint=""):
    """Compare a state in `dtype` with `want`, a state in float64, each part by its name."""
    got = assert_tuple("merge_states's result", got, ("m", "l", "o"))
    baseline = [np.asarray(part).astype(dtype) for part in want]
    assert_parts("mlo", got, want, baseline, mistakes, hint)
