"""Runs one answer: tokens as they come, their times, and afterwards their comparison with torch's own attention."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from labkit.model.attention import CachedAttention
from labkit.model.generate import generate
from labkit.model.llama import Attend, Llama

TIE = 1e-3
"""Scores nearer than this are a tie, which rounding decides."""


@dataclass
class Answer:
    """The tokens of an answer, with times in seconds and the scores (vocab,) that chose each token."""

    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    scores: list[torch.Tensor] = field(default_factory=list)
    prompt_seconds: float = 0.0
    writing_seconds: float = 0.0
    steps: int = 0
    """Tokens made, with the one that ended the answer: all but the last are in the cache too."""


class Comparison(NamedTuple):
    """The first token that torch's own attention would choose otherwise, and by how much of a score; or no token.

    `largest` is the largest difference of any score, up to the first other token.
    """

    at: int | None
    other: int
    lead: float
    largest: float


def answer(
    llama: Llama,
    prompt: Sequence[int],
    attend: Attend,
    max_new: int,
    ends: Sequence[int],
    on_token: Callable[[Answer], None] = lambda found: None,
) -> Answer:
    """Generate at most `max_new` tokens, until one of `ends`, which is not part of the answer.

    `on_token` is called after each token, with the answer so far. An attention with a method `generate(llama, prompt,
    max_new)` makes the tokens itself, several in a pass.
    """
    found = Answer(list(prompt))
    own = getattr(attend, "generate", None)
    made = generate(llama, prompt, attend, max_new) if own is None else own(llama, prompt, max_new)
    before = time.perf_counter()
    for token, scores in made:
        now = time.perf_counter()
        found.steps += 1
        if found.tokens or found.prompt_seconds:
            found.writing_seconds += now - before
        else:
            found.prompt_seconds = now - before
        if token in ends:
            break
        found.tokens.append(token)
        found.scores.append(scores)
        on_token(found)
        before = time.perf_counter()
    return found


def compare(llama: Llama, found: Answer, attend: Attend | None = None) -> Comparison | None:
    """Compare an answer with `attend`, or torch's own attention, on the same text in one pass; None if it is empty."""
    if not found.tokens:
        return None
    expected = expected_scores(llama, found.prompt, found.tokens, attend)
    at, other, lead = first_other(found.tokens, expected)
    n_same = len(found.tokens) if at is None else at + 1
    pairs = zip(found.scores[:n_same], expected, strict=False)
    return Comparison(at, other, lead, max(float((scores - want).abs().max()) for scores, want in pairs))


def expected_scores(
    llama: Llama, prompt: Sequence[int], tokens: Sequence[int], attend: Attend | None = None
) -> torch.Tensor:
    """The scores (len(tokens), vocab) that `attend`, or torch's own attention, gives before each of `tokens`."""
    text = torch.tensor([*prompt, *tokens[:-1]])
    with torch.no_grad():
        hidden = llama.hidden(text, attend or CachedAttention(), torch.arange(len(text)))
        return llama.scores(hidden[len(prompt) - 1 :])


def first_other(tokens: Sequence[int], expected: torch.Tensor) -> tuple[int | None, int, float]:
    """The first place at which another token leads, that token, and its lead in scores; None, 0 and 0 without one."""
    for at, (token, want) in enumerate(zip(tokens, expected, strict=True)):
        other = int(want.argmax())
        lead = float(want[other] - want[token])
        if lead > TIE:
            return at, other, lead
    return None, 0, 0.0
