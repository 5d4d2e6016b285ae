"""The torch meters' live bytes and records, and the operands that they must refuse."""

import numpy as np
import pytest
import torch

from labkit.bench.variants import written_out
from labkit.meters.allocation import AllocationMeter, SimulatedOutOfMemoryError
from labkit.meters.tensors import CudaMeter, measure_peak, meter_for
from tests.labkit.meters.attentions import BATCH, SQUARE, N, counted, forward_only, inputs, self_attention, two_steps


class TestCounting:
    def test_inputs_and_views_cost_nothing(self):
        x = torch.ones(100, 4)
        with AllocationMeter() as meter:
            views = x[3:], x.t(), x.view(-1), x.expand(5, 100, 4), x.add_(1), x.detach()
        assert (meter.live_bytes, meter.peak_bytes, meter.largest_bytes) == (0, 0, 0)
        assert len(views) == 6

    def test_a_storage_counts_once_and_until_its_last_view_goes(self):
        with AllocationMeter() as meter:
            x = torch.ones(100)
            tail = x[90:]
            assert meter.live_bytes == 400
            del x
            assert meter.live_bytes == 400
            del tail
            assert meter.live_bytes == 0
        assert meter.peak_bytes == 400

    def test_what_autograd_holds_is_alive(self):
        x = torch.ones(100, requires_grad=True)
        with AllocationMeter() as meter:
            loss = x.exp().sum()
            assert meter.live_bytes == 404
            loss.backward()
            assert meter.live_bytes == 404  # the saved exponentials went, x.grad came
        assert x.grad is not None
        x.grad = None
        assert meter.live_bytes == 4

    def test_releases_count_after_leaving_and_new_storages_do_not(self):
        with AllocationMeter() as meter:
            x = torch.ones(100)
        y = torch.ones(100)
        assert meter.live_bytes == 400
        del x, y
        assert meter.live_bytes == 0

    def test_constructors(self):
        with AllocationMeter() as meter:
            made = [torch.tensor([1.0] * 25), torch.arange(10), torch.Tensor(5, 5), torch.full((3,), 2.0)]
            assert meter.live_bytes == 100 + 80 + 100 + 12
            borrowed = torch.from_numpy(np.ones(50))
            assert meter.live_bytes == 292
        assert len(made) == 4
        assert len(borrowed) == 50

    def test_a_storage_that_an_operator_resizes(self):
        with AllocationMeter() as meter:
            x = torch.empty(0)
            torch.add(torch.ones(100), 1, out=x)
            assert (meter.live_bytes, meter.peak_bytes) == (400, 800)
            x.resize_(200)
        assert (meter.live_bytes, meter.peak_bytes, meter.largest_bytes) == (800, 800, 800)

    def test_each_storage_is_rounded_up_by_itself(self):
        with AllocationMeter(round_to=512) as meter:
            kept = [torch.ones(1), torch.ones(128), torch.ones(129), torch.ones(0)]
        assert [block.nbytes for block in meter.blocks] == [512, 512, 1024, 0]
        assert meter.peak_bytes == 2048
        assert len(kept) == 4

    def test_reset_starts_from_what_is_alive(self):
        with AllocationMeter() as meter:
            x = torch.ones(100)
            torch.ones(1000)
            meter.reset()
            assert (meter.peak_bytes, meter.largest_bytes) == (400, 0)
            torch.ones(50)
            torch.ones(10)
        assert (meter.peak_bytes, meter.largest_bytes) == (600, 200)
        assert len(x) == 100

    def test_a_meter_inside_a_meter_changes_neither(self):
        tensors = inputs()
        with AllocationMeter() as outer, AllocationMeter() as inner:
            two_steps(self_attention, *tensors)
        assert outer.peak_bytes == inner.peak_bytes == counted(two_steps, self_attention, *inputs()).peak_bytes

    def test_over_capacity_is_out_of_memory_in_forward_and_in_backward(self):
        need = counted(two_steps, written_out, *inputs("meta")).peak_bytes
        assert counted(two_steps, written_out, *inputs("meta"), capacity_bytes=need).peak_bytes == need
        with pytest.raises(SimulatedOutOfMemoryError, match=f"{need:,} bytes alive, {need - 1:,} bytes of memory"):
            counted(two_steps, written_out, *inputs("meta"), capacity_bytes=need - 1)
        with pytest.raises(torch.OutOfMemoryError):
            counted(forward_only, written_out, *inputs("meta"), capacity_bytes=8 * SQUARE)


