"""The usual mistakes of attention, each with the value it leads to: scale, causality, masks, blocks, running sums.

`scale_mistakes` gives the scale that each comes to, `mask_mistakes` the keys that are then hidden. The others give
functions that return results by name, for `Case.check`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from labkit.testing.attention.cases import Case, Results, later_keys
from labkit.testing.attention.reference import attention

MIN_LOG = -104
"""Below it, exp of a number is 0 in float32."""
MAXIMUM_FIRST = "the maximum is taken before keys are hidden: the powers of those that are seen are lost, or 0/0"
Made = dict[str, Callable[[], Results]]
Hidden = dict[str, npt.NDArray[np.bool_]]


def attention_mistakes(case: Case, block_q: int = 0, block_k: int = 0) -> Made:
    """All usual mistakes of a forward pass. Without block sizes those of tiles are left out."""
    found: Made = {
        text: lambda scale=scale: case.results(scale=scale)  # type: ignore[misc]
        for text, scale in scale_mistakes(case).items()
    }
    found |= {
        text: lambda hidden=hidden: case.results(hidden=hidden)  # type: ignore[misc]
        for text, hidden in mask_mistakes(case, block_q, block_k).items()
    }
    return found | row_mistakes(case) | (block_mistakes(case, block_q, block_k) if block_k else {})


def scale_mistakes(case: Case) -> dict[str, float]:
    """Usual mistakes with 1/√d, or with a scale that is given: the scale that each comes to."""
    d, d_v, n_keys = case.Q.shape[-1], case.V.shape[-1], case.n_keys
    if case.scale is not None:
        normal = d**-0.5
        if case.scale == 0:
            return {"scale=0.0 is taken for None, as `scale or …` does": normal}
        return {
            "the scale given is not used, but 1/√d": normal,
            "the scale given is used besides 1/√d": case.scale * normal,
        }
    found = {
        "the scores are not divided by √d": 1.0,
        "the scores are divided by d instead of √d": 1 / d,
        "the scores are multiplied by √d": d**0.5,
    }
    if d_v != d:
        found["the scale is taken from the width of V instead of Q's: √d_v instead of √d"] = d_v**-0.5
    if n_keys not in (0, d):
        found["the scale is taken from the number of keys instead of d"] = n_keys**-0.5
    return found


def mask_mistakes(case: Case, block_q: int = 0, block_k: int = 0) -> Hidden:
    """Usual mistakes with what a query sees: the keys that are hidden then, (..., N_q, N_k)."""
    found = causal_mistakes(case) if case.causal else {}
    if block_k:
        found |= last_block_mistakes(case, block_k)
        if case.causal and block_q:
            found |= tile_mistakes(case, block_q, block_k)
    if case.mask is None:
        return found
    found = {text: hidden | case.mask for text, hidden in found.items()}
    own = later_keys(case.n_queries, case.n_keys, 1 if case.causal else case.n_keys)
    found["the mask is ignored"] = own
    found["True is taken as 'keep': here True means masked out"] = own | ~case.mask
    if case.mask.ndim > 2:
        found["the first mask of the batch is used for all"] = own | case.mask[(0,) * (case.mask.ndim - 2)]
    if block_k and case.mask.shape[-1] == case.n_keys > block_k:
        first = np.take(case.mask, np.arange(case.n_keys) % block_k, axis=-1)
        found["every tile gets the mask of the first block of keys"] = own | first
    return found


def causal_mistakes(case: Case) -> Hidden:
    """Usual mistakes with causality itself: the keys hidden then."""
    n_queries, n_keys = case.n_queries, case.n_keys
    found = {
        "causal is ignored": later_keys(n_queries, n_keys, n_keys),
        "a query does not see the key of its own number: it sees j ≤ i": later_keys(n_queries, n_keys, 0),
        "a query sees one key too many: j ≤ i + 1": later_keys(n_queries, n_keys, 2),
        "earlier keys are hidden instead of later ones": ~later_keys(n_queries, n_keys, 0),
    }
    if n_queries != n_keys:
        from_the_end = later_keys(n_queries, n_keys, 1 + n_keys - n_queries)
        found["the diagonal is counted from the last key, from the bottom right: query 0 sees key 0 alone"] = (
            from_the_end
        )
    return found


def tile_mistakes(case: Case, block_q: int, block_k: int) -> Hidden:
    """Usual mistakes with the tiles that causality leaves out or cuts: the keys hidden then."""
    i, j = np.arange(case.n_queries)[:, None], np.arange(case.n_keys)
    row, column, square = i // block_q, j // block_k, min(block_q, block_k)
    first_key, first_query = column * block_k, row * block_q
    last_query = np.minimum(first_query + block_q, case.n_queries) - 1
    later, above = j > i, first_key > last_query
    within = j % block_k > i % block_q
    return {
        "positions are compared inside the tile, not in the whole sequence": within | above,
        "positions are compared inside the tile, not in the whole sequence, and no tile is left out": within,
        "the queries' positions alone are counted within the tile": j > i % block_q,
        "the keys' positions alone are counted within the tile": j % block_k > i,
        "positions are compared inside the tile, not in the whole sequence, where the diagonal crosses it": above
        | (within & (first_key + block_k - 1 > first_query)),
        "tiles that the diagonal crosses are taken whole": above,
        "a tile that begins left of the diagonal is taken whole, even where the diagonal crosses it": above
        | (later & (first_key > first_query)),
        "only tiles (I, J) with I = J are masked, which is right for square tiles only": above
        | (later & (row == column)),
        "only tiles (I, J) with I = J are masked, and no tile is left out": later & (row == column),
        "only tiles whose first key and first query have one position are masked": above
        | (later & (first_key == first_query)),
        "only tiles whose first key and first query have one position are masked, and no tile is left out": later
        & (first_key == first_query),
        "tiles that the diagonal crosses are left out": first_key + block_k - 1 > first_query,
        "the first query of a tile decides whether it is skipped, but its last one sees the most": later
        | (first_key > first_query),
        "a block of keys is skipped one too early: the last one that the queries see is left out": later
        | (column >= np.minimum(last_query, case.n_keys - 1) // block_k),
        "the number of blocks of keys is rounded down: the last one that the queries see is left out": later
        | (column >= (last_query + 1) // block_k),
        "a block of queries is skipped one too late: the first one that sees the keys is left out": later
        | (row <= first_key // block_q),
        "tile (I, J) is taken when J ≤ I, which is right for square tiles only": later | (column > row),
        "one block size is used for both when tiles are skipped": later | (j // square > i // square),
    }


def last_block_mistakes(case: Case, block_k: int) -> Hidden:
    """Whole blocks alone are gone through: the keys hidden then."""
    whole = case.n_keys // block_k * block_k
    if whole in (0, case.n_keys):
        return {}
    return {"the last, smaller block of keys is left out": case.hidden | (np.arange(case.n_keys) >= whole)}


def row_mistakes(case: Case) -> Made:
    """Usual mistakes with rows and their softmax, whatever the blocks are."""
    found: Made = {
        "the rows are not divided by their sums": lambda: _of_weights(case, _powers(case)),
        "hidden scores are 0 instead of −inf": lambda: _of_scores(case, np.where(case.hidden, 0, _all_scores(case))),
        "exp overflows, and nan_to_num makes 0 of inf/inf": lambda: _of_weights(case, _overflowed(case)),
        "the softmax runs over the queries (axis −2) instead of the keys": lambda: _of_weights(
            case, _softmax(case.scores, axis=-2)
        ),
        "the softmax runs over the whole matrix: each row must sum to 1": lambda: _of_weights(
            case, _softmax(case.scores, axis=(-2, -1))
        ),
    }
    if _fits_without_keepdims(case.scores.shape):
        for where in ("the maximum is", "the sum is", "maximum and sum are"):
            text = f"{where} taken without keepdims=True (torch: keepdim): entry (i, j) meets row j's, not row i's"
            found[text] = lambda where=where: _of_weights(case, _softmax_without_keepdims(case.scores, where))  # type: ignore[misc]
    if not _without_key(case).any():  # of rows without any key the mistakes below say more
        found |= _large_numbers(case, np.zeros_like(case.hidden))
    if case.hidden.any():
        found[MAXIMUM_FIRST] = lambda: _of_weights(case, weights_below_hidden(case, np.zeros_like(case.hidden)))
    else:
        found = {text: made for text, made in found.items() if not text.startswith("hidden scores")}
    if case.Q.ndim > 2:
        found["only the first entry of the batch is computed, and the others stay 0"] = lambda: _first_entry(case)
    if _without_key(case).any():
        found |= {
            "a row without any key is spread evenly over all of them": lambda: _spread(case, 1 / case.n_keys),
            "a large number, not −inf, is taken from hidden scores: a row without any key sees them all": lambda: (
                _spread(case, _softmax(_all_scores(case), axis=-1))
            ),
            "a row without any key is computed like the others: −inf − (−inf), or 0/0": lambda: _spread(case, np.nan),
        }
    return found


def block_mistakes(case: Case, block_q: int, block_k: int) -> Made:
    """Usual mistakes with sums over blocks of keys, and with the last blocks, which are smaller."""
    found = pass_mistakes(case, [slice(start, start + block_k) for start in range(0, case.n_keys, block_k)])
    if block_q and case.causal and not _without_key(case).any():
        first_key = np.arange(case.n_keys) // block_k * block_k
        last_query = np.arange(case.n_queries) // block_q * block_q + block_q - 1
        skipped = first_key > np.minimum(last_query, case.n_queries - 1)[:, None]
        found |= {
            f"{text}, in the tiles that are computed": made for text, made in _large_numbers(case, skipped).items()
        }
        found[f"{MAXIMUM_FIRST}, in the tiles that are computed"] = lambda: _of_weights(
            case, weights_below_hidden(case, skipped)
        )
    found["m starts at 0: it must lie below every score"] = lambda: _from_zero(case)
    if (case.scores.max(-1, initial=-np.inf) < MIN_LOG).any():
        found["m starts at 0, far above all scores of a row: its powers and l are 0, and 0/0 is NaN"] = lambda: (
            _from_zero(case, divided=True)
        )
    if case.n_keys % block_k:
        found["keys behind the end of the last block score 0 instead of −inf, and weigh something"] = lambda: _padded(
            case, block_k
        )
    if case.n_keys > block_k and case.n_keys % block_k:
        found["the last block of keys is moved back to full size, so that keys count twice"] = lambda: _twice(
            case, block_k
        )
    if block_q and case.n_queries > block_q and case.n_queries % block_q:
        found["the last, smaller block of queries is left as it was allocated"] = lambda: _rows_left(case, block_q)
    return found


def matrix_mistakes(case: Case) -> Made:
    """Usual mistakes with a whole matrix of weights, besides those that all forms of attention share."""

    def masked_late() -> Results:
        late = np.where(case.hidden, 0.0, case.results(hidden=np.zeros_like(case.hidden))["P"])
        return _of_weights(case, late)

    found: Made = {"the scores are returned instead of the weights": lambda: case.want | {"P": case.scores}}
    if case.mask is not None:
        found["the mask is applied after the softmax, so that rows no longer sum to 1"] = masked_late
    return found


def pass_mistakes(case: Case, parts: Sequence[slice]) -> Made:
    """Usual mistakes with m, l and o in one pass over these parts of the keys."""

    def summed(**how: bool) -> Callable[[], Results]:
        _, _, V = case.exact_inputs
        return lambda: blockwise([case.scores[..., p] for p in parts], [V[..., p, :] for p in parts], **how)

    found = {
        "nothing is rescaled when the maximum moves, neither l nor o": summed(rescale_l=False, rescale_o=False),
        "l is not rescaled when the maximum moves": summed(rescale_l=False),
        "the output so far is not rescaled when the maximum moves (l is)": summed(rescale_o=False),
        "the output is not divided by l at the end": summed(divide=False),
        "the output of each block replaces those before, instead of being added": summed(add_o=False),
        "each block is divided by the l known at its time": summed(divide_each=True, divide=False),
        "each block is divided by the l known at its time, and the whole by l once more": summed(divide_each=True),
        "the factor that rescales is upside down: exp(m_new − m_old)": summed(upside_down=True),
        "the factor that rescales meets the new block, and not what was added up before": summed(swapped=True),
        "each block of keys has a softmax of its own, and their outputs are averaged": lambda: _averaged(case, parts),
        "each block of keys has a softmax of its own, and their outputs are added": lambda: _averaged(
            case, parts, times=len(parts)
        ),
    }
    if case.hidden.any():
        found["a block without a key that the row sees gives −inf − (−inf)"] = summed(guarded=False)
    return found


def blockwise(
    score_blocks: Sequence[npt.NDArray],
    V_blocks: Sequence[npt.NDArray],
    *,
    rescale_l: bool = True,
    rescale_o: bool = True,
    add_o: bool = True,
    divide: bool = True,
    divide_each: bool = False,
    guarded: bool = True,
    upside_down: bool = False,
    swapped: bool = False,
) -> Results:
    """One pass over blocks of keys in float64, with the mistakes that are asked for; its weights mean nothing.

    Scores are (..., N_q, length of the block), −inf where hidden, values (..., length of the block, d_v). Without
    `guarded` a row that has seen no key yet gets exp(−inf − (−inf)).
    """
    m = np.full((*score_blocks[0].shape[:-1], 1), -np.inf)
    l, o = np.zeros_like(m), np.zeros((1, V_blocks[0].shape[-1]))
    with np.errstate(all="ignore"):
        for scores, V in zip(score_blocks, V_blocks, strict=True):
            m_new = np.maximum(m, scores.max(-1, keepdims=True, initial=-np.inf))
            shift = np.where(np.isneginf(m_new), 0, m_new) if guarded else m_new
            powers, alpha = np.exp(scores - shift), np.exp(m - shift)
            alpha = np.where(m > -np.inf, 1 / alpha, 0) if upside_down else alpha
            if swapped:
                powers, alpha = np.where(m > -np.inf, alpha, 1) * powers, np.ones_like(alpha)
            l = (alpha * l if rescale_l else l) + powers.sum(-1, keepdims=True)
            share = powers / np.where(l == 0, 1, l) if divide_each else powers
            o = share @ V + ((alpha * o if rescale_o else o) if add_o else 0)
            m = m_new
        output = o / np.where(l == 0, 1, l) if divide else o
        return {"O": output, "P": np.full((*m.shape[:-1], 1), np.nan), "L": (m + np.log(l))[..., 0]}


def _without_key(case: Case) -> npt.NDArray:
    shape = (*case.hidden.shape[:-2], case.n_queries, case.n_keys)
    return np.asarray(np.broadcast_to(case.hidden, shape).all(-1, keepdims=True))


def _spread(case: Case, weight: npt.ArrayLike) -> Results:
    weights = np.where(_without_key(case), weight, case.want["P"])
    return _of_weights(case, weights)


def _first_entry(case: Case) -> Results:
    first = (0,) * (case.Q.ndim - 2)
    O, P = np.zeros_like(case.want["O"]), np.zeros_like(case.want["P"])
    O[first], P[first] = case.want["O"][first], case.want["P"][first]
    return case.want | {"O": O, "P": P}


def _of_weights(case: Case, weights: npt.NDArray) -> Results:
    _, _, V = case.exact_inputs
    return case.want | {"O": weights @ V, "P": weights}


def _of_scores(case: Case, scores: npt.NDArray) -> Results:
    lse = scores.max(-1) + np.log(np.exp(scores - scores.max(-1, keepdims=True)).sum(-1))
    return _of_weights(case, _softmax(scores, axis=-1)) | {"L": lse}


def _all_scores(case: Case) -> npt.NDArray:
    Q, K, _ = case.exact_inputs
    return case.used_scale * np.einsum("...id,...jd->...ij", Q, K)


def _powers(case: Case) -> npt.NDArray:
    top = case.scores.max(-1, keepdims=True, initial=-np.inf)
    return np.exp(case.scores - np.where(np.isfinite(top), top, 0))


def _softmax(scores: npt.NDArray, axis: int | tuple[int, ...]) -> npt.NDArray:
    top = scores.max(axis, keepdims=True, initial=-np.inf)
    powers = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = powers.sum(axis, keepdims=True)
    return powers / np.where(total == 0, 1, total)


def _fits_without_keepdims(shape: tuple[int, ...]) -> bool:
    """Whether a number a row, (..., N_q), broadcasts against the scores."""
    return all(n in (1, other) for n, other in zip(shape[-2::-1], shape[::-1], strict=False))


def _softmax_without_keepdims(scores: npt.NDArray, where: str) -> npt.NDArray:
    top = scores.max(-1, keepdims="maximum" not in where, initial=-np.inf)
    powers = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = powers.sum(-1, keepdims="sum" not in where)
    return powers / np.where(total == 0, 1, total)


def _averaged(case: Case, parts: Sequence[slice], times: int = 1) -> Results:
    hidden = np.broadcast_to(case.hidden, (*case.hidden.shape[:-2], case.n_queries, case.n_keys))
    Q, K, V = case.exact_inputs
    each = [attention(Q, K[..., p, :], V[..., p, :], mask=hidden[..., p], scale=case.used_scale).output for p in parts]
    return case.want | {"O": np.mean(each, axis=0) * times}


def _twice(case: Case, block_k: int) -> Results:
    order = np.r_[: case.n_keys // block_k * block_k, case.n_keys - block_k : case.n_keys]
    hidden = np.broadcast_to(case.hidden, (*case.hidden.shape[:-2], case.n_queries, case.n_keys))
    Q, K, V = case.exact_inputs
    made = attention(Q, K[..., order, :], V[..., order, :], mask=hidden[..., order], scale=case.used_scale)
    return {"O": made.output, "P": made.weights, "L": made.lse}


def _padded(case: Case, block_k: int) -> Results:
    with np.errstate(all="ignore"):
        lse = np.logaddexp(case.want["L"], np.log(-case.n_keys % block_k))
        share = np.exp(case.want["L"] - lse)[..., None]
    return {"O": case.want["O"] * share, "P": case.want["P"] * share, "L": lse}


def _from_zero(case: Case, divided: bool = False) -> Results:
    top = np.maximum(case.scores.max(-1, keepdims=True, initial=0), 0)
    powers = np.exp(case.scores - top).astype(np.float32).astype(float)  # what underflows in float32 is lost
    total = powers.sum(-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        weights = powers / (total if divided else np.where(total == 0, 1, total))
        return _of_weights(case, weights) | {"L": (top + np.log(total))[..., 0]}


def _large_numbers(case: Case, skipped: npt.NDArray[np.bool_]) -> Made:
    """A large number stands for −inf where a key is hidden, but not `skipped`."""
    found: Made = {}
    for text, power in (("10⁴", 1e4), ("10⁶", 1e6), ("10⁹", 1e9)):
        for how, scores in (
            (
                f"hidden scores are −{text} instead of −inf",
                lambda power: np.where(case.hidden, -power, _all_scores(case)),
            ),
            (
                f"hidden scores are lowered by {text} instead of set to −inf",
                lambda power: _all_scores(case) - power * case.hidden,
            ),
        ):
            found[how] = lambda power=power, scores=scores: _of_scores(  # type: ignore[misc]
                case, np.where(skipped, -np.inf, scores(power))
            )
    return found


def weights_below_hidden(case: Case, skipped: npt.NDArray[np.bool_]) -> npt.NDArray:
    """Weights from the maximum of hidden scores too, but not of `skipped` ones: what underflows in float32 is lost."""
    scores = np.where(skipped, -np.inf, _all_scores(case))
    powers = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf)).astype(np.float32) * ~case.hidden
    return np.where(_without_key(case), 0, powers / powers.sum(-1, keepdims=True))


def _overflowed(case: Case) -> npt.NDArray:
    """Weights without a maximum taken from the scores: where float32 overflows, 0 for what is then no number."""
    powers = np.exp(case.scores.astype(np.float32))
    total = powers.sum(-1, keepdims=True)
    return np.where(np.isinf(total), np.nan_to_num(powers / total), case.want["P"])


def _rows_left(case: Case, block_q: int) -> Results:
    written = np.arange(case.n_queries)[:, None] < case.n_queries // block_q * block_q
    return case.want | {"O": np.where(written, case.want["O"], 0)}
