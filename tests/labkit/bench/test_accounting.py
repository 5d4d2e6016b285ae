"""Closed forms of attention's memory against the meter, to the byte, and the longest sequences that fit."""

import pytest
import torch

from labkit.bench.accounting import (
    DEFINITIONS,
    GIB,
    MIB,
    SOFTMAXES,
    attention_memory,
    longest_that_fits,
)
from labkit.bench.table import benchmark_rows
from labkit.bench.variants import FORMS
from labkit.meters.tensors import AllocationMeter

SHAPES = [(8, 256, 16), (1, 1, 1), (2, 63, 17), (1, 1, 512), (1, 40, 80), (3, 1, 4), (2, 2, 7)]


def simulate(softmax, shape, dtype, round_to):
    """Measured bytes of each definition in the second of two steps; events of its forward and its backward pass."""
    form, got = FORMS[softmax], {}
    with AllocationMeter(round_to, timeline=True) as meter:
        q, k, v = (
            meter.name("inputs", torch.randn(shape, device="meta", dtype=dtype, requires_grad=True)) for _ in "qkv"
        )
        for last in (False, True):
            before = meter.live_bytes
            meter.reset()
            loss = meter.name("loss", form(q, k, v, meter.name).sum())
            got["forward_peak"], got["live_after_forward"] = meter.peak_bytes, meter.live_bytes
            got["saved"] = meter.live_bytes - before
            forward_events = len(meter.events)
            loss.backward()
            if not last:
                for x in (q, k, v):
                    meter.name("gradients", x.grad)
        got["step_peak"] = meter.peak_bytes
    with AllocationMeter(round_to) as inference, torch.no_grad():
        q, k, v = (torch.randn(shape, device="meta", dtype=dtype) for _ in "qkv")
        form(q, k, v)
    got["inference_peak"] = inference.peak_bytes
    return got, meter.events[:forward_events], meter.events[forward_events:]


def highest(events):
    return max(events, key=lambda event: event.live_bytes)


def by_label(event):
    parts = {}
    for block in event.blocks:
        parts[block.label] = parts.get(block.label, 0) + block.nbytes
    return parts


class TestClosedForms:
    @pytest.mark.parametrize("round_to", [1, 512])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
    @pytest.mark.parametrize("softmax", SOFTMAXES)
    def test_equal_the_meter_to_the_byte(self, softmax, dtype, round_to):
        for shape in SHAPES:
            got, _, _ = simulate(softmax, shape, dtype, round_to)
            sizes = {"dtype_bytes": dtype.itemsize, "round_to": round_to, "workspace_bytes": 0}
            for definition in DEFINITIONS:
                parts = attention_memory(*shape, definition=definition, softmax=softmax, **sizes)
                assert (shape, definition, sum(parts.values())) == (shape, definition, got[definition])

    @pytest.mark.parametrize("shape", [(8, 256, 16), (3, 70, 33)])
    def test_parts_of_the_forward_peak_are_what_is_alive(self, shape):
        _, forward, _ = simulate("written_out", shape, torch.float32, 512)
        parts = attention_memory(*shape, workspace_bytes=0)
        assert by_label(highest(forward)) == parts
        _, forward, _ = simulate("built_in", shape, torch.float32, 512)
        at_softmax = [event for event in forward if event.op == "aten::_softmax"][-1]
        assert by_label(at_softmax) == attention_memory(*shape, softmax="built_in", workspace_bytes=0)

    @pytest.mark.parametrize("shape", [(8, 256, 16), (3, 70, 33)])
    def test_parts_of_the_step_peak_are_what_is_alive(self, shape):
        names = {
            "ones_like": ["seed_gradient"],
            "BmmBackward0: bmm": ["dweights"],
            "DivBackward0: div": ["quotient", "quotient_over_row_sums"],
            "DivBackward0: neg": ["negated_dweights"],
            "DivBackward0: mul": ["product"],
            "SoftmaxBackward0: _softmax_backward_data": ["dscores"],
        }
        for softmax in SOFTMAXES:
            _, _, backward = simulate(softmax, shape, torch.float32, 512)
            parts = attention_memory(*shape, definition="step_peak", softmax=softmax, workspace_bytes=0)
            alive = by_label(highest(backward))
            assert alive == {label: sum(parts[name] for name in names.get(label, [label])) for label in alive}
            assert sum(alive.values()) == sum(parts.values())


class TestWhatFits:
    @pytest.mark.parametrize("softmax", SOFTMAXES)
    @pytest.mark.parametrize("definition", DEFINITIONS)
    @pytest.mark.parametrize("capacity_bytes", [65 * MIB, 24 * GIB, 98 * GIB])
    def test_the_last_that_fits(self, definition, softmax, capacity_bytes):
        seq_len = longest_that_fits(capacity_bytes, 8, 64, definition=definition, softmax=softmax)

        def total(n):
            return sum(attention_memory(8, n, 64, definition=definition, softmax=softmax).values())

        assert total(seq_len) <= capacity_bytes < total(seq_len + 1)

    def test_the_meter_agrees(self):
        seq_len = longest_that_fits(98 * GIB, 8, 16)
        fits, next_one = (benchmark_rows([16], [n])[0]["mem_max_MB"] for n in (seq_len, seq_len + 1))
        assert fits <= 98 * 1024 < next_one

    def test_nothing_fits(self):
        assert longest_that_fits(64 * MIB, 8, 64) == 0
        assert longest_that_fits(0, 8, 64, workspace_bytes=0) == 0

    def test_numbers_of_the_case_study(self):
        gb = 10**9
        assert longest_that_fits(98 * GIB, 8, 16, definition="step_peak") == 23394
        assert longest_that_fits(98 * GIB, 8, 16, definition="step_peak", softmax="built_in") == 33081
        assert (longest_that_fits(98 * GIB, 8, 16), longest_that_fits(98 * gb, 8, 16)) == (28650, 27648)
        assert round(sum(attention_memory(8, 32768, 16).values()) / GIB, 1) == 128.2
        assert attention_memory(8, 16384, 128)["gradients"] == 192 * MIB
        short, long = (sum(attention_memory(8, n, 16, definition="saved").values()) for n in (256, 16384))
        assert round(long / short, 1) == 4072.5
