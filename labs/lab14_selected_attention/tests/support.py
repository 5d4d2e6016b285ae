"""Lab 14's cases: inputs drawn from a seed, what is expected for them in float64, and what usual mistakes lead to.

A case is a plain record. It is drawn, and its expected values are computed, before a submission is called.
"""

from __future__ import annotations

import math
from types import SimpleNamespace as Case

import torch

from labkit.testing.attention.cases import rounded
from labkit.testing.compare import assert_equal, assert_type, require
from labkit.testing.unchanged import unchanged


def call(function, given):
    """What `function` returns for the arguments in `given`, by their names; first of all they must be as before."""
    tensors = {name: x for name, x in given.items() if isinstance(x, torch.Tensor)}
    with unchanged(tensors):
        return function(*given.values())


def drawn(rng, *shape, dtype=torch.float32, scale=1.0):
    """Standard-normal numbers."""
    return (scale * torch.from_numpy(rng.standard_normal(shape))).to(dtype)


def whole_numbers(rng, least, most, *shape, dtype=torch.float32):
    """Whole numbers from `least` to `most`: sums of them are exact in float32, and many are equal."""
    return torch.from_numpy(rng.integers(least, most + 1, shape)).to(dtype)


def assert_rows(name, got, want, mistakes=None, hint=""):
    """Fail at the first row of `got` that is not that of `want`, whole numbers both; a mistake must fit all rows."""
    assert_type(name, got, torch.Tensor, "a tensor")
    assert_equal(f"the dtype of {name}", str(got.dtype), "torch.int64")
    assert_equal(f"the shape of {name}", tuple(got.shape), tuple(want.shape))
    wrong = (got != want).any(-1).nonzero()
    if len(wrong):
        at = tuple(wrong[0].tolist())
        fitting = {text: other[at].tolist() for text, other in (mistakes or {}).items() if torch.equal(got, other)}
        row = f"{name}[{', '.join(map(str, at))}]" if at else name
        assert_equal(row, got[at].tolist(), want[at].tolist(), mistakes=fitting, hint=hint)


# Pages


def bounds_case(rng, sizes, page, *, batch=(), d=6, dtype=torch.float32, offset=0.0, scale=1.0, strided=False):
    """Keys drawn page by page, and what bounds each page; `sizes` are the keys of each."""
    pages = [(drawn(rng, *batch, size, d, dtype=dtype) + offset) * scale for size in sizes]
    K = torch.cat([drawn(rng, *batch, 0, d, dtype=dtype), *pages], -2)
    if strided:
        K = K.mT.contiguous().mT
    lows, highs = torch.zeros(2, *batch, len(pages), d, dtype=torch.float64)
    for p, keys in enumerate(pages):
        lows[..., p, :], highs[..., p, :] = keys.double().amin(-2), keys.double().amax(-2)
    usual = {"lows": {}, "highs": {}}
    if sizes and sizes[-1] != page:
        padded = "the last page is padded with zeros, which enter its bounds"
        usual["lows"][padded], usual["highs"][padded] = lows.clone(), highs.clone()
        usual["lows"][padded][..., -1, :].clamp_(max=0), usual["highs"][padded][..., -1, :].clamp_(min=0)
    usual["lows"]["lows and highs are exchanged"], usual["highs"]["lows and highs are exchanged"] = highs, lows
    return Case(given={"K": K, "page": page}, want={"lows": lows, "highs": highs}, dtype=dtype, mistakes=usual)


