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
from labkit.serving.sampling import GREEDY, Sampling

VOCAB = 64
"""Of the tokens that follow a prompt where there is no model."""

Compute = Callable[[Any, Sequence["Piece"]], Sequence[Any]]
"""Carries out the copies and the work of a plan; for each piece the scores after its last token, with a model."""
Draw = Callable[["Request", int, int, Any], int]
"""The token of a request's completion with a number, at a position, from the scores before it."""


@dataclass(frozen=True)
class Request:
    """A prompt that arrives at the beginning of a step, and how many tokens to generate, in each of n completions.

    `sampling` draws their tokens. `first` is the number of the first one, where a request goes on with another's.
    """

    id: int
    arrival: int
    prompt: tuple[int, ...]
    max_new: int
    n: int = 1
    sampling: Sampling = GREEDY
    first: int = 0

    def completions_after(self, name: Any, number: int, n_known: int) -> list[tuple[Any, int]]:
        """The completions, name and number, that get the token after `n_known` ones of a sequence.

        After the prompt they are all of them, of which each then is a sequence of its own; later the sequence alone.
        """
        if name != self.id or n_known > len(self.prompt):
            return [(name, number)]
        return [(self.id, 0), *(((self.id, more), more) for more in range(1, self.n))]


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
    draw: Draw,
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
        draw: draws a token from the scores that `compute` has found.
        filling: a prompt that is submitted in the end; see `filling_prompt`.
        look: called before the first step, when its requests have been submitted, and after each.
    """
    waiting, active, most = list(trace), dict[Any, _Going](), most_steps(trace, max_tokens)
    for step in range(most + 1):
        while waiting and waiting[0].arrival <= step:
            request = waiting.pop(0)
            submit(planner, request)
            active[request.id] = _Going(request, 0, len(request.prompt))
        if not step:
            look()
        if active:
            copies, work = _read(planner.plan())
            if not work:
                return
            sampled = {}
            for piece, scores in zip(work, compute(copies, work), strict=True):
                request, own, known = active[piece.id]
                if piece.end < known:
                    continue
                for name, number in request.completions_after(piece.id, own, known):
                    sampled[name] = draw(request, number, known, scores)
                    active[name] = _Going(request, number, known + 1)
            planner.advance(dict(sampled))
            active = {name: one for name, one in active.items() if one.known < one.final}
            look()
        if not waiting and not active:
            break
    if filling is not None and not waiting and not active:
        _fill(planner, 1 + max(request.id for request in trace), filling)


class _Going(NamedTuple):
    """A completion that is not finished: its request, its number, and how many of its tokens are known."""

    request: Request
    number: int
    known: int

    @property
    def final(self) -> int:
        """How many tokens it has in the end."""
        return len(self.request.prompt) + self.request.max_new


def submit(planner: Any, request: Request) -> None:
    """Submit a request, with n where more than one completion is asked for."""
    several = (request.n,) if request.n > 1 else ()
    planner.submit(request.id, list(request.prompt), request.max_new, *several)


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


def scores_after(
    model: Model, work: Sequence[Piece], block_size: int, layer: Callable[..., list[Any]]
) -> list[torch.Tensor]:
    """The model's scores (vocab,) after the last token of each piece.

    `layer` writes and attends as `run_layer` does, of which it is given all arguments but the server.
    """
    n_tokens = [len(piece.tokens) for piece in work]
    places = places_of(work, block_size)

    def attend(number: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        reads = [(rows, list(piece.blocks), piece.start) for rows, piece in zip(q.split(n_tokens), work, strict=True)]
        return torch.cat(layer(number, places, k, v, reads))

    tokens = [token for piece in work for token in piece.tokens]
    positions = [position for piece in work for position in range(piece.start, piece.end)]
    return [rows[-1] for rows in model.logits(tokens, positions, attend).split(n_tokens)]


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


def made_up_token(order: int, number: int, end: int) -> int:
    """A token after the first `end` of a request's completion with this number, where there is no model."""
    return order * 7 + number * 5 + end * 11 & VOCAB - 1


def sampled_token(request: Request, number: int, end: int, scores: torch.Tensor) -> int:
    """The token that the request's sampling draws after the first `end` of its completion with this number."""
    return request.sampling.choose(scores, request.first + number, end)


def most_steps(trace: Sequence[Request], max_tokens: int) -> int:
    """The most steps allowed: twice those of serving the requests one by one after the last arrival."""
    alone = sum(each.n * (-(-len(each.prompt) // max_tokens) + each.max_new) for each in trace)
    return 2 * (alone + trace[-1].arrival + 1)


def filling_prompt(n_requests: int, n_places: int) -> list[int]:
    """A prompt that needs all places of a cache but one, for the end of a trace of so many requests."""
    return np.random.default_rng([n_requests]).integers(0, VOCAB, n_places - 1).tolist()


def _read(plan: Any) -> tuple[Any, list[Piece]]:
    names = Piece._fields
    return plan["copies"], [Piece(*map(piece.__getitem__, names)) for piece in plan["work"]]
