"""Decoding: the likeliest next token, or one that is drawn, again and again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from labkit.model.llama import Attend, Llama


def likeliest(scores: torch.Tensor, _position: int) -> int:
    """The token with the largest of scores (vocab,): greedy decoding."""
    return int(scores.argmax())


def generate(
    llama: Llama,
    prompt: Sequence[int],
    attend: Attend,
    max_new: int,
    choose: Callable[[torch.Tensor, int], int] = likeliest,
) -> Iterator[tuple[int, torch.Tensor]]:
    """The next tokens after `prompt`, each with the scores (vocab,) that chose it; it never ends before `max_new`.

    `attend` is called with the whole prompt, then with one token at a time; with the whole text each time if it has a
    true attribute `sees_whole_text`. With a true attribute `rotates` it gets q and k unrotated. `choose` gets scores
    and the position of the token that it chooses.
    """
    text, start = list(prompt), 0
    with torch.no_grad():
        for _ in range(max_new):
            scores = next_scores(llama, text[start:], start, attend)
            token = choose(scores, len(text))
            yield token, scores
            start = 0 if getattr(attend, "sees_whole_text", False) else len(text)
            text.append(token)


def next_scores(llama: Llama, tokens: Sequence[int], start: int, attend: Attend) -> torch.Tensor:
    """The scores (vocab,) of what follows `tokens`, the first of which is at position `start`."""
    hidden = llama.hidden(torch.tensor(tokens), attend, positions_for(attend, start, len(tokens)))
    return llama.scores(hidden[-1])


def positions_for(attend: Attend, start: int, n_tokens: int) -> torch.Tensor | None:
    """The positions of tokens from `start` on; None for an attention that rotates by itself."""
    return None if getattr(attend, "rotates", False) else torch.arange(start, start + n_tokens)