def scores_case(rng, *, batch=(), kv_heads=2, group=3, n_pages=5, size=4, d=6, dtype=torch.float32, scale=1.0,
                whole=False):  # fmt: skip
    """A query per head, and the bounds of pages of keys; `whole` draws whole numbers, so that sums are exact."""
    numbers = (lambda *shape: whole_numbers(rng, -8, 8, *shape, dtype=dtype)) if whole else (
        lambda *shape: drawn(rng, *shape, dtype=dtype))  # fmt: skip
    q, keys = scale * numbers(*batch, kv_heads * group, d), scale * numbers(*batch, kv_heads, n_pages, size, d)
    lows, highs = keys.amin(-2), keys.amax(-2)

    def computed(precise, reads=None):
        rows = q.to(precise)[..., None, :]
        low, high = (x.to(precise).repeat_interleave(group, -3) if reads is None else x.to(precise)[..., reads, :, :]
                     for x in (lows, highs))  # fmt: skip
        return rows, rows * low, rows * high

    precise = torch.float32 if dtype.itemsize == 2 else dtype
    rows, by_low, by_high = computed(torch.float64)
    exact, baseline = (torch.maximum(*computed(each)[1:]).sum(-1) for each in (torch.float64, precise))
    around = [h % kv_heads for h in range(kv_heads * group)]
    usual = {
        "the larger of q · low and q · high is taken after the sum, and not in each channel":
            torch.maximum(by_low.sum(-1), by_high.sum(-1)),
        "only the upper bounds are used: where q is negative, the lower bound gives more": by_high.sum(-1),
        "the smaller product of each channel is taken": torch.minimum(by_low, by_high).sum(-1),
        "the sign of q is lost, |q| · high": (rows.abs() * highs.double().repeat_interleave(group, -3)).sum(-1),
        "scores are scaled by 1/√d, which the handout leaves out": exact * d**-0.5,
        "query head h reads key head h mod H_kv, and not h // (H_q / H_kv)":
            torch.maximum(*computed(torch.float64, around)[1:]).sum(-1),
    }  # fmt: skip
    given = {"q": q, "lows": lows, "highs": highs}
    return Case(given=given, want=exact, baseline=baseline, dtype=precise, mistakes=usual)


def pages_case(rng, *, batch=(), kv_heads=2, group=3, n_pages=12, budget=5, current=None, dtype=torch.float32,
               levels=None, infinite=False, after=0.0):  # fmt: skip
    """Scores of pages, with `levels` different ones where that is given, and `after` behind the current page.

    `infinite` makes those above 0.5 +inf, and those below −0.5 −inf.
    """
    current = n_pages - 1 if current is None else current
    shape = *batch, kv_heads * group, n_pages
    scores = drawn(rng, *shape, dtype=dtype) if levels is None else whole_numbers(rng, -levels, 0, *shape, dtype=dtype)
    if infinite:
        scores = torch.where(scores.abs() > 0.5, scores * torch.inf, scores)
    scores[..., current + 1 :] = after
    grouped = scores.double().unflatten(-2, (kv_heads, group))

    def choose(best, always=(0, current), last=current, sign=1):
        rows = []
        for row in best.reshape(-1, n_pages).tolist():
            rest = sorted((p for p in range(last + 1) if p not in always), key=lambda p: (-row[p], sign * p))
            rows.append(sorted([*dict.fromkeys(always), *rest][: min(budget, current + 1)]))
        return torch.tensor(rows).reshape(*best.shape[:-1], -1)

    best = grouped.amax(-2)
    around = scores.double().unflatten(-2, (group, kv_heads)).amax(-3)
    usual = {
        "the first page is not always among them": choose(best, (current,)),
        "the page being written is not always among them": choose(best, (0,)),
        "neither the first nor the current page is always among them": choose(best, ()),
        "a group is judged by the sum of its heads' scores, and not by the largest": choose(grouped.sum(-2)),
        "a group is judged by its first head alone": choose(grouped[..., 0, :]),
        "query head h belongs to key head h mod H_kv, and not h // (H_q / H_kv)": choose(around),
        "of pages with equal scores the higher number is taken": choose(best, sign=-1),
        "the pages with the smallest scores are taken": choose(-best),
    }
    given = {"scores": scores, "kv_heads": kv_heads, "budget": budget, "current": current}
    return Case(given=given, want=choose(best), mistakes=usual, scores=best)


# Attention


