"""The bytes of the backward passes that Lab 11 does not ask for: written out plainly, run, and held to the formula."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from labkit.labs.catalog import find_lab, solution_file
from labkit.ranks.processes import load_function
from labkit.ranks.threads import run_ranks
from labkit.testing.rings import Sizes, sent_bytes
from labkit.testing.rings import RingCase

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


SOLUTION = solution_file(find_lab("11"))
WAYS = {"all_gather": gathered, "ulysses": exchanged}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("method", WAYS)
def test_the_formula_is_what_a_run_sends(method, world_size, dtype):
    rng = np.random.default_rng(7)
    sizes = {"kv_heads": KV_HEADS, "group": HEADS // KV_HEADS, "d": D, "causal": True, "dtype": dtype}
    case = RingCase(rng, n_tokens=8 * world_size, world_size=world_size, **sizes)
    places = [torch.from_numpy(place) for place in case.places]
    given = case.shards("dO", "q", "k", "v", "o", "lse")
    ran = run_ranks(lambda comm, *x: WAYS[method](comm, *x, places), given)
    case.check_ranks({"trouble": "", "results": ran.results}, ("dq", "dk", "dv"))
    want = sent_bytes(Sizes(method, world_size, 8 * world_size, HEADS, KV_HEADS, D, dtype.itemsize), True)
    assert {each.sent_bytes for each in ran.traffic} == {want}
    formula = load_function(SOLUTION, "communication_bytes")
    assert want == formula(method, world_size, 8 * world_size, HEADS, KV_HEADS, D, dtype.itemsize, True)
