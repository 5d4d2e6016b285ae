"""What every right peak_memory.py does, and no wrong one."""

import gc
import itertools

import peak_memory
import pytest
import torch
from peak_memory import MemoryTracker, attention_training_memory, benchmark_attention, largest_seq_len, measure_memory

from labkit.meters.fakes import SmallDevice, out_of_memory
from labkit.meters.tensors import measure_peak

SHAPES = [
    (8, 256, 16, 4),
    (2, 63, 17, 4),
    (3, 200, 20, 2),
    (1, 1, 512, 8),
    (1, 40, 170, 4),
    (4, 64, 1024, 4),
    (1000, 1, 4, 4),
]


def left_over(function):
    """The bytes still alive after a call whose result is thrown away."""
    return measure_peak(lambda: [function(), gc.collect()].clear()).kept_bytes


@pytest.fixture
def gpus(monkeypatch):
    """Two GPUs, by their numbers: the bytes allocated, and the most. Number 0 is the current one."""
    held = {0: [1000, 5000], 1: [1000, 5000]}

    def of(device=None):
        return held[torch.device(device or 0).index or 0]

    names = "allocated_bytes.all.current", "allocated_bytes.all.peak"
    fakes = {"memory_allocated": lambda *on: of(*on)[0], "max_memory_allocated": lambda *on: of(*on)[1]}
    fakes |= {"memory_stats": lambda *on: dict(zip(names, of(*on), strict=True)), "synchronize": lambda *_: None}
    fakes |= {"reset_peak_memory_stats": lambda *on: of(*on).__setitem__(1, of(*on)[0])}
    for name, fake in {**fakes, "is_available": lambda: True, "device_count": lambda: 2}.items():
        monkeypatch.setattr(f"torch.cuda.{name}", fake)
    return held


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_MemoryTracker(device):
    place, x, y, w = (
        torch.zeros(24, device=device),
        torch.ones(4, 6),
        torch.ones(4, 6),
        torch.ones(1000, requires_grad=True),
    )
    readings = []

    def read(*trackers):
        readings.extend((each.current_allocated(), each.peak_allocated()) for each in trackers)

    with MemoryTracker(device) as tracker:
        kept = [torch.zeros(500, device=device) for _ in range(3) if torch.zeros(600).numel()]
        del kept[1:]
        read(tracker)
        tracker.reset()
        read(tracker)
        kept += [kept[0][3:], kept[0].view(20, 25).T, *kept[0].split(7), place.zero_(), place[3:]]
        kept += [torch.zeros(77, dtype=torch.bool), torch.zeros(10, dtype=torch.float64, device=device), x.max(-1)]
        kept += [torch.zeros(5, device=device).clone(), torch.empty_strided((10,), (100,), device=device)]
        torch.add(x, 1, out=y)
        read(tracker)
        with MemoryTracker() as inner:
            kept.append(torch.zeros(5))
        kept.append(torch.zeros(5))
        read(tracker, inner)
        w.exp().sum().backward()
        read(tracker)
    del place
    kept[:] = [torch.zeros(50)]
    read(tracker)
    with tracker:
        kept[:] = [torch.zeros(3)]
        read(tracker)
    assert readings == [
        (2000, 6400),
        (2000, 2000),
        (5829, 5829),
        (5869, 5869),
        (20, 20),
        (9869, 13_877),
        (4000, 13_877),
        (12, 12),
    ]


def test_MemoryTracker_devices(gpus, monkeypatch):
    for device, number in (("cuda:1", 1), ("cuda", 0)):
        with MemoryTracker(device) as tracker:
            gpus[number] = [1400, gpus[number][1] + 700]
            assert (tracker.current_allocated(), tracker.peak_allocated()) == (400, 700)
    for name in ("is_available", "device_count"):
        monkeypatch.setattr(f"torch.cuda.{name}", lambda: 0)
    for device, error in (("mps", ValueError), ("cuda", RuntimeError), ("cpu", KeyError)):
        with pytest.raises(error), MemoryTracker(device):
            raise KeyError


def test_measure_memory(gpus, monkeypatch):
    x, seen = torch.ones(1000, requires_grad=True), []
    peak, (result, _) = measure_memory(lambda x, *, y: (x.exp() * 2, seen.append(y)), x, y=7)
    assert (peak, seen, result.requires_grad) == (8000, [7], True)
    assert measure_memory(lambda x: (x + 1).sum(), torch.zeros(10)) == (44, 10)
    assert measure_memory(lambda x: x.view(5, 2).T, torch.zeros(10))[0] == 0
    with pytest.raises(ZeroDivisionError):
        measure_memory(lambda: 1 / 0)
    gpu, cpu = torch.zeros(1), torch.zeros(1)
    monkeypatch.setattr("torch.Tensor.device", property(lambda x: torch.device("cuda" if x is gpu else "cpu")))
    for *args, y in ({"x": [gpu]}, 0), (5, gpu, cpu, 0), (gpu,), (cpu, gpu, 0), (cpu, gpu), (5,):
        gpus[0] = [1000, 5000]
        want = 40 if y == 5 or (args and args[0] is cpu) else 300
        called = measure_memory(lambda *_, y: (gpus.update({0: [1100, 1300]}), torch.zeros(10)), *args, y=y)
        assert called[0] == want


