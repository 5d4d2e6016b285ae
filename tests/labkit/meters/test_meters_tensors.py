"""The torch meters against the CPU allocator's own record."""

import pytest
import torch
from torch.nn import functional

from labkit.bench.variants import sdpa
from labkit.meters.profiler import profile_memory
from labkit.meters.tensors import AllocationMeter, measure_peak
from tests.labkit.meters.attentions import (
    BATCH,
    SQUARE,
    VARIANTS,
    D,
    N,
    counted,
    forward_only,
    inputs,
    sdpa_causal_heads,
    two_steps,
)


class TestAgainstTheProfiler:
    """Equality to the byte, after removing from the allocator's record what no dispatch mode can see."""

    @pytest.mark.parametrize("run", [forward_only, two_steps])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
    @pytest.mark.parametrize("attention", VARIANTS)
    def test_peak_and_what_is_kept(self, attention, dtype, run):
        tensors = inputs(dtype=dtype)
        with AllocationMeter(timeline=True) as meter:
            result = run(attention, *tensors)
        got = meter.peak_bytes, meter.live_bytes
        record = profile_memory(run, attention, *inputs(dtype=dtype))
        assert got == (record.peak_bytes_outside({event.op for event in meter.events}), record.kept_bytes)
        assert (result is None) == (run is two_steps)

    @pytest.mark.parametrize("run", [forward_only, two_steps])
    @pytest.mark.parametrize("attention", [v for v in VARIANTS if v not in (sdpa, sdpa_causal_heads)])
    def test_simulated_tensors_count_like_real_ones(self, attention, run):
        real, simulated = (counted(run, attention, *inputs(device)) for device in ("cpu", "meta"))
        assert (simulated.peak_bytes, simulated.largest_bytes) == (real.peak_bytes, real.largest_bytes)

    @pytest.mark.parametrize(
        "fn",
        [
            lambda x: (x - x.max(-1, keepdim=True)[0]).exp(),
            lambda x: (x - x.amax(-1, keepdim=True)).exp(),
            lambda x: x.sort(-1)[0].sin(),
            lambda x: x.topk(5)[0].sin(),
            lambda x: x.gather(-1, torch.zeros(BATCH, N, D, dtype=torch.long)).sin(),
            lambda x: x[:, torch.arange(20)].sin(),
            lambda x: x.index_select(1, torch.arange(20)).sin(),
            lambda x: torch.where(torch.ones(N, D) > 0, x, x.exp()).sin(),
            lambda x: torch.cat([part.sin() for part in x.split(7, dim=1)], dim=1).exp(),
            lambda x: functional.layer_norm(x, (D,)).sin(),
        ],
        ids=["max", "amax", "sort", "topk", "gather", "index", "index_select", "where", "split", "layer_norm"],
    )
    def test_backward_of_operators_around_attention(self, fn):
        def step(x):
            fn(x * torch.ones(N, D)).sum().backward()

        meter = counted(step, inputs()[0], timeline=True)
        record = profile_memory(step, inputs()[0])
        assert meter.peak_bytes == record.peak_bytes_outside({event.op for event in meter.events})

    def test_nothing_has_to_be_taken_out_without_kernels_that_use_scratch(self):
        def step(x):
            shifted = x - x.max(-1, keepdim=True)[0]
            (shifted.exp() / shifted.exp().sum(-1, keepdim=True)).sin().sum().backward()

        (x,) = inputs()[:1]
        assert counted(step, x).peak_bytes == profile_memory(step, inputs()[0]).peak_bytes

    def test_scratch_is_what_one_operator_takes_and_gives_back(self):
        x = torch.ones(N, N).expand(BATCH, N, N)  # the product copies what has a stride of 0
        record = profile_memory(torch.bmm, x, torch.ones(BATCH, N, N))
        assert record.peak_bytes - record.peak_bytes_outside({"aten::bmm"}) == record.peak_bytes - 4 * SQUARE
        assert record.peak_bytes_outside(set()) == record.peak_bytes

    def test_flash_attention_on_the_cpu_uses_scratch_that_no_mode_sees(self):
        q, k, v = inputs(requires_grad=False)
        assert measure_peak(sdpa_causal_heads, q, k, v)[0] < profile_memory(sdpa_causal_heads, q, k, v).peak_bytes
