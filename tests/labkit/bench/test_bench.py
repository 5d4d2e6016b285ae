"""The benchmark: the published table to the digit, closed forms against the meter to the byte, what fits."""

import csv
from pathlib import Path

import pytest
import torch

from labkit.bench.accounting import (
    CUDA_WORKSPACE_BYTES,
    DEFINITIONS,
    GIB,
    MIB,
    SOFTMAXES,
    account_for,
    attention_memory,
    longest_that_fits,
)
from labkit.bench.columns import COLUMNS, EXTRA_COLUMNS, format_cell
from labkit.bench.contradictions import seed_contradictions
from labkit.bench.table import benchmark_rows
from labkit.bench.variants import FORMS
from labkit.meters.tensors import AllocationMeter

D_MODELS, SEQ_LENS = (16, 32, 64, 128), (256, 1024, 4096, 8192, 16384)
PUBLISHED = list(csv.DictReader((Path(__file__).parent / "data" / "published_benchmark.csv").open()))


@pytest.fixture(scope="module")
def simulated():
    return benchmark_rows(D_MODELS, SEQ_LENS)


class TestThePublishedTable:
    def test_has_twenty_rows_in_the_same_order(self, simulated):
        asked = ("d_model", "seq_len", "batch_size", "warmup_steps", "steps")
        assert len(PUBLISHED) == 20
        assert [[str(row[name]) for name in asked] for row in simulated] == [
            [row[name] for name in asked] for row in PUBLISHED
        ]
        assert tuple(PUBLISHED[0]) == COLUMNS
        assert {tuple(row) for row in simulated} == {COLUMNS + EXTRA_COLUMNS}

    @pytest.mark.parametrize("number", range(20))
    def test_memory_equals_every_printed_digit(self, simulated, number):
        for name in ("mem_max_MB", "add_mem_MB"):
            printed = PUBLISHED[number][name]
            digits = len(printed.replace(".", ""))
            assert f"{simulated[number][name]:.{digits}g}" == printed
            assert format_cell(simulated[number][name]) == printed

    def test_largest_relative_difference_is_rounding(self, simulated):
        pairs = [
            (row[n], float(seed[n]))
            for row, seed in zip(simulated, PUBLISHED, strict=True)
            for n in ("mem_max_MB", "add_mem_MB")
        ]
        assert max(abs(got - want) / want for got, want in pairs) < 5e-6

    def test_every_row_is_accounted_for_to_the_byte(self, simulated):
        for row in simulated:
            assert sum(account_for(row).values()) == row["mem_max_MB"] * MIB
            assert sum(account_for(row, "saved").values()) == row["add_mem_MB"] * MIB

    def test_a_simulation_has_no_times(self, simulated):
        assert {(row["fwd_ms"], row["bwd_ms"], row["status"]) for row in simulated} == {(None, None, "success")}


SHAPES = [
    (8, 256, 16),
    (1, 1, 1),
    (2, 63, 17),
    (3, 5, 300),
    (1, 1, 512),
    (2, 129, 128),
    (7, 31, 31),
    (1, 40, 80),
    (6, 1, 1),
    (3, 1, 4),
    (2, 2, 7),
]


def simulate(softmax, shape, dtype, round_to):
    """The definitions of `attention_memory` read off the meter, in bytes, and the meter; two steps, the second read."""
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
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=["fp32", "bf16", "fp64"])
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

    def test_the_smallest_row(self):
        square, tall = 8 * 256 * 256 * 4, 8 * 256 * 16 * 4
        assert attention_memory(8, 256, 16) == {
            "workspace": 64 * MIB,
            "inputs": 3 * tall,
            "gradients": 3 * tall,
            "loss": 512,
            "scores": square,
            "shifted": square,
            "exponentials": square,
            "weights": square,
            "argmax": 8 * 256 * 8,
            "row_sums": 8 * 256 * 4,
        }

    def test_squares_at_each_peak(self):
        def squares(definition, softmax):
            batch, seq_len = 8, 2**20
            total = sum(attention_memory(batch, seq_len, 1, definition=definition, softmax=softmax).values())
            return total / (batch * seq_len**2 * 4)

        want = {"forward_peak": (4, 2), "step_peak": (6, 3), "inference_peak": (4, 2), "saved": (2, 1)}
        for definition, (written_out, built_in) in want.items():
            assert squares(definition, "written_out") == pytest.approx(written_out, rel=1e-4)
            assert squares(definition, "built_in") == pytest.approx(built_in, rel=1e-4)

    def test_bad_arguments(self):
        with pytest.raises(ValueError, match=r"definition must be one of forward_peak, .*got 'peak'"):
            attention_memory(1, 1, 1, definition="peak")
        with pytest.raises(ValueError, match="softmax must be one of written_out, built_in, got 'sdpa'"):
            attention_memory(1, 1, 1, softmax="sdpa")
        with pytest.raises(ValueError, match="seq_len must be at least 1, got 0"):
            attention_memory(1, 0, 1)


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
        whole_step = longest_that_fits(98 * GIB, 8, 16, definition="step_peak")
        rows = benchmark_rows([16], [whole_step, whole_step + 1], capacity_bytes=98 * GIB)
        assert [row["status"] for row in rows] == ["success", "oom"]

    def test_nothing_fits(self):
        assert longest_that_fits(64 * MIB, 8, 64) == 0
        assert longest_that_fits(0, 8, 64, workspace_bytes=0) == 0

    def test_half_the_bytes_go_further(self):
        options = {"definition": "step_peak", "workspace_bytes": 0}
        full, half = (longest_that_fits(24 * GIB, 8, 16, dtype_bytes, **options) for dtype_bytes in (4, 2))
        assert half / full == pytest.approx(2**0.5, rel=1e-2)


class TestContradictions:
    def test_numbers(self):
        found = {entry.topic: entry for entry in seed_contradictions()}
        formula = found["the value of the out-of-memory formula"].computed
        assert formula["seq_len"] == pytest.approx(40535.4, abs=0.1)
        assert formula["root_as_printed"] == pytest.approx(39.585, abs=1e-3)
        reach = found["the range in which memory is said to run out"].computed
        assert reach["forward_peak_written_out_seq_len_d16"] == 28650
        assert reach["forward_peak_written_out_seq_len_d128"] == 28566
        assert reach["step_peak_written_out_seq_len_d16"] == 23394
        assert found["the workspaces of the forward and the backward pass"].computed[
            "row_less_its_tensors_MiB"
        ] == pytest.approx(64, abs=1e-4)
        assert found["the breakdown of the smallest row"].computed["total_MiB"] == pytest.approx(72.7739, abs=5e-5)
        assert found["what the peak of the table is the peak of"].computed["step_peak_GiB"] == pytest.approx(
            48.11, abs=5e-3
        )

    def test_each_states_something_and_says_why(self):
        entries = seed_contradictions()
        assert len(entries) == len({entry.topic for entry in entries}) == 10
        assert all(entry.stated and entry.computed and entry.why.endswith(".") for entry in entries)


def test_the_workspace_is_sixty_four_mib():
    assert CUDA_WORKSPACE_BYTES == 64 * 2**20
