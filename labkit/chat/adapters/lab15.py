"""Lab 15 in the model: drafts are found in the text itself, and `accept_drafts` chooses which of them stay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch

from labkit.chat.adapters.base import Adapter
from labkit.chat.setting import Setting, checked
from labkit.model.attention import expanded, grouped_attention
from labkit.model.hybrid import CachedHybrid
from labkit.model.llama import Attend, Llama
from labkit.testing.compare import require

MOST_DRAFTS = 4
"""In a pass."""
MATCHED = (3, 2)
"""Tokens at the end of the text that are looked for earlier in it: first three, then two."""
BLOCK, EVERY, CHUNK = 16, 32, 16
"""Tokens in a block, from one checkpoint to the next, and in a chunk."""
TEXT, FORK = "text", "fork"
"""Names of sequences."""


class TextDrafts(Adapter):
    """Lab 15: a pass computes one verified token and up to four drafts; the course's cache is cut to those that stay.

    The drafts need no second model: they are what followed the text's last tokens where these last occurred (prompt
    lookup, Saxena 2023). Such a guesser is certain, q = 1, and the model is greedy: temperature 0.
    """

    def __init__(self, student: Any, setting: Setting) -> None:
        super().__init__(student, setting)
        self.passes = self.written = self.drafts = self.rejected = 0

    @classmethod
    def chosen(cls, setting: Setting) -> type[Adapter]:
        """See `Adapter`."""
        return HybridDrafts if setting.sizes.attention_every > 1 else cls

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """See `labkit.model.llama.Attend`."""
        return grouped_attention(q, *self.so_far(layer, k, v))

    def generate(self, llama: Llama, prompt: Sequence[int], max_new: int) -> Iterator[tuple[int, torch.Tensor]]:
        """See `labkit.model.generate.generate`."""
        text, start = list(prompt), 0
        end = len(text) + max_new
        while len(text) < end:
            drafts = text_drafts(text, min(MOST_DRAFTS, end - len(text) - 1))
            scores = self.compute(llama, text[start:], drafts, start)
            chosen = self._accepted(scores, drafts)
            self.keep(len(drafts), len(chosen) - 1)
            start = len(text) + len(chosen) - 1
            self.passes += 1
            self.drafts += len(drafts)
            self.rejected += len(drafts) - (len(chosen) - 1)
            for token, its_scores in zip(chosen, scores, strict=False):
                self.written += 1
                text.append(token)
                yield token, its_scores

    def compute(self, llama: Llama, verified: Sequence[int], drafts: Sequence[int], start: int) -> torch.Tensor:
        """The scores (n + 1, vocab) after the last verified token and after each of n drafts; `start` is a position."""
        tokens = torch.tensor([*verified, *drafts])
        with torch.no_grad():
            hidden = llama.hidden(tokens, self, torch.arange(start, start + len(tokens)))
            return llama.scores(hidden[len(verified) - 1 :])

    def keep(self, n_drafts: int, n_accepted: int) -> None:
        """Take back the drafts of the last pass that were not accepted."""
        for cache in self.caches.values():
            cache.length -= n_drafts - n_accepted

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


class HybridDrafts(TextDrafts):
    """Lab 15 in a model with states: a `HybridCache` for each layer, of which a layer uses its blocks or its state.

    After the first pass each cache is forked. At the end a run without drafts goes on from the forks, and must choose
    the same tokens.
    """

    compared_with = "gated_delta_chunked in one pass"
    cache_note = "in your HybridCache, with checkpoints on top"

    def __init__(self, student: Any, setting: Setting) -> None:
        super().__init__(student, setting)
        sizes, num_blocks = setting.sizes, 2 * -(-setting.max_tokens // BLOCK)
        shape = (num_blocks, BLOCK, EVERY, sizes.heads, sizes.head_dim, sizes.head_dim)
        self.layers = [student.HybridCache(*shape) for _ in range(sizes.layers)]
        self.seq, self.start, self.n_drafts, self.fork_length = TEXT, 0, 0, 0

    def generate(self, llama: Llama, prompt: Sequence[int], max_new: int) -> Iterator[tuple[int, torch.Tensor]]:
        """See `TextDrafts`; the tokens are kept, for the run from the forks."""
        self.llama, self.text = llama, list(prompt)
        for token, scores in super().generate(llama, prompt, max_new):
            self.text.append(token)
            yield token, scores

    def compute(self, llama: Llama, verified: Sequence[int], drafts: Sequence[int], start: int) -> torch.Tensor:
        """See `TextDrafts`."""
        self.start, self.n_drafts = start, len(drafts)
        return super().compute(llama, verified, drafts, start)

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """See `labkit.model.llama.Attend`. The layer's own state is of no use here: with β = 0 it stays zeros."""
        group = q.shape[-3] // k.shape[-3]
        beta = g = torch.zeros(q.shape[:-1])
        self._append(layer, expanded(k, group), expanded(v, group), beta, g)
        return grouped_attention(q, self.layers[layer].keys(self.seq), self.layers[layer].values(self.seq))

    def recur(self, layer: int, q: torch.Tensor, *tokens: torch.Tensor) -> torch.Tensor:
        """See `labkit.model.hybrid.Hybrid`."""
        state = self.layers[layer].state(self.seq) if self.start else None
        o, _ = self.student.gated_delta_recurrent(q, *tokens, state)
        self._append(layer, *tokens)
        return checked(o, q, "gated_delta_recurrent")

    def _append(self, layer: int, *tokens: torch.Tensor) -> None:
        """Add k, v, beta and g of verified tokens, and then those of drafts."""
        n_verified = tokens[-1].shape[-1] - self.n_drafts
        self.layers[layer].append(self.seq, *(x[:, :n_verified] for x in tokens))
        if self.n_drafts:
            self.layers[layer].append(self.seq, *(x[:, n_verified:] for x in tokens), True)

    def keep(self, n_drafts: int, n_accepted: int) -> None:
        """See `TextDrafts`."""
        for cache in self.layers:
            if n_drafts:
                cache.rollback(TEXT, n_accepted)
            if not self.fork_length:
                cache.fork(TEXT, FORK)
        self.fork_length = self.fork_length or len(self.text) + n_accepted

    def reference(self) -> Attend:
        """See `Adapter`."""
        return CachedHybrid(partial(self.student.gated_delta_chunked, chunk=CHUNK))

    def notes(self) -> list[str]:
        """See `Adapter`."""
        self.seq = FORK
        for at in range(self.fork_length, len(self.text) - 1):
            token = int(self.compute(self.llama, self.text[at : at + 1], [], at)[0].argmax())
            if token != self.text[at + 1]:
                line = f"from a fork, without drafts: token {at + 2} of the text is another one"
                break
        else:
            line = f"from a fork, without drafts: the same {len(self.text) - self.fork_length - 1} tokens"
        return [*super().notes(), line]


def text_drafts(text: Sequence[int], most: int) -> list[int]:
    """At most `most` tokens that followed the text's last tokens, three or else two, where these last occurred."""
    for n in MATCHED:
        for at in range(len(text) - 1, n - 1, -1):
            if text[at - n : at] == text[-n:]:
                return list(text[at : at + most])
    return []


ADAPTER = TextDrafts
