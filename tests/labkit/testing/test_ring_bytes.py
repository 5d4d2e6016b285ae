"""The bytes of the backward passes that Lab 11 does not ask for: written out plainly, run, and held to the formula."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from labkit.labs.catalog import find_lab, solution_file
from labkit.ranks.processes import load_function
from labkit.ranks.threads import run_ranks
from labkit.testing.rings import Sizes, cut, positions, sent_bytes

HEADS, KV_HEADS, D = 8, 4, 6


def slopes(q, k, v, dO, lse, D_rows, hidden):
    """dq, dk and dv of some queries and some keys, every query head with keys of its own; sums in lse's dtype."""
    group = q.shape[-3] // k.shape[-3]
    q, k, v, dO = (x.to(lse.dtype) for x in (q, k, v, dO))
    keys, values = (x.repeat_interleave(group, -3) for x in (k, v))
    scale = q.shape[-1] ** -0.5
    p = torch.exp((q @ keys.mT * scale).masked_fill(hidden, -torch.inf) - lse[..., None])
    ds = p * (dO @ values.mT - D_rows[..., None]) * scale
    folded = [x.unflatten(-3, (-1, group)).sum(-3) for x in (ds.mT @ q, p.mT @ dO)]
    return ds @ keys, *folded


def gathered(comm, dO, q, k, v, o, lse, places):
    """All keys are gathered; each rank's parts of dK and dV go to their owners, who add them up."""
    keys, values = comm.all_gather(k), comm.all_gather(v)
    D_rows = (dO.to(lse.dtype) * o.to(lse.dtype)).sum(-1)
    dq, parts = torch.zeros_like(q, dtype=lse.dtype), []
    for source in range(comm.world_size):
        hidden = places[source] > places[comm.rank][:, None]
        more, *part = slopes(q, keys[source], values[source], dO, lse, D_rows, hidden)
        dq += more
        parts.append(part)
    dk, dv = (torch.stack(comm.all_to_all([part[i] for part in parts])).sum(0) for i in (0, 1))
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


def exchanged(comm, dO, q, k, v, o, lse, places):
    """Tokens for heads, and the gradients back."""
    unshard = load_function(SOLUTION, "unshard")
    shard = load_function(SOLUTION, "shard")
    n_ranks = comm.world_size
    rows = [lse[..., None], (dO.to(lse.dtype) * o.to(lse.dtype)).sum(-1, keepdim=True)]
    there = [comm.all_to_all(x.chunk(n_ranks, -3)) for x in (q, k, v, dO, *rows)]
    q, k, v, dO, lse, D_rows = (unshard(x, "zigzag") for x in there)
    n_tokens = q.shape[-2]
    hidden = torch.ones(n_tokens, n_tokens, dtype=torch.bool).triu(1)
    made = slopes(q, k, v, dO, lse[..., 0], D_rows[..., 0], hidden)
    back = [shard(x.to(q.dtype), n_ranks, "zigzag") for x in made]
    return tuple(torch.cat(comm.all_to_all(x), -3) for x in back)


def results(q, k, v, dO):
    """o, lse, dq, dk and dv of causal attention over the whole sequence."""
    leaves = [x.requires_grad_() for x in (q, k, v)]
    keys, values = (x.repeat_interleave(HEADS // KV_HEADS, -3) for x in (k, v))
    hidden = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).triu(1)
    scores = (q @ keys.mT * D**-0.5).masked_fill(hidden, -torch.inf)
    o = scores.softmax(-1) @ values
    return o.detach(), scores.logsumexp(-1).detach(), *torch.autograd.grad((o * dO).sum(), leaves)


SOLUTION = solution_file(find_lab("11"))
WAYS = {"all_gather": gathered, "ulysses": exchanged}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("method", WAYS)
def test_the_formula_is_what_a_run_sends(method, world_size, dtype):
    rng = np.random.default_rng(7)
    n_tokens = 8 * world_size
    heads = {"q": HEADS, "k": KV_HEADS, "v": KV_HEADS, "dO": HEADS}
    whole = {name: torch.from_numpy(rng.standard_normal((n, n_tokens, D))).to(dtype) for name, n in heads.items()}
    o, lse, *want_slopes = results(**{name: x.double() for name, x in whole.items()})
    whole |= {"o": o.to(dtype), "lse": lse.float()}
    places = positions(n_tokens, world_size, "zigzag")
    cuts = [cut(whole[name], places, -1 if name == "lse" else -2) for name in ("dO", "q", "k", "v", "o", "lse")]
    given = [list(each) for each in zip(*cuts, strict=True)]
    tokens = [torch.from_numpy(place) for place in places]
    ran = run_ranks(lambda comm, *x: WAYS[method](comm, *x, tokens), given)
    for got, want in zip(zip(*ran.results, strict=True), want_slopes, strict=True):
        for shard, part in zip(got, cut(want, places), strict=True):
            assert torch.allclose(shard.double(), part, atol=0.1 if dtype.itemsize == 2 else 1e-4)
    want = sent_bytes(Sizes(method, world_size, n_tokens, HEADS, KV_HEADS, D, dtype.itemsize), True)
    assert {each.sent_bytes for each in ran.traffic} == {want}
    formula = load_function(SOLUTION, "communication_bytes")
    assert want == formula(method, world_size, n_tokens, HEADS, KV_HEADS, D, dtype.itemsize, True)
