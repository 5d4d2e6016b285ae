"""Lab 15 in the model: drafts are found in the text itself, and `accept_drafts` chooses which of them stay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from labkit.chat.adapters.base import Adapter
from labkit.chat.setting import Setting
from labkit.model.attention import grouped_attention
from labkit.model.llama import Llama
from labkit.testing.compare import require

MOST_DRAFTS = 4
"""In a pass."""
MATCHED = (3, 2)
"""Tokens at the end of the text that are looked for earlier in it: first three, then two."""


class TextDrafts(Adapter):
    """Lab 15: a pass computes one verified token and up to four drafts; the course's cache is cut to those that stay.

    The drafts need no second model: they are what followed the text's last tokens where these last occurred (prompt
    lookup, Saxena 2023). Such a guesser is certain, q = 1, and the model is greedy: temperature 0.
    """

    def __init__(self, student: Any, setting: Setting) -> None:
        super().__init__(student, setting)
        self.passes = self.written = self.drafts = self.rejected = 0

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """See `labkit.model.llama.Attend`."""
        return grouped_attention(q, *self.so_far(layer, k, v))

    def generate(self, llama: Llama, prompt: Sequence[int], max_new: int) -> Iterator[tuple[int, torch.Tensor]]:
        """See `labkit.model.generate.generate`."""
        text, start = list(prompt), 0
        end = len(text) + max_new
        while len(text) < end:
            drafts = text_drafts(text, min(MOST_DRAFTS, end - len(text) - 1))
            tokens = [*text[start:], *drafts]
            with torch.no_grad():
                hidden = llama.hidden(torch.tensor(tokens), self, torch.arange(start, start + len(tokens)))
                scores = llama.scores(hidden[-len(drafts) - 1 :])
            chosen = self._accepted(scores, drafts)
            start = len(text) + len(chosen) - 1
            self.cut(start)
            self.passes += 1
            self.drafts += len(drafts)
            self.rejected += len(drafts) - (len(chosen) - 1)
            for token, its_scores in zip(chosen, scores, strict=False):
                self.written += 1
                text.append(token)
                yield token, its_scores

    def cut(self, length: int) -> None:
        """Take back all tokens from `length` on."""
        for cache in self.caches.values():
            cache.length = length

    def _accepted(self, scores: torch.Tensor, drafts: list[int]) -> list[int]:
        """What the student's function chooses, if it is the beginning of the drafts and one token more."""
        n, vocab = len(drafts), scores.shape[-1]
        certain = torch.full((n, vocab), -torch.inf)
        certain[torch.arange(n), drafts] = 0.0
        chosen = self.student.accept_drafts(scores, certain, list(drafts), torch.zeros(n + 1), 0.0)
        fits = isinstance(chosen, list) and 1 <= len(chosen) <= n + 1 and chosen[:-1] == drafts[: len(chosen) - 1]
        require(
            fits and 0 <= chosen[-1] < vocab,
            f"accept_drafts returns {chosen!r} for the drafts {drafts}, expected some of them and one token more",
        )
        return [int(token) for token in chosen]

    def notes(self) -> list[str]:
        """See `Adapter`."""
        return [
            f"drafts: {self.written} tokens in {self.passes} passes, {self.written / self.passes:.2f} per pass; "
            f"{self.rejected} of {self.drafts} drafts were taken back"
        ]


def text_drafts(text: Sequence[int], most: int) -> list[int]:
    """At most `most` tokens that followed the text's last tokens, three or else two, where these last occurred."""
    for n in MATCHED:
        for at in range(len(text) - 1, n - 1, -1):
            if text[at - n : at] == text[-n:]:
                return list(text[at : at + most])
    return []


ADAPTER = TextDrafts