def test_saved_for_backward():
    (x, w), calls = [torch.ones(30, 40, requires_grad=True) for _ in range(2)], []
    for want, function in [
        (0, lambda x: {"a": (x.exp(), 5), "b": [x.exp()[1:], (x / 3.0).sum(), x[1:] * x[:-1]]}),
        (4800, lambda x: calls.append(x) or (x * w).sum()),
        (4800, lambda x: ((e := x.exp()).T @ e[:, :5]).sum() + (e[2:] * e[:-2]).sum()),
        (4800, lambda x: (x + x)[:10].sin().sum()),
        (1200, lambda x: (x * (x > 0)).sum()),
        (240, lambda x: x.max(-1)[0].sum()),
    ]:
        assert peak_memory.saved_for_backward(function, x) == want
    assert len(calls) == 1 and x.grad is None
    assert peak_memory.saved_for_backward(lambda x, y: x[1][0] * y["w"], (5, [x]), {"w": w}) == 0
    assert peak_memory.saved_for_backward(torch.nn.BatchNorm1d(40).eval(), x) == 0
    assert left_over(lambda: peak_memory.saved_for_backward(torch.exp, x)) == 0


def predicted(batch, n, d, size=4, unit=512, workspace=64 << 20):
    """The handout's tables."""
    numbers = [batch * n * n * size, batch * n * d * size, batch * n * 8, batch * n * size, size]
    square, tall, argmax, sums, one = (-(-x // unit) * unit for x in numbers)
    saved, always = 2 * square + argmax + sums, 6 * tall + one + workspace
    forward = max(saved + 2 * square, saved + tall + one)
    step = max(forward, one + max(saved + square + tall, saved + 4 * square, square + 2 * tall))
    parts = {"inputs": 3 * tall, "gradients": 3 * tall, "argmax": argmax, "row_sums": sums, "loss": one}
    parts |= dict.fromkeys(("scores", "shifted", "exponentials", "weights"), square) | {"workspace": workspace}
    return {**parts, "saved": saved, "forward_peak": always + forward, "step_peak": always + step}


def test_attention_training_memory(rng):
    for shape in [(7, 31, 31), *SHAPES, *(2 ** rng.integers(0, [5, 9, 11, 4], (20, 4))).tolist()]:
        found = attention_training_memory(*shape)
        assert found == predicted(*shape) and all(isinstance(x, int) for x in found.values())
    for name, value in itertools.product(["batch", "seq_len", "d_model", "dtype_bytes"], [0, -3]):
        with pytest.raises(ValueError, match=name):
            attention_training_memory(**{"batch": 2, "seq_len": 3, "d_model": 4, name: value})


def test_largest_seq_len():
    for (batch, n, d, size), peak in itertools.product(SHAPES, ["forward_peak", "step_peak", "saved"]):
        exact = predicted(batch, n, d, size)[peak]
        for capacity in (exact, exact - 1, 10**15, 10**33, 1):
            found = largest_seq_len(capacity, batch, d, size, peak)
            assert isinstance(found, int) and (found == 0 or predicted(batch, found, d, size)[peak] <= capacity)
            assert predicted(batch, found + 1, d, size)[peak] > capacity
    for peak in ("peek", "weights"):
        with pytest.raises(ValueError, match=peak):
            largest_seq_len(10**9, 1, 1, peak=peak)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_benchmark_attention(device):
    rows = benchmark_attention([17, 5], [70, 9], 3, 0, 1, device)
    for row, (d, n) in zip(rows, itertools.product([17, 5], [70, 9]), strict=True):
        want = predicted(3, n, d, **{} if device == "meta" else {"unit": 1, "workspace": 0})
        want = {"mem_max_MB": want["forward_peak"] / 2**20, "add_mem_MB": want["saved"] / 2**20, "status": "success"}
        want |= {"d_model": d, "seq_len": n, "batch_size": 3, "warmup_steps": 0, "steps": 1, "device": device}
        assert {row.pop("fwd_ms") is None, row.pop("bwd_ms") is None} == {device == "meta"} and row == want


def test_benchmark_attention_times(monkeypatch):
    """Passes take given times, counted from the making of inputs, by a clock that they move."""
    forward, backward = [9000, 8000, 10, 40, 20, 900, 30], [9000, 9000, 60, 500, 100, 90, 80]
    now = step = 0

    def draw(*args, original=torch.randn, **options):
        nonlocal now, step
        now, step = now + 10**4, 0
        return original(*args, **options)

    def attend(q, k, v, original=peak_memory.attention):
        nonlocal now
        assert step == 0 or q.grad is not None
        now += forward[step]
        return original(q, k, v)

    def go_back(loss, original=torch.Tensor.backward):
        nonlocal now, step
        now, step = now + backward[step], step + 1
        original(loss)

    fakes = {"torch.randn": draw, "peak_memory.attention": attend, "torch.Tensor.backward": go_back}
    fakes |= {"time.perf_counter": lambda: now / 1e3, "time.perf_counter_ns": lambda: now * 10**6}
    for name, fake in fakes.items():
        monkeypatch.setattr(name, fake)
    (row,) = benchmark_attention([4], [8], 1, 2, 5)
    assert (row["fwd_ms"], row["bwd_ms"]) == pytest.approx((30, 90))


def test_benchmark_attention_errors():
    for where in ("CUDA", "CPU"):
        with SmallDevice(40_000, lambda where=where: out_of_memory(where)):
            small, large, last = benchmark_attention([4], [8, 128, 9], 1, 0, 1)
        assert (small["status"], large["status"], last["status"]) == ("success", "oom", "success")
    for kind in (RuntimeError, TypeError):
        with pytest.raises(kind), SmallDevice(40_000, lambda kind=kind: kind("an illegal memory access")):
            benchmark_attention([4], [128], 1, 0, 1)
    with pytest.raises(ValueError, match="mps"):
        benchmark_attention([4], [8], device="mps")
    assert left_over(lambda: benchmark_attention([4], [8], 1, 0, 1)) == 0
