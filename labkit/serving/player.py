"""Plays a trace to a scheduler or a server and checks nothing: it runs next to the submission.

Nothing here knows an expected value. `drive` and `engine` make the same calls in the same order, and check.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from labkit.serving.model import Model

VOCAB = 64
"""Of the tokens that follow a prompt where there is no model."""

Compute = Callable[[Any, Sequence["Piece"]], list[int]]
"""Carries out the copies and the work of a plan; the token after the last one of each piece."""


@dataclass(frozen=True)
class Request:
    """A prompt that arrives at the beginning of a step, and how many tokens to generate."""

    id: int
    arrival: int
    prompt: tuple[int, ...]
    max_new: int


class Piece(NamedTuple):
    """A piece of work of a plan: `tokens` of a request, the first at position `start`, in the blocks of a table."""

    id: Any
    start: int
    tokens: tuple[int, ...]
    blocks: tuple[int, ...]

    @property
    def end(self) -> int:
        """The position after its last token."""
        return self.start + len(self.tokens)


def play(
    planner: Any,
    trace: Sequence[Request],
    max_tokens: int,
    compute: Compute,
    *,
    filling: list[int] | None = None,
    look: Callable[[], None] = lambda: None,
) -> None:
    """Submit requests when they arrive and carry out each plan, until all are done or nothing is planned.

    Args:
        planner: has `submit`, `plan` and `advance`.
        trace: of the requests, in order of arrival.
        max_tokens: that a step may compute, at most.
        compute: carries out a plan.
        filling: a prompt that is submitted in the end; see `filling_prompt`.
        look: called before the first step, when its requests have been submitted, and after each.
    """
    waiting, active, most = list(trace), dict[Any, list[int]](), most_steps(trace, max_tokens)
    for step in range(most + 1):
        while waiting and waiting[0].arrival <= step:
            request = waiting.pop(0)
            planner.submit(request.id, list(request.prompt), request.max_new)
            active[request.id] = [len(request.prompt), len(request.prompt) + request.max_new]
        if not step:
            look()
        if active:
            copies, work = _read(planner.plan())
            if not work:
                return
            following = zip(work, compute(copies, work), strict=True)
            sampled = {piece.id: token for piece, token in following if piece.end == active[piece.id][0]}
            planner.advance(dict(sampled))
            for id in sampled:
                active[id][0] += 1
            active = {id: each for id, each in active.items() if each[0] < each[1]}
            look()
        if not waiting and not active:
            break
    if filling is not None and not waiting and not active:
        _fill(planner, 1 + max(request.id for request in trace), filling)


def _fill(planner: Any, id: int, prompt: list[int]) -> None:
    planner.submit(id, list(prompt), 1)
    for _ in prompt:  # at least one token a step
        _, work = _read(planner.plan())
        if not work:
            return
        done = work[0].end == len(prompt)
        planner.advance({id: 0} if done else {})
        if done:
            return


def next_tokens(model: Model, work: Sequence[Piece], block_size: int, layer: Callable[..., list[Any]]) -> list[int]:
    """The token that the model finds after the last token of each piece.

    `layer` writes and attends as `run_layer` does, of which it is given all arguments but the server.
    """
    n_tokens = [len(piece.tokens) for piece in work]
    places = places_of(work, block_size)

    def attend(number: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        reads = [(rows, list(piece.blocks), piece.start) for rows, piece in zip(q.split(n_tokens), work, strict=True)]
        return torch.cat(layer(number, places, k, v, reads))

    tokens = [token for piece in work for token in piece.tokens]
    positions = [position for piece in work for position in range(piece.start, piece.end)]
    return [int(rows[-1].argmax()) for rows in model.logits(tokens, positions, attend).split(n_tokens)]


def run_layer(
    server: Any,
    layer: int,
    places: tuple[list[int], list[int]],
    k: torch.Tensor,
    v: torch.Tensor,
    reads: Sequence[tuple[torch.Tensor, list[int], int]],
) -> list[Any]:
    """Write the keys and values of a step, then attend for each piece of work; returns the unchanged outputs.

    Args:
        server: what has `write` and `attend`.
        layer: the layer.
        places: the block and the place in it of each token, two lists.
        k: keys (n, H_kv, d). v: values.
        reads: for each piece of work its queries, its block table and its first position.
    """
    server.write(layer, *places, k, v)
    return [server.attend(layer, q, table, start) for q, table, start in reads]


def places_of(work: Sequence[Piece], size: int) -> tuple[list[int], list[int]]:
    """The block and the place in it of each token of the work, two lists."""
    where = [(piece.blocks[at // size], at % size) for piece in work for at in range(piece.start, piece.end)]
    return [block for block, _ in where], [place for _, place in where]


def made_up_token(number: int, end: int) -> int:
    """A token after the first `end` of the request with this number, where there is no model."""
    return number * 7 + end * 11 & VOCAB - 1


def most_steps(trace: Sequence[Request], max_tokens: int) -> int:
    """The most steps allowed: twice those of serving the requests one by one after the last arrival."""
    alone = sum(-(-len(each.prompt) // max_tokens) + each.max_new for each in trace)
    return 2 * (alone + trace[-1].arrival + 1)


def filling_prompt(n_requests: int, n_places: int) -> list[int]:
    """A prompt that needs all places of a cache but one, for the end of a trace of so many requests."""
    return np.random.default_rng([n_requests]).integers(0, VOCAB, n_places - 1).tolist()


def _read(plan: Any) -> tuple[Any, list[Piece]]:
    names = Piece._fields
    return plan["copies"], [Piece(*map(piece.__getitem__, names)) for piece in plan["work"]]