class TestTimeline:
    def test_names_and_operators_of_what_is_alive(self):
        with AllocationMeter(timeline=True) as meter:
            q, k, v = (meter.name("inputs", x) for x in inputs("meta"))
            loss = meter.name("loss", written_out(q, k, v, meter.name).sum())
            loss.backward()
        highest = max(meter.events[: [event.op for event in meter.events].index("aten::ones_like")], key=_live)
        labels = [block.label for block in highest.blocks]
        squares = [block.label for block in highest.blocks if block.shape == (BATCH, N, N)]
        assert labels == ["inputs"] * 3 + ["scores", "argmax", "shifted", "exponentials", "row_sums", "weights"]
        assert squares == ["scores", "shifted", "exponentials", "weights"]
        assert [block.dtype for block in highest.blocks].count("torch.int64") == 1
        last = max(meter.events, key=_live)
        assert (last.op, last.node) == ("aten::mul", "DivBackward0")
        assert "BmmBackward0: bmm" in [block.label for block in last.blocks]

    def test_every_event_adds_up_and_the_peak_is_one_of_them(self):
        meter = counted(two_steps, self_attention, *inputs("meta"), timeline=True)
        assert meter.peak_bytes == max(map(_live, meter.events))
        assert all(event.live_bytes == sum(block.nbytes for block in event.blocks) for event in meter.events)
        assert [event.peak_bytes for event in meter.events] == list(np.maximum.accumulate([*map(_live, meter.events)]))


def _live(event):
    return event.live_bytes


class TestRefusals:
    def test_no_cuda_statistics_without_a_gpu(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        with pytest.raises(RuntimeError, match="no CUDA device here"):
            CudaMeter()
        with pytest.raises(RuntimeError, match="no CUDA device here"):
            meter_for("cuda:0")

    def test_fake_cuda(self):
        from torch._subclasses.fake_tensor import FakeTensorMode

        with AllocationMeter(), FakeTensorMode(), pytest.raises(RuntimeError, match="a tensor on cuda"):
            torch.ones(3, device="cuda")

    def test_other_devices_and_rounding_to_nothing(self):
        with pytest.raises(RuntimeError, match="no meter for device 'mps'"):
            meter_for("mps")
        with pytest.raises(ValueError, match="round_to"):
            AllocationMeter(round_to=0)

    def test_the_compiler_is_not_put_around_every_operator(self):
        assert not hasattr(AllocationMeter.__torch_dispatch__, "__wrapped__")


class TestMeasurePeak:
    def test_peak_over_the_baseline_and_result(self):
        x = torch.ones(1000)
        peak_bytes, kept_bytes, result = measure_peak(lambda a, scale: (a * scale).sum(), x, scale=3.0)
        assert (peak_bytes, kept_bytes, result.item()) == (4004, 4, 3000.0)

    def test_simulated(self):
        x = torch.empty(8, 16384, 128, device="meta")
        peak_bytes, _, result = measure_peak(lambda a: a @ a.transpose(1, 2), x)
        assert peak_bytes == 8 * 16384**2 * 4
        assert result.device.type == "meta"

    def test_without_tensors_the_default_device_decides(self, monkeypatch):
        with torch.device("meta"):
            assert measure_peak(lambda: torch.empty(10**15).shape)[0] == 4 * 10**15
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        with torch.device("cuda"), pytest.raises(RuntimeError, match=r"CUDA|NVIDIA"):
            measure_peak(lambda: 0)

    @pytest.mark.gpu
    def test_cuda(self):
        kept = torch.ones(2**18, device="cuda")
        peak_bytes, _, _ = measure_peak(lambda x: (torch.empty_like(x), torch.empty_like(x))[0], kept)
        assert peak_bytes == 2 * 2**20
