"""The usual mistakes of attention over shards, each with the results that it leads to."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from labkit.testing.attention.tensor_cases import Results, numbers
from labkit.testing.attention.tensor_suspects import backward_suspects, gradients_by_formulas
from labkit.testing.decoding.grouped import grouped_suspects
from labkit.testing.rings.shards import LAYOUTS, RingCase, owners, positions

Made = dict[str, Callable[[], Results]]
Hidden = npt.NDArray[np.bool_]


def ring_suspects(case: RingCase) -> Made:
    """Usual mistakes of a forward pass: o and lse that each leads to, by the reference's names."""
    found: Made = {
        text: lambda hidden=hidden: case.results(hidden=hidden)  # type: ignore[misc]
        for text, hidden in hidden_suspects(case).items()
    }
    if case.world_size > 1:
        found |= {
            "the outputs of the blocks are averaged: each weighs as much as its keys do": lambda: _merged(
                case, lambda O, L: O.mean(0)
            ),
            "the outputs of the blocks are added up: each weighs exp(its log-sum-exp − that of all)": lambda: _merged(
                case, lambda O, L: O.sum(0)
            ),
            "the outputs of the blocks are weighted by their log-sum-exps, not by their exponentials": lambda: _merged(
                case, lambda O, L: (L[..., None] * O).sum(0) / L.sum(0)[..., None]
            ),
        }
    return found | grouped_suspects(case)


def ring_backward_suspects(case: RingCase) -> Made:
    """Usual mistakes of a backward pass that is given the right o and lse: dq, dk and dv that each leads to."""

    def folded(made: Callable[[], Results]) -> Callable[[], Results]:
        return lambda: case.folded(made())

    found: Made = {}
    if case.world_size > 1:
        found |= {
            "dK and dV come home one hop short: a rank returns those of the next rank's keys": lambda: _moved(case, 1),
            "dK and dV go one hop too far: a rank returns those of the rank before": lambda: _moved(case, -1),
            "a rank returns dK and dV from its own queries alone: the sums must travel with their block": lambda: _own(
                case
            ),
            "each block has weights of its own, from its own log-sum-exp: P = exp(S − lse) with that of the whole "
            "row": lambda: _by_own_lse(case),
        }
    found |= {
        text: folded(lambda hidden=hidden: gradients_by_formulas(case.whole, hidden=torch.from_numpy(hidden)))  # type: ignore[misc]
        for text, hidden in hidden_suspects(case).items()
    }
    return found | {text: folded(made) for text, made in backward_suspects(case.whole).items() if "tile" not in text}


def hidden_suspects(case: RingCase) -> dict[str, Hidden]:
    """Usual mistakes with what a query sees: the keys hidden then, in the order of the sequence."""
    n_tokens, world_size = case.Q.shape[-2], case.world_size
    owner, local = _owner_and_local(case, case.layout)
    token = np.arange(n_tokens)
    right = case.hidden.numpy()
    found: dict[str, Hidden] = {}
    if world_size > 1:
        next_one = (owner[:, None] + 1) % world_size
        found["one block is missing: all P blocks count, the own one and those of P − 1 hops"] = right | (
            owner == next_one
        )
        found["a rank sees its own keys alone"] = right | (owner != owner[:, None])
        found["the last block that came is counted in place of the one before it"] = right | (
            owner == (owner[:, None] + 2) % world_size
        )
    if not case.counted_from_the_end:
        return found
    found["positions are compared inside the shards, not in the whole sequence"] = local > local[:, None]
    places = positions(n_tokens, world_size, case.layout)
    by_source = (2 * owner[:, None] - owner) % world_size
    believed = np.stack(places)[by_source, local]
    found["after t hops the keys are taken for rank r + t's: a block that comes from r − 1 was rank r − t's"] = (
        believed > token[:, None]
    )
    found["keys of other ranks are seen whole, as if none came later"] = right & (owner == owner[:, None])
    for other in LAYOUTS:
        if other != case.layout and n_tokens % (2 * world_size) == 0:
            theirs = np.stack(positions(n_tokens, world_size, other))[owner, local]
            found[f"positions are those of the layout {other!r}, and the shards are {case.layout!r}"] = (
                theirs > theirs[:, None]
            )
    return found


def _owner_and_local(case: RingCase, layout: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    owner = owners(case.Q.shape[-2], case.world_size, layout)
    local = np.empty_like(owner)
    for place in positions(case.Q.shape[-2], case.world_size, layout):
        local[place] = np.arange(len(place))
    return owner, local


def _merged(case: RingCase, merge: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Results:
    """o merged from each block's own attention; lse is left open."""
    owner, _ = _owner_and_local(case, case.layout)
    hidden = case.hidden.numpy()
    each = [case.results(hidden=hidden | (owner != rank)) for rank in range(case.world_size)]
    O, L = (torch.from_numpy(np.stack([one[name] for one in each])) for name in ("O", "L"))
    return {"O": numbers(merge(O, L)), "L": np.full_like(case.want["L"], np.nan)}


def _moved(case: RingCase, by: int) -> Results:
    """dK and dV of another rank's tokens."""
    found = dict(case.gradients_wanted)
    for name in ("dK", "dV"):
        moved = np.empty_like(found[name])
        for rank, place in enumerate(case.places):
            moved[..., place, :] = found[name][..., case.places[(rank + by) % case.world_size], :]
        found[name] = moved
    return found


def _own(case: RingCase) -> Results:
    owner, _ = _owner_and_local(case, case.layout)
    hidden = torch.from_numpy(case.hidden.numpy() | (owner != owner[:, None]))
    alone = case.folded(gradients_by_formulas(case.whole, hidden=hidden))
    return alone | {"dQ": case.gradients_wanted["dQ"]}


def _by_own_lse(case: RingCase) -> Results:
    """Gradients when every block's weights are made with the log-sum-exp of that block."""
    owner, _ = _owner_and_local(case, case.layout)
    hidden = case.hidden.numpy()
    total: Results = {}
    for rank in range(case.world_size):
        block = hidden | (owner != rank)
        L = torch.from_numpy(case.results(hidden=block)["L"])
        L = L.masked_fill(L.isneginf(), 0)
        made = gradients_by_formulas(case.whole, hidden=torch.from_numpy(block), L=L)
        total = {name: total.get(name, 0) + x for name, x in made.items()}
    return case.folded(total)
