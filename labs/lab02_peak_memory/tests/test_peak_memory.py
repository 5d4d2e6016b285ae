"""Lab 02's suite: bytes counted while they are alive, bytes saved for the backward pass, and bytes predicted.

Functions inside a test that are called `steps` or marked `@probe` run next to your code, so that tensors stay there.
"""

from functools import partial

import pytest
import torch
from peak_memory import (
    MemoryTracker,
    attention_training_memory,
    benchmark_attention,
    largest_seq_len,
    measure_memory,
    saved_for_backward,
)

from labkit.meters.stand_ins import SmallDevice, out_of_memory
from labkit.testing.compare import assert_equal, assert_raises, require
from labkit.testing.probes import probe

from .probes import (
    CudaAllocator,
    Doubled,
    OnCuda,
    PacedSteps,
    alive_after,
    attention,
    without_a_gpu,
)
from .support import (
    ADD_MEM,
    EXACT,
    LENGTHS,
    MEM_MAX,
    assert_bytes,
    assert_longest,
    assert_memory_columns,
    assert_passes_on,
    assert_prediction,
    assert_readings,
    assert_row_of_a_gpu,
    assert_time_columns,
    nothing_left_on,
    peak_and_result,
    requested,
    step_memory,
)

MIB, GIB = 2**20, 2**30

pytestmark = pytest.mark.seconds(30)  # a dispatch mode that does not decline dynamo imports it at its first operator
simulated = pytest.mark.seconds(90)  # so does the first arithmetic on meta tensors, with a computer algebra system


