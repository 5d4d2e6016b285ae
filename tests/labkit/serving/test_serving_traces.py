"""Lab 13's traces and their model: the same from the same seed, and what they say of themselves."""

from __future__ import annotations

import pytest
import torch

from labkit.meters.serving import run_layer
from labkit.serving.engine import token_bytes
from labkit.serving.model import SPEC, Model, dense_completion, least_margin
from labkit.serving.trace import KINDS, LIMITS, MARGIN, Request, any_requests, describe, make_trace, prefix_tokens
from labkit.testing.serving.bit_blocks import attention, rounded


def text_of(n, seed=0):
    return tuple((seed * 17 + i * 29 + i * i) % 64 for i in range(n))


class TestTraces:
    """The same from the same seed, clear of ties, and described by what they hold."""

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_seed_is_a_trace(self, kind):
        trace = make_trace(kind, 11)
        assert trace == make_trace(kind, 11) != make_trace(kind, 12)
        assert [each.id for each in trace] == list(range(len(trace)))
        assert [each.arrival for each in trace] == sorted(each.arrival for each in trace)
        assert all(least_margin(each.prompt, each.max_new) > MARGIN for each in trace)

    @pytest.mark.parametrize("kind", KINDS)
    def test_every_request_fits_the_board_s_budget(self, kind):
        places = LIMITS[kind]["nbytes"] // token_bytes(SPEC, 8) // 8 * 8
        longest = max(len(each.prompt) + each.max_new for seed in range(8) for each in make_trace(kind, seed))
        assert longest <= places

    def test_another_kind(self):
        with pytest.raises(ValueError, match="one of chat, documents; got 'books'"):
            make_trace("books", 0)

    def test_described(self):
        trace = [Request(0, 0, (1, 2, 3), 1), Request(1, 4, (1, 2, 9, 9), 2)]
        assert prefix_tokens(trace, answers=False) == 2
        answer = dense_completion((1, 2, 3), 1)
        assert prefix_tokens([*trace, Request(2, 5, (1, 2, 3, *answer, 5), 1)]) == 2 + 4
        assert describe(trace).startswith("2 requests in 5 steps, 7 tokens of prompts and 3 to follow; 29% of")

    def test_requests_for_plans_begin_alike(self, rng):
        trace = any_requests(rng, 20)
        assert prefix_tokens(trace, answers=False) > 20


class TestModel:
    """One model for all: dense, in pieces, and whatever a cache does."""

    def test_pieces_give_what_the_whole_gives(self):
        model, text, held = Model(dtype=torch.float64), list(text_of(30)), {}

        def grown(layer, q, k, v):
            if layer in held:
                k, v = torch.cat([held[layer][0], k]), torch.cat([held[layer][1], v])
            held[layer] = k, v
            return attention(q, k, v)

        whole = model.logits(text, range(30), lambda layer, q, k, v: attention(q, k, v))
        pieces = [model.logits(text[a:b], range(a, b), grown) for a, b in ((0, 7), (7, 8), (8, 30))]
        assert torch.allclose(torch.cat(pieces), whole, atol=1e-10)

    def test_the_second_layer_depends_on_the_beginning(self):
        seen = {}

        def kept(name):
            def attend(layer, q, k, v):
                seen[name, layer] = k
                return attention(q, k, v)

            return attend

        for name, first in (("a", 1), ("b", 2)):
            Model().logits([first, 5, 6, 7], range(4), kept(name))
        assert torch.equal(seen["a", 0][1:], seen["b", 0][1:])
        assert not torch.allclose(seen["a", 1][1:], seen["b", 1][1:])

    def test_margins_are_of_both_caches(self):
        margins = [least_margin(text_of(40, seed), 6) for seed in range(20)]
        in_two_bits = [least_margin(text_of(40, seed), 6, bits=2) for seed in range(20)]
        assert max(in_two_bits) < 0 < max(margins)

    def test_rounding(self):
        x = torch.tensor([[1.0, 2.0, 4.0, 2.4], [3.0, 3.0, 3.0, 3.0]])
        assert rounded(x, 2).tolist() == [[1.0, 2.0, 4.0, 2.0], [3.0, 3.0, 3.0, 3.0]]


def test_a_layer_is_written_before_it_is_read():
    deeds = []

    class Recorder:
        def write(self, layer, *rest):
            deeds.append(("write", layer))

        def attend(self, layer, q, table, start):
            deeds.append(("attend", start))

    run_layer(Recorder(), 1, ([0], [0]), torch.zeros(1, 1, 1), torch.zeros(1, 1, 1), [(None, [0], 3), (None, [1], 4)])
    assert deeds == [("write", 1), ("attend", 3), ("attend", 4)]
