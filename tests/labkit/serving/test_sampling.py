"""How tokens are drawn: greedy, by temperature and top-p, and again the same for the same seed and place."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from labkit.serving.sampling import GREEDY, Sampling

SCORES = torch.tensor([1.0, 3.0, 2.0, -1.0])


def drawn(sampling: Sampling, n: int = 4000) -> Counter[int]:
    """How often each token is drawn at n positions."""
    return Counter(sampling.choose(SCORES, 0, position) for position in range(n))


def test_temperature_0_takes_the_likeliest_token():
    assert drawn(GREEDY, 20) == drawn(Sampling(0, 0.1, 9), 20) == {1: 20}


@pytest.mark.parametrize("temperature", [0.7, 1.0, 2.0])
def test_tokens_are_drawn_in_proportion_to_their_probabilities(temperature):
    found = drawn(Sampling(temperature, seed=3))
    for token, probability in enumerate((SCORES / temperature).softmax(-1).tolist()):
        spread = (4000 * probability * (1 - probability)) ** 0.5
        assert abs(found[token] - 4000 * probability) < 4 * spread


def test_top_p_takes_the_fewest_tokens_that_reach_it():
    first, second = SCORES.softmax(-1)[[1, 2]].tolist()
    assert set(drawn(Sampling(1, first - 0.01))) == {1}
    assert set(drawn(Sampling(1, first + 0.01))) == {1, 2}
    assert set(drawn(Sampling(1, first + second + 0.01))) == {0, 1, 2}
    assert set(drawn(Sampling(1, 0))) == {1}


def test_a_draw_depends_on_seed_completion_and_position_alone():
    def draws(**given):
        place = {"seed": 1, "number": 0, "first": 0} | given
        sampling = Sampling(2, seed=place["seed"])
        return [sampling.choose(SCORES, place["number"], place["first"] + i) for i in range(60)]

    assert draws() == draws()
    assert draws() != draws(seed=2) and draws() != draws(number=1)
    assert draws(first=7)[:50] == draws()[7:57]