class TestMemoryTracker:
    def test_worked_example(self):
        def steps():
            with MemoryTracker() as tracker:
                yield tracker
                x = torch.zeros(1000)
                yield tracker
                y = (x + 1).view(10, 100)
                yield tracker
                del x
                yield tracker
            yield tracker
            del y

        assert_readings(
            steps,
            {
                "on entering": (0, 0),
                "after x = torch.zeros(1000)": (4000, 4000),
                "after y = (x + 1).view(10, 100)": (8000, 8000, "a view is no third array"),
                "after del x": (4000, 8000, "what is released no longer counts"),
                "after the block": (4000, 8000),
            },
        )

    def test_the_peak_is_of_one_moment(self):
        def steps():
            with MemoryTracker() as tracker:
                for _ in range(5):
                    torch.zeros(1000)
                yield tracker
                kept = [torch.zeros(500) for _ in range(3)]
                yield tracker
                del kept

        hint = "arrays came and went: a released storage's identity is used again"
        everything = {"everything ever allocated is added up": 20_000}
        assert_readings(
            steps,
            {
                "after five times torch.zeros(1000), not kept": (0, 4000, hint, everything),
                "with three times torch.zeros(500) kept": (6000, 6000, hint),
            },
        )

    def test_a_temporary_raises_the_peak(self):
        def steps():
            x = torch.ones(1000)
            with MemoryTracker() as tracker:
                kept = ((x + 1) * 2).sum()
                yield tracker
                del kept

        hint = "x + 1 is alive while it is doubled, and not afterwards"
        assert_readings(steps, {"after ((x + 1) * 2).sum()": (4, 8000, hint)})

    def test_random_sizes(self, rng):
        lengths = rng.integers(1, 900, 30).tolist()
        dropped = [int(rng.integers(i + 1)) for i in range(30)]

        def steps():
            views = {}
            with MemoryTracker() as tracker:
                for i, (n, old) in enumerate(zip(lengths, dropped, strict=True)):
                    views[i] = torch.zeros(n)[n // 3 :].mul_(0.5)
                    views.pop(old, None)
                    yield tracker

        alive, peak, expected = {}, 0, {}
        for i, (n, old) in enumerate(zip(lengths, dropped, strict=True)):
            alive[i] = 4 * n
            peak = max(peak, sum(alive.values()))
            alive.pop(old, None)
            expected[f"in step {i} of arrays of random lengths"] = (sum(alive.values()), peak)
        assert_readings(steps, expected)

    @pytest.mark.parametrize("device", ["cpu", "meta"])
    def test_views_share_their_storage(self, device):
        def steps():
            with MemoryTracker(device) as tracker:
                x = torch.zeros(30, 40, device=device)
                views = [x.view(1200), x.T, x[3:5], x[:, 1], x.detach(), x.unsqueeze(0).expand(9, 30, 40)]
                views += x.unbind(0)
                yield tracker
                y = x.clone()
                yield tracker
                del x, views[1:]
                yield tracker
                views.clear()
                yield tracker
                del y

        assert_readings(
            steps,
            {
                "with x of 1,200 elements and views of it": (4800, 4800, "data_ptr() differs from view to view"),
                "after x.clone()": (9600, 9600, "a meta tensor has a storage with a size; its data_ptr() is 0"),
                "when one view is left of x": (9600, 9600, "a storage lives as long as any view of it"),
                "when no view is left of x": (4800, 9600),
            },
        )

    def test_a_view_counts_with_its_whole_storage(self):
        def steps():
            with MemoryTracker() as tracker:
                x = torch.empty_strided((10,), (100,))
                yield tracker
                x = torch.zeros(1000)[:10]
                yield tracker
                y = torch.zeros(100).expand(50, 100)
                yield tracker
                del x, y

        elements = "the tensor's elements are counted instead of its storage"
        assert_readings(
            steps,
            {
                "with ten elements, every hundredth of 901": (3604, None, "", {elements: 40}),
                "with torch.zeros(1000)[:10] instead": (4000, None, "", {elements: 40}),
                "with torch.zeros(100).expand(50, 100) too": (4400, None, "", {elements: 24_000}),
            },
        )

    def test_arrays_made_before_and_results_in_place_add_nothing(self):
        def steps():
            x, gone = torch.zeros(1000), torch.zeros(500)
            with MemoryTracker() as tracker:
                views = [x.view(10, 100), x[3:], x.detach()]
                x.add_(1).exp_()
                torch.add(x, 1, out=x)
                yield tracker
                y = x.exp()
                del gone, x, views
                yield tracker
                del y

        assert_readings(
            steps,
            {
                "after torch.add(x, 1, out=x)": (
                    0,
                    0,
                    "a result may be in an operand's storage, which was there before",
                ),
                "after y = x.exp(); del x": (4000, 4000, "releasing what was never counted takes nothing off"),
            },
        )

    def test_several_results_and_dtypes(self):
        def steps():
            x = torch.arange(24.0).reshape(4, 6)
            with MemoryTracker() as tracker:
                kept = [*x.max(-1)]
                yield tracker
                kept += torch._foreach_add([kept[0], x], 1.0)
                yield tracker
                for dtype in (torch.bool, torch.bfloat16, torch.float64):
                    kept.append(torch.zeros(77, dtype=dtype))
                    yield tracker

        assert_readings(
            steps,
            {
                "after values, positions = x.max(-1)": (48, 48, "two results: max returns int64 positions too"),
                "after torch._foreach_add([values, x], 1.0)": (160, 160, "two results, in a list"),
                "after torch.zeros(77, dtype=torch.bool)": (237, 237),
                "after torch.zeros(77, dtype=torch.bfloat16)": (391, 391),
                "after torch.zeros(77, dtype=torch.float64)": (1007, 1007),
            },
        )

    def test_reset(self):
        def steps():
            with MemoryTracker() as tracker:
                x = torch.zeros(1000)
                torch.zeros(2000)
                tracker.reset()
                yield tracker
                z = torch.zeros(10)
                yield tracker
                del x
                yield tracker
                del z

        mistakes = {"reset sets it to 0, though an array is alive": 0, "reset changes nothing": 12_000}
        assert_readings(
            steps,
            {
                "after tracker.reset()": (4000, 4000, "", mistakes),
                "after z = torch.zeros(10)": (4040, 4040),
                "after del x": (40, 4040, "reset starts the peak again; what is alive stays counted, and its release"),
            },
        )

    def test_after_the_block(self):
        def steps():
            with MemoryTracker() as tracker:
                x = torch.zeros(100)
            y = torch.zeros(1000)
            yield tracker
            del x, y

        with nothing_left_on("the block"):
            hint = "what is made after the block does not count"
            assert_readings(steps, {"after torch.zeros(1000), made after the block": (400, 400, hint)})

    @pytest.mark.kind("robust")
    def test_an_exception_passes(self):
        @probe
        def raise_inside():
            with MemoryTracker():
                torch.zeros(100)
                raise KeyError("inside")

        assert_passes_on(raise_inside, "where one was raised inside the block")

    def test_one_inside_another(self):
        def steps():
            with MemoryTracker() as outer:
                kept = [torch.zeros(1000)]
                with MemoryTracker() as inner:
                    kept += [torch.zeros(500)]
                    yield inner
                yield outer
                kept += [torch.zeros(10)]
                yield inner

        assert_readings(
            steps,
            {
                "of the inner tracker": (2000, 2000, "each tracker has its own count"),
                "of the outer tracker": (6000, 6000),
                "of the inner tracker, after its block": (2000, None),
            },
        )

    def test_entering_again_starts_from_zero(self):
        def steps():
            tracker = MemoryTracker()
            with tracker:
                x = torch.zeros(1000)
            with tracker:
                yield tracker
                y = torch.zeros(10)
                del x
                yield tracker
                del y

        assert_readings(
            steps,
            {
                "on entering a second time": (0, 0, "what an earlier block counted was there before"),
                "after y = torch.zeros(10); del x": (40, 40),
            },
        )

    def test_a_tensor_that_only_autograd_holds(self):
        def steps():
            x = torch.ones(1000, requires_grad=True)
            with MemoryTracker() as tracker:
                loss = x.exp().sum()
                yield tracker
                loss = x.exp().sin().sum()
                yield tracker
                loss.backward()
                yield tracker
                x.grad = None
                yield tracker

        assert_readings(
            steps,
            {
                "after loss = x.exp().sum()": (4004, 4004, "autograd holds the exponentials; no variable does"),
                "after loss = x.exp().sin().sum()": (
                    4004,
                    12_008,
                    "the last loss and its exponentials were still there",
                ),
                "after loss.backward()": (4004, None, "what was saved goes, x.grad stays"),
                "after x.grad = None": (4, None),
            },
        )

    def test_a_training_step_of_attention(self):
        shape = (2, 37, 12)

        def steps():
            with MemoryTracker() as tracker:
                q, k, v = (torch.randn(shape, requires_grad=True) for _ in range(3))
                loss = attention(q, k, v).sum()
                loss.backward()
                tracker.reset()
                loss = attention(q, k, v).sum()
                yield tracker
                loss.backward()
                yield tracker

        live, forward, step = (
            step_memory(shape, name, **EXACT) for name in ("live_after_forward", "forward_peak", "step_peak")
        )
        assert_readings(
            steps,
            {
                "after the second forward pass": (live, forward),
                "after the second backward pass": (None, step, "temporaries of the backward pass count as well"),
            },
        )

    def test_meta_tensors(self):
        def steps():
            with MemoryTracker("meta") as tracker:
                kept = [torch.empty(2**20, 2**20, device="meta"), torch.zeros(5)]
                yield tracker
                del kept

        hint = "a meta tensor has a storage with a size, and a tracker counts tensors of the CPU as well"
        assert_readings(steps, {"with a simulated array of 4 TiB and torch.zeros(5)": (2**42 + 20, 2**42 + 20, hint)})

    @pytest.mark.kind("refuses")
    def test_devices_that_are_not_there(self):
        @probe
        def tracker_without_a_gpu():
            with without_a_gpu(), MemoryTracker("cuda"):
                pass

        assert_raises(RuntimeError, tracker_without_a_gpu, when="for MemoryTracker('cuda') without a GPU")
        assert_raises(ValueError, lambda: MemoryTracker("mps"), when="for MemoryTracker('mps')", mentions=["mps"])

    @pytest.mark.parametrize("device", ["cuda", "cuda:1"])
    def test_statistics_of_cuda(self, device):
        def steps():
            with CudaAllocator() as gpu:
                gpu.allocate(5000, device)
                gpu.free(3000, device)
                with MemoryTracker(device) as tracker:
                    yield tracker
                    gpu.allocate(700, device)
                    gpu.free(300, device)
                    yield tracker
                    tracker.reset()
                    yield tracker

        at_entry = {
            "another device is read, the current one": -2000,
            "what was allocated before is not taken off": 2000,
            "the peak is not reset on entering": 3000,
            "neither is the peak reset on entering nor what was allocated before taken off": 5000,
        }
        baseline = {"reset takes the baseline anew": 0}
        hint = "not what is reserved, and of the tracker's own device"
        assert_readings(
            steps,
            {
                "on entering, with 2000 bytes allocated, 5000 at their peak,": (0, 0, "", at_entry),
                "after allocating 700 bytes and freeing 300": (400, 700, hint),
                "after tracker.reset()": (400, 400, "reset_peak_memory_stats", baseline),
            },
        )

    @pytest.mark.gpu
    def test_on_a_gpu(self):
        def steps():
            held = torch.zeros(2**20, device="cuda")
            with MemoryTracker("cuda") as tracker:
                x = torch.zeros(2**20, device="cuda")
                y = (x + 1)[:128] * 2
                yield tracker
                tracker.reset()
                yield tracker
                del held, y

        expected = {"after two arrays of 4 MiB": (4_194_816, 8_389_120), "after tracker.reset()": (None, 4_194_816)}
        assert_readings(steps, expected)


CALLS = {
    "{'x': [on_cuda]}": (lambda fn, _, on_cuda: fn({"x": [on_cuda]}), 300),
    "5, on_cuda, on_cpu": (lambda fn, on_cpu, on_cuda: fn(5, on_cuda, on_cpu), 300),
    "y=on_cuda": (lambda fn, _, on_cuda: fn(y=on_cuda), 300),
    "on_cpu, on_cuda": (lambda fn, on_cpu, on_cuda: fn(on_cpu, on_cuda), 40),
    "on_cpu, y=on_cuda": (lambda fn, on_cpu, on_cuda: fn(on_cpu, y=on_cuda), 40),
    "5": (lambda fn, *_: fn(5), 40),
}
"""How a function is called → the call, and the bytes that it takes of the device of its first tensor."""


class TestMeasureMemory:
    def check(self, fn, args, want, name, **more):
        peak_bytes, result = peak_and_result(measure_memory(fn, *args))
        require(not isinstance(peak_bytes, torch.Tensor), "the result came first: it is (peak_bytes, result)")
        assert_bytes(f"the peak of {name}", peak_bytes, want, **more)
        return result

    def test_worked_example(self):
        mistakes = {
            "what is alive at the end is measured, not the peak": 4,
            "the arguments are counted": 8004,
            "the result's bytes are taken off": 4000,
        }
        result = self.check(lambda x: (x + 1).sum(), [torch.zeros(1000)], 4004, "(x + 1).sum()", mistakes=mistakes)
        assert_equal("the result of (x + 1).sum()", float(result), 1000.0)

    def test_random_sizes(self, rng):
        hint = "the peak is over what was there before this call, not what an earlier call needed"
        for n in (5000, *rng.integers(10, 4000, 3).tolist()):
            name = f"(x + 1).sum() of {n} numbers"
            result = self.check(lambda x: (x + 1).sum(), [torch.zeros(n)], 4 * n + 4, name, hint=hint)
            assert_equal(f"the result of {name}", float(result), float(n))

    def test_fn_and_its_arguments(self):
        @probe
        def calls():
            x, y, seen = torch.ones(100), torch.ones(100), []

            def fn(first, *more, scale=1.0, other=None):
                seen.append((first is x and more == (2, 3), scale == 0.5 and other is y))
                return seen

            _, result = measure_memory(fn, x, 2, 3, scale=0.5, other=y)
            return seen, result is seen

        seen, is_result = calls()
        assert_equal("the number of calls of fn", len(seen), 1)
        ((positional, keyword),) = seen
        require(positional, "positional arguments do not reach fn as they are")
        require(keyword, "keyword arguments do not reach fn as they are")
        require(is_result, "the result is not what fn returned")

    def test_gradients_stay_on(self):
        _, result = peak_and_result(measure_memory(torch.exp, torch.ones(5, requires_grad=True)))
        require(
            result.requires_grad, "the result of x.exp() has lost its graph: fn must run as it would without a tracker"
        )

    def test_a_function_that_allocates_nothing(self):
        x = torch.zeros(1000)
        self.check(lambda x: x.view(10, 100).T, [x], 0, "x.view(10, 100).T", hint="a view takes nothing")
        self.check(lambda x: x.add_(1), [x], 0, "x.add_(1)", hint="an operator in place takes nothing")

    @pytest.mark.kind("robust")
    def test_an_exception_passes(self):
        call = partial(measure_memory, lambda x: [x.exp().sum(), {}["inside"]], torch.zeros(100))
        assert_passes_on(call, "where fn raised one")

    @pytest.mark.parametrize("arguments", CALLS)
    def test_device_of_the_arguments(self, arguments):
        call, bytes_there = CALLS[arguments]

        @probe
        def measured():
            def takes_300_bytes_of_the_gpu_and_40_of_the_cpu(*_args, **_kwargs):
                gpu.allocate(300)
                gpu.free(200)
                return torch.zeros(10)

            measure = partial(measure_memory, takes_300_bytes_of_the_gpu_and_40_of_the_cpu)
            with CudaAllocator() as gpu:
                gpu.allocate(1000)
                return call(measure, torch.zeros(1), OnCuda(torch.zeros(1)))

        name = f"the peak of fn({arguments}), which takes 40 bytes of the CPU and 300 of a GPU (played by a stand-in),"
        hint = "the first tensor among the arguments, also inside lists and dicts, says which device to measure"
        assert_bytes(name, peak_and_result(measured())[0], bytes_there, hint=hint)


def leaf(*shape, **options):
    return torch.ones(shape, requires_grad=True, **options)


class TestSavedForBackward:
    def check(self, expression, fn, args, want, **more):
        assert_bytes(f"what is saved for {expression}", saved_for_backward(fn, *args), want, **more)

    def test_worked_example(self):
        x = leaf(1000)
        output, given = "the output is counted", "the input is counted"
        self.check("x.exp().sum()", lambda x: x.exp().sum(), [x], 4000, mistakes={output: 4004})
        self.check("x.exp()", torch.exp, [x], 0, mistakes={output: 4000})
        self.check("x.sin().sum()", lambda x: x.sin().sum(), [x], 0, mistakes={given: 4000})

    def test_a_storage_counts_once(self):
        def fn(x):
            e = x.exp()
            return (e * e).sin().sum()

        mistakes = {
            "each time a tensor is saved counts": 16_000,
            "a storage is released and its identity used again": 4000,
        }
        hint = "exp saves its result, and the product saves the same storage twice more"
        self.check("e = x.exp(); (e * e).sin().sum()", fn, [leaf(1000)], 8000, mistakes=mistakes, hint=hint)

    @simulated
    @pytest.mark.parametrize("device", ["cpu", "meta"])
    def test_views_of_one_storage(self, device):
        def fn(x):
            e = x.exp()
            return (e.T @ e[:, :5]).sum() + (e[2:] * e[:-2]).sum()

        name = "e = x.exp(); (e.T @ e[:, :5]).sum() + (e[2:] * e[:-2]).sum()"
        self.check(name, fn, [leaf(30, 40, device=device)], 4800, hint="data_ptr() differs from view to view")

    def test_a_view_keeps_the_whole_storage(self):
        mistakes = {"the elements saved are counted, not the storage that they keep alive": 40}
        name = "((x * 2)[:10].sin() * 3).sum()"
        self.check(name, lambda x: ((x * 2)[:10].sin() * 3).sum(), [leaf(1000)], 4000, mistakes=mistakes)

    def test_views_of_inputs_and_of_the_output(self):
        hint = "a view of an input is the input: its storage was there before"
        args = [leaf(6, 7), leaf(5, 7)]
        self.check(
            "x @ w.T + (x[1:] * x[:-1]).sum()", lambda x, w: x @ w.T + (x[1:] * x[:-1]).sum(), args, 0, hint=hint
        )
        hint = "the output's storage is left out, whatever view of it is returned"
        self.check("x.exp()[1:]", lambda x: x.exp()[1:], args[:1], 0, hint=hint)

    def test_inputs_and_outputs_in_containers(self):
        def product(pair, named):
            a = pair[1][0].sin() if isinstance(pair, tuple) else pair[0].sin()
            return {"product": a * named["w"], "a": (a, None)}

        x, w = leaf(100), leaf(100)
        hint = "look inside lists, tuples and dicts"
        self.check("sin(x) * w, given as [x] and {'w': w}", product, [[x], {"w": w}], 0, hint=hint)
        self.check("sin(x) * w, given as (5, [x]) and {'w': w}", product, [(5, [x]), {"w": w}], 0, hint=hint)
        hint = "every tensor that fn returns is output"
        self.check("(x.exp(), x.exp())", lambda x: (x.exp(), x.exp()), [x], 0, hint=hint)

    def test_every_dtype_counts(self):
        hint = "the maximum saves its positions: int64, 8 bytes each"
        self.check("(x * 2).max(-1)[0].sum()", lambda x: (x * 2).max(-1)[0].sum(), [leaf(10, 100)], 80, hint=hint)
        x = leaf(1000, dtype=torch.bfloat16)
        self.check("x.exp().sum() in bfloat16", lambda x: x.exp().sum(), [x], 2000, hint="two bytes an element")

    def test_modules(self):
        for module, name, hint in (
            (torch.nn.Linear(20, 30), "a linear layer", "a module's parameters are inputs"),
            (torch.nn.BatchNorm1d(20), "a batch norm that does not train", "a module's buffers are inputs too"),
        ):
            self.check(name, module.eval(), [leaf(7, 20)], 0, hint=hint)

    def test_functions_with_their_own_backward(self):
        hint = "what ctx.save_for_backward is given counts too"
        self.check("Doubled.apply(x).sum()", lambda x: Doubled.apply(x).sum(), [leaf(100)], 400, hint=hint)

    def test_attention(self, rng):
        shape = tuple(int(rng.integers(*bounds)) for bounds in ((1, 4), (20, 60), (5, 30)))
        inputs, column = [leaf(*shape) for _ in range(3)], shape[0] * shape[1]
        want = step_memory(shape, "saved", **EXACT)
        mistakes = {
            "the positions of the maxima, int64, are forgotten": want - 8 * column,
            "each time a tensor is saved counts": want + 4 * column * shape[1],
        }
        self.check(f"attention on {shape}", attention, inputs, want, mistakes=mistakes)

        scale, want = torch.ones(shape[1:]), want + inputs[0].nbytes
        self.check(
            f"attention on {shape} of q * scale, where fn closes over scale",
            lambda q, k, v: attention(q * scale, k, v).sum(),
            inputs,
            want + scale.nbytes,
            mistakes={"scale, which is neither among args nor in the output, is left out": want},
            hint="q * scale is kept for k's gradient, and scale for q's",
        )

    def test_fn_is_called_once(self):
        @probe
        def n_calls():
            calls, x = [], torch.ones(100, requires_grad=True)

            def fn(x):
                calls.append(1)
                return x.exp().sum()

            saved_for_backward(fn, x)
            return len(calls)

        assert_equal("the number of calls of fn", n_calls(), 1)

    @pytest.mark.kind("small")
    def test_nothing_stays_saved(self):
        x = leaf(1000)
        for expression, fn in (("x.exp().sin() * 2", lambda x: x.exp().sin() * 2), ("x.exp()", torch.exp)):
            alive = alive_after(lambda fn=fn: saved_for_backward(fn, x))
            cause = "pack returns the very tensor it was given; where that is the output, the graph holds itself "
            cause += "(return tensor.detach()). Or storages are collected in a global"
            message = f"{alive:,} bytes are still alive after saved_for_backward of {expression}\nUsual cause: {cause}"
            require(alive == 0, message)

    @pytest.mark.kind("robust")
    def test_an_exception_passes(self):
        call = partial(saved_for_backward, lambda x: [x.exp().sum(), {}["inside"]], torch.ones(10))
        assert_passes_on(call, "where fn raised one")


SHAPES = [
    *((8, 16384, 128, 4), (1, 2**20, 64, 4), (2, 63, 17, 4), (7, 31, 31, 4), (1, 1, 1, 4)),  # long and odd sequences
    *((3, 200, 20, 1), (3, 200, 20, 2), (3, 200, 20, 8)),
    # where d is large against N, another moment has the peak
    *((1, 1, 512, 4), (3, 5, 300, 4), (1, 40, 170, 4), (1, 40, 80, 4), (2, 64, 1024, 4)),
]
"""Batch, N, d and bytes of an element."""


class TestAttentionTrainingMemory:
    def check(self, *shape, itemsize=4):
        given = () if itemsize == 4 else (itemsize,)
        assert_prediction(attention_training_memory(*shape, *given), shape, itemsize)

    def test_worked_example(self):
        self.check(8, 256, 16)

    @pytest.mark.parametrize("sizes", SHAPES, ids=["B{}-N{}-d{}-{}bytes".format(*sizes) for sizes in SHAPES])
    def test_other_shapes(self, sizes):
        *shape, itemsize = sizes
        self.check(*shape, itemsize=itemsize)

    def test_any_shape(self, rng):
        for _ in range(20):
            batch, n, d = (int(2 ** rng.uniform(0, top)) for top in (4, 9, 11))
            self.check(batch, n, d, itemsize=int(rng.choice([2, 4, 8])))

    @pytest.mark.parametrize("name", ["batch", "seq_len", "d_model", "dtype_bytes"])
    @pytest.mark.kind("refuses")
    def test_sizes_below_one_are_refused(self, name):
        for value in (0, -3):
            sizes = {"batch": 2, "seq_len": 3, "d_model": 4, "dtype_bytes": 4, name: value}
            call = partial(attention_training_memory, **sizes)
            assert_raises(ValueError, call, when=f"for {name} {value}", mentions=[name])


class TestLargestSeqLen:
    def check(self, capacity, batch, d, *, itemsize=4, peak=None):
        given = {} if itemsize == 4 else {"dtype_bytes": itemsize}
        given |= {} if peak is None else {"peak": peak}
        got = largest_seq_len(capacity, batch, d, **given)
        assert_longest(got, capacity, batch, d, itemsize, peak or "forward_peak")

    def test_worked_example(self):
        self.check(24 * GIB, 8, 64)
        self.check(24 * GIB, 8, 64, peak="step_peak")

    @pytest.mark.parametrize("peak", [None, "step_peak", "saved"])
    def test_devices(self, peak):
        for capacity in (70 * MIB, 16 * 10**9, 98 * GIB):
            for d in (16, 128, 20_000):
                self.check(capacity, 8, d, peak=peak)
        for capacity in (0, 10**6, 64 * MIB, 64 * MIB + 4096):  # nothing fits
            self.check(capacity, 8, 64, peak=peak)
        for itemsize in (1, 2, 8):
            self.check(3 * GIB, 2, 40, itemsize=itemsize, peak=peak)

    def test_a_total_of_exactly_the_capacity_fits(self, rng):
        for peak in ("forward_peak", "step_peak"):
            for _ in range(10):
                batch, n, d = (int(2 ** rng.uniform(0, top)) for top in (3, 13, 8))
                total = step_memory((batch, n, d), peak)
                self.check(total, batch, d, peak=peak)
                self.check(total - 1, batch, d, peak=peak)

    @pytest.mark.seconds(5)
    @pytest.mark.kind("robust")
    def test_devices_of_the_far_future(self):
        for capacity in (10**15, 10**41):
            self.check(capacity, 1, 3)

    @pytest.mark.kind("refuses")
    def test_an_unknown_peak_is_refused(self):
        call = partial(largest_seq_len, 10**9, 1, 1, peak="peek")
        assert_raises(ValueError, call, when="for peak='peek'", mentions=["peek"])


ONE_STEP = {"batch_size": 1, "warmup_steps": 0, "steps": 1}


@probe
def paced_rows(forward_ms, backward_ms, *args, **asked):
    """Rows of steps that take the given times; the times taken; how many forward and backward passes ran in all."""
    with PacedSteps(forward_ms, backward_ms, getattr(benchmark_attention, "__globals__", {})) as paced:
        rows = benchmark_attention(*args, **asked)
    return rows, paced.taken_ms, paced.n_forward, paced.n_backward


class TestBenchmarkAttention:
    @simulated
    @pytest.mark.parametrize("device", ["cpu", "meta"])
    def test_other_rows(self, device, rng):
        """On meta every tensor is rounded up, on the CPU none."""
        sizes = [17, int(rng.integers(20, 300))], [5, int(rng.integers(40, 400))]
        asked = {"batch_size": 3, "warmup_steps": 0, "steps": 1, "device": device}
        for row in requested(benchmark_attention(*sizes, **asked), *sizes, **asked):
            assert_memory_columns(row)

    @simulated
    def test_the_published_table(self):
        rows = requested(
            benchmark_attention(list(MEM_MAX), list(LENGTHS), device="meta"), MEM_MAX, LENGTHS, device="meta"
        )
        for number, row in enumerate(rows):
            for name in ("fwd_ms", "bwd_ms"):
                message = f"{name} of row {number} is {row[name]}, expected None: a simulation has no times"
                require(row[name] is None, message)
            n = number % len(LENGTHS)
            assert_memory_columns(row, printed=(MEM_MAX[row["d_model"]][n], ADD_MEM[n]))

    @simulated
    def test_simulated_rows_are_measured(self):
        _, _, n_forward, n_backward = paced_rows([1], [1], [16, 32], [64], batch_size=2, steps=1, device="meta")
        message = f"for two rows, {n_forward} forward passes ran on meta tensors, expected two steps of each"
        cause = "the numbers are worked out by a formula, or copied: this table is to be measured"
        require(n_forward >= 4 and n_backward >= 2, f"{message}\nUsual cause: {cause}")

    def test_number_of_steps(self):
        steps = {}
        for warmup, timed in ((0, 2), (0, 5), (3, 2)):
            asked = {"batch_size": 1, "warmup_steps": warmup, "steps": timed}
            rows, taken_ms, _, _ = paced_rows([1], [1], [4], [8], **asked)
            requested(rows, [4], [8], **asked)
            steps[warmup, timed] = sum(len(passes) == 2 for passes in taken_ms)
        message = f"of 5 timed steps, {steps[0, 5]} ran forward and backward without a tracker"
        why = "A tracker slows every operator down: measure memory in steps of their own, and time without it"
        require(steps[0, 5] >= 5, f"{message}\n{why}")
        assert_equal("the number of steps that three steps more bring", steps[0, 5] - steps[0, 2], 3)
        assert_equal("the number of steps that three warm-up steps bring", steps[3, 2] - steps[0, 2], 3)

    def test_times_are_medians(self, rng):
        costs = [
            [9000, 8000, *rng.permutation([*(least + rng.permutation(30)[:4]), least + 700]).tolist()]
            for least in (10, 60)
        ]
        asked = {"batch_size": 2, "warmup_steps": 2, "steps": 5}
        rows, taken_ms, _, _ = paced_rows(*costs, [4], [16], **asked)
        (row,) = requested(rows, [4], [16], **asked)
        assert_time_columns(row, taken_ms)

    @pytest.mark.parametrize("where", ["CUDA", "CPU", "CPU_on_Windows"])
    @pytest.mark.kind("robust")
    def test_rows_that_run_out_of_memory(self, where):
        @probe
        def rows_on_a_small_device():
            with SmallDevice(4 * 100 * 100, lambda: out_of_memory(where)):
                return benchmark_attention([4], [40, 128, 41], **ONE_STEP)

        try:
            rows = requested(rows_on_a_small_device(), [4], [40, 128, 41], **ONE_STEP)
        except RuntimeError as uncaught:
            require("memory" not in str(uncaught), f"out of memory ends the benchmark: {str(uncaught)[:60]} …")
            raise
        statuses = [row["status"] for row in rows]
        assert_equal("status of three rows, the second too large,", statuses, ["success", "oom", "success"])
        for name in ("fwd_ms", "bwd_ms", "mem_max_MB", "add_mem_MB"):
            require(rows[1][name] is None, f"{name} of a row that ran out of memory is {rows[1][name]}, expected None")
        assert_memory_columns(rows[2])

    @pytest.mark.parametrize("kind", [RuntimeError, TypeError])
    @pytest.mark.kind("robust")
    def test_other_errors_pass(self, kind):
        @probe
        def statuses_where_attention_fails():
            with SmallDevice(4 * 100 * 100, lambda: kind("mat1 and mat2 shapes cannot be multiplied")):
                return [row["status"] for row in benchmark_attention([4], [128], **ONE_STEP)]

        with nothing_left_on("an error inside"):
            when = "where attention raised one that is not about memory"
            assert_raises(kind, statuses_where_attention_fails, when=when)

    @pytest.mark.kind("small")
    def test_nothing_stays_alive(self):
        alive = alive_after(lambda: benchmark_attention([8], [64, 65], batch_size=2, warmup_steps=0, steps=1))
        require(alive == 0, f"{alive:,} bytes are still alive after the benchmark: rows hold numbers, not tensors")

    @pytest.mark.kind("refuses")
    def test_other_devices_are_refused(self):
        rows = partial(benchmark_attention, [4], [8], steps=1, device="mps")
        assert_raises(ValueError, rows, when="for device='mps'", mentions=["mps"])

    @pytest.mark.gpu
    def test_on_a_gpu(self):
        asked = {"warmup_steps": 2, "steps": 3, "device": "cuda"}
        (row,) = requested(benchmark_attention([64], [2048], **asked), [64], [2048], **asked)
        assert_row_of_a_gpu(row)
