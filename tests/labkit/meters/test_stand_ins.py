"""Stand-ins: the clock moves by what steps are told to take, the allocator counts by device, and all is put back."""

import time
import types
from time import perf_counter

import pytest
import torch

from labkit.meters.allocation import AllocationMeter
from labkit.meters.cuda import CudaMeter
from labkit.meters.examples import attention
from labkit.meters.stand_ins import (
    CLOCKS,
    ELSEWHERE_MS,
    CudaStandIn,
    OnCuda,
    OperatorCount,
    PacedSteps,
    SmallDevice,
    without_a_gpu,
)


def test_steps_take_what_they_are_told():
    clock = time.perf_counter
    with PacedSteps([30, 10, 20], [3, 1], globals()) as paced:
        before, by_name = time.monotonic_ns(), perf_counter()
        q, k, v = (torch.randn(1, 3, 2, requires_grad=True) for _ in range(3))
        assert time.monotonic_ns() - before == 3 * ELSEWHERE_MS * 10**6
        for forward_ms, backward_ms in ((30, 3), (10, 1), (20, 1), (20, 1)):
            start = time.perf_counter_ns()
            loss = attention(q, k, v).sum()
            between = time.perf_counter_ns()
            loss.backward()
            assert (between - start, time.perf_counter_ns() - between) == (forward_ms * 10**6, backward_ms * 10**6)
        start = time.perf_counter()
        with AllocationMeter():
            attention(q, k, v).sum().backward()
        assert time.perf_counter() - start == pytest.approx(2 * ELSEWHERE_MS / 1000)
        assert perf_counter() > by_name, "a clock imported by name was not replaced"
    assert paced.taken_ms == [[30, 3], [10, 1], [20, 1], [20, 1]]
    assert time.perf_counter is clock is perf_counter


def test_a_module_that_code_is_given_in_place_of_time_is_replaced_too():
    shown = types.ModuleType("time")
    for name in (f"{clock}{unit}" for clock in CLOCKS for unit in ("", "_ns")):
        setattr(shown, name, getattr(time, name))
    names = {"__builtins__": {"__import__": lambda *_args: shown}}
    exec("import time\nread = time.perf_counter", names)
    before = shown.perf_counter
    with PacedSteps([], [], names) as paced:
        assert names["time"].perf_counter() == names["read"]() == paced.now_ns / 10**9
    assert shown.perf_counter is before is names["read"]


def test_operators_are_counted_with_and_without_a_mode_inside():
    x = torch.ones(1, 2, 2)
    with OperatorCount() as count:
        (x @ x).exp()
        with AllocationMeter():
            x.exp()
    assert count.counts == {"exp": 2, "bmm": 1}
    assert count.unwatched == {"exp": 1, "bmm": 1}


def test_each_gpu_has_statistics_of_its_own():
    before = torch.cuda.memory_allocated
    with CudaStandIn() as gpus:
        gpus.allocate(500, "cuda:1")
        gpus.allocate(90)
        with CudaMeter("cuda:1") as meter:
            gpus.allocate(70, 1)
            gpus.free(50, torch.device("cuda", 1))
            gpus.allocate(1000)
            assert (meter.live_bytes, meter.peak_bytes) == (20, 70)
            meter.reset()
            assert meter.peak_bytes == 20
        assert torch.cuda.memory_stats("cuda:1")["allocated_bytes.all.current"] == 520
    assert torch.cuda.memory_allocated is before


def test_without_a_gpu_there_is_none():
    with CudaStandIn(), without_a_gpu():
        assert not torch.cuda.is_available()


def test_a_small_device_runs_out():
    with SmallDevice(40, lambda: torch.OutOfMemoryError("no more")):
        torch.zeros(10)
        with pytest.raises(torch.OutOfMemoryError, match="no more"):
            torch.zeros(11)


def test_a_tensor_says_it_is_on_a_gpu():
    x = OnCuda(torch.ones(2))
    assert x.is_cuda
    assert str(x.device) == "cuda:0"
    assert isinstance(x, torch.Tensor)
