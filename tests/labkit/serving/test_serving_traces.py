"""Lab 13's traces and their model."""

from __future__ import annotations

import pytest
import torch

from labkit.serving.dense import dense_completion, least_margin
from labkit.serving.engine import token_bytes
from labkit.serving.model import SPEC, Model
from labkit.serving.player import run_layer
from labkit.serving.requests import KINDS, LIMITS, MARGIN, Request, describe, make_trace, prefix_tokens
from labkit.testing.serving.bit_blocks import attention


def text_of(n, seed=0):
    return tuple((seed * 17 + i * 29 + i * i) % 64 for i in range(n))


class TestTraces:
    """Reproducible, far from ties, and described correctly."""

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_seed_gives_one_trace_within_the_budget(self, kind):
        trace, other = make_trace(kind, 0), make_trace(kind, 1)
        assert make_trace(kind, 0) == trace != other
        assert [each.id for each in trace] == list(range(len(trace)))
        assert [each.arrival for each in trace] == sorted(each.arrival for each in trace)
        assert all(least_margin(each.prompt, each.max_new) > MARGIN for each in trace)
        places = LIMITS[kind]["nbytes"] // token_bytes(SPEC, 8) // 8 * 8
        assert max(len(each.prompt) + each.max_new for each in trace + other) <= places

    def test_description(self):
        trace = [Request(0, 0, (1, 2, 3), 1), Request(1, 4, (1, 2, 9, 9), 2)]
        assert prefix_tokens(trace, answers=False) == 2
        answer = dense_completion((1, 2, 3), 1)
        assert prefix_tokens([*trace, Request(2, 5, (1, 2, 3, *answer, 5), 1)]) == 2 + 4
        assert describe(trace).startswith("2 requests in 5 steps, 7 tokens of prompts and 3 to follow; 29% of")


class TestModel:
    """The model gives the same in one pass and in pieces."""

    def test_pieces_give_the_same_logits(self):
        model, text, held = Model(dtype=torch.float64), list(text_of(30)), {}

        def grown(layer, q, k, v):
            if layer in held:
                k, v = torch.cat([held[layer][0], k]), torch.cat([held[layer][1], v])
            held[layer] = k, v
            return attention(q, k, v)

        whole = model.logits(text, range(30), lambda layer, q, k, v: attention(q, k, v))
        pieces = [model.logits(text[a:b], range(a, b), grown) for a, b in ((0, 7), (7, 8), (8, 30))]
        assert torch.allclose(torch.cat(pieces), whole, atol=1e-10)

    def test_margins_depend_on_the_bits(self):
        margins = [least_margin(text_of(40, seed), 6) for seed in range(20)]
        in_two_bits = [least_margin(text_of(40, seed), 6, bits=2) for seed in range(20)]
        assert max(in_two_bits) < 0 < max(margins)


def test_a_layer_is_written_before_it_is_read():
    operations = []

    class Recorder:
        def write(self, layer, *rest):
            operations.append(("write", layer))

        def attend(self, layer, q, table, start):
            operations.append(("attend", start))

    run_layer(Recorder(), 1, ([0], [0]), torch.zeros(1, 1, 1), torch.zeros(1, 1, 1), [(None, [0], 3), (None, [1], 4)])
    assert operations == [("write", 1), ("attend", 3), ("attend", 4)]
