"""Chooses a next token from its scores: the likeliest one, or one drawn by temperature, top-p and seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn from scores.

    Attributes:
        temperature: scores are divided by it; 0 takes the likeliest token, whatever the rest says.
        top_p: only the likeliest tokens are drawn whose probabilities together reach it (Holtzman et al. 2020).
        seed: of the random numbers, at least 0.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0

    def choose(self, scores: torch.Tensor, number: int, position: int) -> int:
        """The token for `position` of completion `number`, from scores (vocab,)."""
        return int(self.ranked(scores, number, position).argmax())

    def ranked(self, scores: torch.Tensor, number: int, position: int) -> torch.Tensor:
        """Numbers (vocab,) of which the largest is the token that is drawn; −inf for tokens outside top-p.

        Adding Gumbel noise to log-probabilities and taking the largest draws from them (Maddison et al. 2014). The
        noise depends on seed, completion and position alone: a token that is computed again is drawn again, whatever
        else is in the step.
        """
        if self.temperature == 0:
            return scores
        scores = self._nucleus(scores.double() / self.temperature)
        noise = np.random.default_rng([self.seed, number, position]).gumbel(size=len(scores))
        return scores + torch.from_numpy(noise)

    def _nucleus(self, scores: torch.Tensor) -> torch.Tensor:
        """Scores with −inf for all but the fewest likeliest tokens whose probabilities together reach top_p."""
        ordered, order = scores.softmax(-1).sort(descending=True)
        before = ordered.cumsum(-1) - ordered
        outside = before >= self.top_p
        outside[0] = False
        return scores.masked_fill(torch.empty_like(outside).scatter_(0, order, outside), -torch.inf)


GREEDY = Sampling()