def attend(scores, values):
    """Attention from its scores, −inf where a key is hidden: o and the log-sum-exp of each row."""
    lse = scores.logsumexp(-1)
    return torch.exp(scores - lse.masked_fill(lse.isneginf(), 0)[..., None]) @ values, lse


def decode_case(rng, *, batch=(), kv_heads=2, group=3, n_tokens=37, page=5, n_chosen=3, d=6, d_v=4, last=True,
                dtype=torch.float32, scale=1.0, strided=False):  # fmt: skip
    """A query per head, a cache, and for each key head pages chosen by chance; with the last page, if `last`."""
    q = scale * drawn(rng, *batch, kv_heads * group, d, dtype=dtype)
    K, V = (drawn(rng, *batch, kv_heads, n_tokens, width, dtype=dtype) for width in (d, d_v))
    if strided:
        K, V = (x.transpose(-3, -2).contiguous().transpose(-3, -2) for x in (K, V))
    n_pages = -(-n_tokens // page)
    order = torch.from_numpy(rng.permuted(torch.arange(n_pages - 1).expand(*batch, kv_heads, -1).numpy(), axis=-1))
    fixed = torch.full((*order.shape[:-1], 1), n_pages - 1)
    pages = torch.cat([fixed, order], -1) if last else order
    pages = pages[..., :n_chosen].sort(-1).values
    token_page = torch.arange(n_tokens) // page

    def computed(precise, chosen=pages, factor=d**-0.5, around=False, token_page=token_page, cache=(K, V)):
        seen = (token_page[:, None] == chosen[..., None, :]).any(-1)
        heads = torch.arange(kv_heads * group)
        reads = heads % kv_heads if around else heads // group
        k, v, seen = (x[..., reads, :, :] for x in (*(x.to(precise) for x in cache), seen[..., None, :]))
        scores = factor * (q.to(precise)[..., None, :] @ k.mT)
        o, lse = attend(scores.masked_fill(~seen, -torch.inf), v)
        return {"o": o.squeeze(-2), "lse": lse.squeeze(-1)}

    precise = torch.float32 if dtype.itemsize == 2 else dtype
    exact, baseline = computed(torch.float64), computed(precise)

    def with_places_behind(places, zero):
        """Where each chosen short last page has so many places more: of zeros, or of its last token again."""
        if zero:
            more = (
                torch.cat([K, 0 * K[..., :1, :].expand(*K.shape[:-2], places, d)], -2),
                torch.cat([V, 0 * V[..., :1, :].expand(*V.shape[:-2], places, d_v)], -2),
            )
        else:
            more = [torch.cat([x, x[..., -1:, :].expand(*x.shape[:-2], places, x.shape[-1])], -2) for x in (K, V)]
        return computed(torch.float64, token_page=torch.arange(n_tokens + places) // page, cache=more)

    everything = torch.arange(n_pages).expand(*pages.shape[:-1], -1)
    missing = -n_tokens % page
    variants = {
        "a short last page counts as full, with zeros behind the last token": with_places_behind(missing, True),
        "the last token counts again for each place after it": with_places_behind(missing, False),
        "every token of the cache is read: the pages chosen are ignored": computed(torch.float64, everything),
        "scores are not scaled by 1/√d": computed(torch.float64, factor=1.0),
        "query head h reads key head h mod H_kv, and not h // (H_q / H_kv)": computed(torch.float64, around=True),
        "numbers of pages are taken for numbers of tokens":
            computed(torch.float64, token_page=torch.arange(n_tokens)),
        "all key heads read the pages of the first":
            computed(torch.float64, pages[..., :1, :].expand(pages.shape)),
        "the last page of the cache is left out where it is chosen":
            computed(torch.float64, pages.masked_fill(pages == n_pages - 1, -1)),
    }  # fmt: skip
    usual = {name: {text: each[name] for text, each in variants.items()} for name in exact}
    usual["lse"]["lse is in base 2, and not the natural logarithm"] = exact["lse"] / 0.6931471805599453
    return Case(
        given={"q": q, "K": K, "V": V, "pages": pages, "page": page},
        want=exact,
        baseline={"o": rounded(baseline["o"], dtype), "lse": baseline["lse"]},
        dtypes={"o": dtype, "lse": precise},
        mistakes=usual,
    )


def sparse_case(rng, *, batch=(), n=29, block=4, top=2, d=6, d_v=5, dtype=torch.float32, scale=1.0, equal=False,
                close=False, strided=False):  # fmt: skip
    """Queries, keys and values of a prompt.

    `equal` repeats one block's keys, of whole numbers, so that all blocks have the same score, and exactly the same.
    `close` draws whole numbers whose means need more digits than half precision has, and float32 has all of them.
    """
    Q, K, V = (drawn(rng, *batch, n, width, dtype=dtype) for width in (d, d, d_v))
    Q = Q * scale
    if equal:
        Q, K = (whole_numbers(rng, -3, 3, *batch, n, d, dtype=dtype) for _ in range(2))
        K = torch.cat([K[..., :block, :]] * -(-n // block), -2)[..., :n, :]
    if close:
        Q = whole_numbers(rng, -3, 3, *batch, n, d, dtype=dtype) / 16
        K = whole_numbers(rng, 90, 110, *batch, n, d, dtype=dtype)
    if strided:
        Q, K, V = (x.mT.contiguous().mT for x in (Q, K, V))
    positions = torch.arange(n)
    own = positions // block
    later = positions[None, :] > positions[:, None]

    def seen_by(best=top, mean=lambda keys: keys.mean(-2), own_causal=True, sign=1, counts_own=False, own_read=True,
                largest=True, judge=None):  # fmt: skip
        """Which tokens each query reads; the choice is made from float64, one query after the other."""
        n_full = n // block
        full = K.double()[..., : n_full * block, :].unflatten(-2, (n_full, block))
        queries = Q.double() if judge is None else judge(Q.double())
        gate = queries @ mean(full).mT * (1 if largest else -1)
        seen = torch.zeros(*batch, n, n, dtype=torch.bool)
        rows = gate.reshape(math.prod(batch), n, n_full).tolist()
        for flat, row in zip(seen.view(math.prod(batch), n, n), rows, strict=True):
            for i in range(n):
                b = int(own[i])
                some = sorted(range(b), key=lambda j: (-row[i][j], sign * j))[: max(best - counts_own, 0)]
                for j in some:
                    flat[i, j * block : (j + 1) * block] = True
                if own_read:
                    flat[i, b * block : i + 1 if own_causal else min(n, (b + 1) * block)] = True
        return seen

    def computed(precise, seen, factor=d**-0.5):
        scores = factor * (Q.to(precise) @ K.to(precise).mT)
        return attend(scores.masked_fill(~seen, -torch.inf), V.to(precise))[0]

    def first_of_block(queries):
        return queries[..., own * block, :]

    def mean_of_block(queries):
        means = [part.mean(-2, keepdim=True).expand(part.shape) for part in queries.split(block, -2)]
        return torch.cat(means, -2)

    def in_two_softmaxes(factor):
        far = ~own_block & seen
        return factor * (computed(torch.float64, far) + computed(torch.float64, seen & own_block))

    own_block = own[:, None] == own
    seen = seen_by()
    precise = torch.float32 if dtype.itemsize == 2 else dtype
    exact = computed(torch.float64, seen)
    usual = {
        "all tokens before are read: nothing is chosen": lambda: computed(torch.float64, ~later.expand(seen.shape)),
        "only the own block is read": lambda: computed(torch.float64, seen_by(0)),
        "the own block counts as one of the `top`": lambda: computed(torch.float64, seen_by(counts_own=True)),
        "the own block is read whole, tokens after the query too":
            lambda: computed(torch.float64, seen_by(own_causal=False)),
        "a block is judged by its largest key, channel by channel, and not by the mean":
            lambda: computed(torch.float64, seen_by(mean=lambda keys: keys.amax(-2))),
        "a block is judged by its first key":
            lambda: computed(torch.float64, seen_by(mean=lambda keys: keys[..., 0, :])),
        "the worst blocks are taken": lambda: computed(torch.float64, seen_by(largest=False)),
        "of blocks with equal scores the higher number is taken": lambda: computed(torch.float64, seen_by(sign=-1)),
        "scores are not scaled by 1/√d": lambda: computed(torch.float64, seen, 1.0),
        "the gate's scores are ignored: the first blocks are taken":
            lambda: computed(torch.float64, seen_by(mean=lambda keys: 0 * keys.mean(-2))),
        "one choice is made for a block of queries, by the first of them: each query chooses for itself":
            lambda: computed(torch.float64, seen_by(judge=first_of_block)),
        "one choice is made for a block of queries, by their mean: each query chooses for itself":
            lambda: computed(torch.float64, seen_by(judge=mean_of_block)),
        "the chosen blocks and the own block have a softmax each, and both outputs are added":
            lambda: in_two_softmaxes(1.0),
        "the chosen blocks and the own block have a softmax each, and both outputs are averaged":
            lambda: in_two_softmaxes(0.5),
    }  # fmt: skip
    if dtype.itemsize == 2:
        usual["the blocks' means are rounded to half precision: blocks that differ become equal there"] = lambda: (
            computed(torch.float64, seen_by(mean=lambda keys: keys.mean(-2).to(dtype).double()))
        )
    return Case(
        given={"Q": Q, "K": K, "V": V, "block": block, "top": top},
        want=exact,
        baseline=rounded(computed(precise, seen), dtype),
        seen=seen,
        dtype=dtype,
        mistakes=usual,
    )


def tokens_case(rng, *, batch=(), n_queries=9, n_keys=23, heads=3, d=8, top=5, dtype=torch.float32, least=-3, most=3,
                positive=False, scale=1.0):  # fmt: skip
    """An indexer's queries, weights and keys, of whole numbers from `least` to `most`, and the tokens chosen.

    Weights are multiplied by `scale`, a power of two, and are not negative where they are `positive`.
    """
    q = whole_numbers(rng, least, most, *batch, n_queries, heads, d, dtype=dtype)
    w = whole_numbers(rng, least, most, *batch, n_queries, heads, dtype=dtype)
    w = scale * (w.abs() if positive else w)
    k = whole_numbers(rng, least, most, *batch, n_keys, d, dtype=dtype)
    products = torch.einsum("...tjd,...sd->...tjs", q.double(), k.double())
    weights = w.double()[..., None]

    def choose(scores, offset=n_keys - n_queries, sign=1, filled_up=False):
        rows = []
        for number, row in enumerate(scores.reshape(-1, n_keys).tolist()):
            seen = range(min(number % n_queries + offset + 1, n_keys))
            some = sorted(sorted(seen, key=lambda s: (-row[s], sign * s))[:top])
            if filled_up:
                some += range(len(seen), min(n_keys, len(seen) + top - len(some)))
            rows.append(some + [-1] * (top - len(some)))
        return torch.tensor(rows).reshape(*batch, n_queries, top)

    right = (weights * products.relu()).sum(-2)
    usual = {
        "there is no ReLU": choose((weights * products).sum(-2)),
        "ReLU is applied after the weights, and not to each head's product":
            choose((weights * products).relu().sum(-2)),
        "ReLU is applied to the sum, and not to each head's product": choose((weights * products).sum(-2).relu()),
        "the weights are left out": choose(products.relu().sum(-2)),
        "queries are counted from the first token, and not from the last one backwards": choose(right, offset=0),
        "a query does not see its own token": choose(right, offset=n_keys - n_queries - 1),
        "tokens after the query are seen": choose(right, offset=n_keys),
        "hidden tokens fill up where fewer than `top` are visible: −1 does": choose(right, filled_up=True),
        "of tokens with equal scores the higher number is taken": choose(right, sign=-1),
        "the smallest scores are taken": choose(-right),
    }  # fmt: skip
    if scale == 1:  # else −10,000 chooses as 0 does
        places = torch.arange(n_queries)[:, None] + n_keys - n_queries
        chosen = choose(right.masked_fill(torch.arange(n_keys) > places, 0), offset=n_keys)
        kept = chosen.masked_fill((chosen > places) | (chosen < 0), n_keys).sort(-1).values
        usual["hidden tokens score 0, more than visible ones below 0, and are chosen"] = chosen
        text = "hidden tokens score 0, more than visible ones below 0, and take their places"
        usual[text] = kept.where(kept < n_keys, -1)
    given = {"q_index": q, "w": w, "k_index": k, "top": top}
    return Case(given=given, want=choose(right), mistakes=usual, scores=right)


def hint_at_ties(scores, got, want):
    """Why rows chosen by their scores (..., n) may differ, where those that were chosen have the same scores."""
    if got.shape != want.shape or got.min() < -1 or got.max() >= scores.shape[-1]:
        return ""
    ours, theirs = (scores.gather(-1, x.clamp(min=0)).sort(-1).values for x in (want, got))
    if not torch.equal(ours.masked_fill(want < 0, 0), theirs.masked_fill(got < 0, 0)):
        return ""
    return "topk takes any of those with equal scores: the lower number comes first, as in a stable sort"


def byte_mistakes(method, tokens, token_bytes, stored, read, *, window=0, sinks=0, page=1, budget=0, index_bytes=0):
    """Usual mistakes with the bytes stored and read, and the numbers that each leads to; 0 where there is none."""
    n_pages, half = -(-tokens // page), token_bytes // 2
    whole = tokens * token_bytes
    last_is_full = (n_pages * page - tokens) * token_bytes
    sinks_twice = min(sinks, tokens) + min(window, tokens)
    last_is_empty = page * token_bytes if tokens % page == 0 else 0
    usual = {
        "window": {
            "every token is stored, and not the sinks and the window alone": (whole, 0),
            "tokens are counted that are not there yet": ((window + sinks) * token_bytes,) * 2,
            "sinks that are in the window too are counted twice": (sinks_twice * token_bytes,) * 2,
        },
        "quest": {
            "the bounds are stored, and not read": (0, read - n_pages * token_bytes),
            "a page has one bound, and not two": (stored - n_pages * half, read - n_pages * half),
            "the last page counts as full": (stored + last_is_full, read + last_is_full),
            "the last page has tokens % page tokens, and so none where it is full": (0, read - last_is_empty),
        },
        "moba": {
            "the means are stored, and not read": (0, read - (n_pages - 1) * half),
            "the last page has a mean as well": (stored + half, read + half),
            "a page has two means, and not one": (stored + (n_pages - 1) * half, read + (n_pages - 1) * half),
            "the last page counts as full": (stored + last_is_full, read + last_is_full),
            "the last page has tokens % page tokens, and so none where it is full": (0, read - last_is_empty),
        },
        "dsa": {
            "index keys of the chosen tokens alone are read": (0, min(budget, tokens) * (token_bytes + index_bytes)),
            "the index keys are stored, and not read": (0, read - tokens * index_bytes),
        },
    }.get(method, {})
    of_both = {"stored": stored, "read": read}
    return {
        which: {text: numbers[i] for text, numbers in usual.items() if numbers[i] not in (0, right)}
        for i, (which, right) in enumerate(of_both.items())
    }


def require_ascending(name, got, want):
    """Fail where the right numbers are there in another order."""
    sorted_alike = got.shape == want.shape and torch.equal(got.sort(-1).values, want.sort(-1).values)
    message = f"{name} are the right ones, and not in ascending order, with −1 at the end where there are too few"
    require(not sorted_alike or torch.equal(got, want), message)


def require_no_nan(name, x, cause):
    """Fail where a result is NaN that was none before tokens that must not be read were replaced by NaN."""
    require(not x.isnan().any(), f"{name} is NaN where tokens that were not chosen hold NaN\nUsual cause: {cause}")
