"""Lab 02's suite: bytes counted while they are alive, bytes saved for the backward pass, and bytes predicted.

Code whose memory is counted is given as text, so that messages can show it. It runs next to your code, as does what is
marked `@probe`, so that tensors stay there.
"""

import contextlib
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

from labkit.meters.fakes import SmallDevice, out_of_memory
from labkit.testing.compare import assert_equal, assert_raises, require
from labkit.testing.probes import probe

from .probes import OnCuda, PacedSteps, alive_after, attention, function, two_gpus, without_a_gpu
from .support import (
    EXACT,
    After,
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


@probe
def readings(codes, afterwards, before, device, gpus):
    """(current, peak), in bytes, after each of `codes`, run in a tracker's block, and of `afterwards`, run after it.

    `before` is run before the block. `gpus` makes a context that yields the stand-in `gpu`, if there is one. The result
    is empty if entering gives no tracker.
    """
    names = {"torch": torch, "MemoryTracker": MemoryTracker, "attention": attention, "device": device}

    def read_after(code):
        exec(code, names)
        return names["tracker"].current_allocated(), names["tracker"].peak_allocated()

    with gpus() as names["gpu"]:
        exec(before, names)
        with MemoryTracker(device) as names["tracker"]:
            if not hasattr(names["tracker"], "current_allocated"):
                return []
            inside = [read_after(code) for code in codes]
        return inside + [read_after(code) for code in afterwards]


class TestMemoryTracker:
    def check(self, *steps, afterwards=(), before="", device="cpu", gpus=contextlib.nullcontext):
        codes = [step.code for step in steps], [step.code for step in afterwards]
        assert_readings([*steps, *afterwards], readings(*codes, before, device, gpus))

    @pytest.mark.basic
    def test_worked_example(self):
        self.check(
            After("x = torch.zeros(1000)", 4000, 4000),
            After("y = (x + 1).view(10, 100)", 8000, 8000, "a view is no third array"),
            After("del x", 4000, 8000, "what is released no longer counts"),
        )

    @pytest.mark.basic
    def test_the_peak_is_of_one_moment(self):
        hint = "arrays came and went: the key of a freed storage is used again"
        too_early = {"the peak is compared before new storages are counted, or only when it is read": 0}
        self.check(
            After("for _ in range(5): torch.zeros(1000)", 0, 4000, hint, too_early),
            After("kept = [torch.zeros(500) for _ in range(3)]", 6000, 6000, hint),
        )

    def test_a_temporary_raises_the_peak(self):
        hint = "x + 1 is alive while it is doubled, and not afterwards"
        self.check(After("kept = ((x + 1) * 2).sum()", 4, 8000, hint), before="x = torch.ones(1000)")

    def test_random_sizes(self, rng):
        alive, peak, steps = {}, 0, []
        for i, n in enumerate(rng.integers(1, 900, 30).tolist()):
            old = int(rng.integers(i + 1))
            alive[i] = 4 * n
            peak = max(peak, sum(alive.values()))
            alive.pop(old, None)
            code = f"views[{i}] = torch.zeros({n})[{n // 3} :].mul_(0.5); views.pop({old}, None)"
            steps.append(After(code, sum(alive.values()), peak))
        self.check(*steps, before="views = {}")

    @pytest.mark.parametrize("device", ["cpu", "meta"])
    def test_views_share_their_storage(self, device):
        views = "[x.view(1200), x.T, x[3:5], x[:, 1], x.detach(), x.unsqueeze(0).expand(9, 30, 40), *x.unbind(0)]"
        self.check(
            After("x = torch.zeros(30, 40, device=device)", 4800, 4800),
            After(f"views = {views}", 4800, 4800, "a view has its base's storage: it is no new memory"),
            After("y = x.clone()", 9600, 9600),
            After("del x, views[1:]", 9600, 9600, "a storage lives as long as any view of it"),
            After("views.clear()", 4800, 9600),
            device=device,
        )

    def test_arrays_made_before_and_results_in_place_add_nothing(self):
        hint = "a result may be in an operand's storage, which was there before"
        self.check(
            After("views = [x.view(10, 100), x[3:], x.detach()]; x.add_(1).exp_()", 0, 0, hint),
            After("torch.add(x[:500], 1, out=gone)", 0, 0, hint),
            After("y = x.exp(); del x, gone, views", 4000, 4000, "releasing what was not counted takes nothing off"),
            before="x, gone = torch.zeros(1000), torch.zeros(500)",
        )

    def test_several_results_and_dtypes(self):
        self.check(
            After("values, positions = x.max(-1)", 48, 48, "two results: max returns int64 positions too"),
            After("added = torch._foreach_add([values, x], 1.0)", 160, 160, "two results, in a list"),
            After("one_byte = torch.zeros(77, dtype=torch.bool)", 237, 237),
            After("two_bytes = torch.zeros(77, dtype=torch.bfloat16)", 391, 391),
            After("eight_bytes = torch.zeros(77, dtype=torch.float64)", 1007, 1007),
            before="x = torch.arange(24.0).reshape(4, 6)",
        )

    def test_reset(self):
        hint = "reset changes nothing, or sets the peak to 0 though an array is alive"
        self.check(
            After("x = torch.zeros(1000); torch.zeros(2000); tracker.reset()", 4000, 4000, hint),
            After("z = torch.zeros(10)", 4040, 4040),
            After("del x", 40, 4040, "reset starts the peak again; what is alive stays counted, and its release"),
        )

    def test_after_the_block(self):
        hint = "what is made after the block does not count"
        with nothing_left_on("the block"):
            self.check(
                After("x = torch.zeros(100)", 400, 400),
                afterwards=[After("y = torch.zeros(1000)  # after the block", 400, 400, hint)],
            )

    @pytest.mark.robust
    def test_an_exception_passes(self):
        @probe
        def raise_inside():
            with MemoryTracker():
                torch.zeros(100)
                raise KeyError("inside")

        assert_passes_on(raise_inside, "where one was raised inside the block")

    def test_one_inside_another(self):
        hint = "each tracker has its own count"
        self.check(
            After("kept = [torch.zeros(1000)]", 4000, 4000),
            After("with MemoryTracker() as inner: kept.append(torch.zeros(500))", 6000, 6000, hint),
            After("tracker = inner", 2000, 2000, hint),
            After("kept.append(torch.zeros(10))", 2000, 2000, hint),
        )

    def test_entering_again_starts_from_zero(self):
        hint = "what an earlier block counted was there before"
        self.check(
            After("x = torch.zeros(1000)", 4000, 4000),
            afterwards=[After("with tracker: y = torch.zeros(10); del x", 40, 40, hint)],
        )

    def test_a_tensor_that_only_autograd_holds(self):
        hint = "the last loss and its exponentials were still there"
        self.check(
            After("loss = x.exp().sum()", 4004, 4004, "autograd holds the exponentials; no variable does"),
            After("loss = x.exp().sin().sum()", 4004, 12_008, hint),
            After("loss.backward()", 4004, None, "what was saved goes, x.grad stays"),
            After("x.grad = None", 4, None),
            before="x = torch.ones(1000, requires_grad=True)",
        )

    def test_a_training_step_of_attention(self):
        shape = (2, 37, 12)
        names = ("live_after_forward", "forward_peak", "step_peak")
        live, forward, step = (step_memory(shape, name, **EXACT) for name in names)
        loss = "loss = attention(q, k, v).sum()"
        self.check(
            After(f"q, k, v = (torch.randn({shape}, requires_grad=True) for _ in range(3))", None, None),
            After(f"{loss}; loss.backward(); tracker.reset()", None, None),
            After(loss, live, forward),
            After("loss.backward()", None, step, "temporaries of the backward pass count as well"),
        )

    def test_meta_tensors(self):
        hint = "a meta tensor has a storage with a size, and a tracker counts tensors of the CPU as well"
        code = "kept = [torch.empty(2**20, 2**20, device='meta'), torch.zeros(5)]"
        self.check(After(code, 2**42 + 20, 2**42 + 20, hint), device="meta")

    @pytest.mark.refuses
    def test_devices_that_are_not_there(self):
        @probe
        def tracker_without_a_gpu():
            with without_a_gpu(), MemoryTracker("cuda"):
                pass

        when = "for MemoryTracker('cuda') without a GPU"
        assert_raises(RuntimeError, tracker_without_a_gpu, when=when, mentions=())
        assert_raises(ValueError, lambda: MemoryTracker("mps"), when="for MemoryTracker('mps')", mentions=["mps"])

    @pytest.mark.parametrize("device", ["cuda", "cuda:1"])
    def test_statistics_of_cuda(self, device):
        """A stand-in has 2000 bytes allocated before the block, 5000 at their peak."""
        mistakes = {
            "another device is read, the current one, or another statistic": -2000,
            "the peak is not reset on entering": 3000,
            "what was allocated on entering is not subtracted": 2400,
        }
        hint = "not what is reserved, minus what was allocated on entering, and of the tracker's own device"
        self.check(
            After("gpu.allocate(700, device); gpu.free(300, device)", 400, 700, hint, mistakes),
            After("tracker.reset()", 400, 400, "reset_peak_memory_stats, and the baseline stays"),
            before="gpu.allocate(5000, device); gpu.free(3000, device)",
            device=device,
            gpus=two_gpus,
        )

    @pytest.mark.gpu
    def test_on_a_gpu(self):
        code = "x = torch.zeros(2**20, device=device); y = (x + 1)[:128] * 2"
        self.check(
            After(code, 4_194_816, 8_389_120),
            After("tracker.reset()", None, 4_194_816),
            before="held = torch.zeros(2**20, device=device)",
            device="cuda",
        )


CALLS = {
    "{'x': [on_cuda]}": 300,
    "5, on_cuda, on_cpu": 300,
    "y=on_cuda": 300,
    "on_cpu, on_cuda": 40,
    "on_cpu, y=on_cuda": 40,
    "5": 40,
}
"""How a function is called → the bytes that it takes of the device of its first tensor."""


class TestMeasureMemory:
    def check(self, expression, x, want, mistakes=None, hint=""):
        peak_bytes, result = peak_and_result(measure_memory(function(expression, "x"), x))
        require(not isinstance(peak_bytes, torch.Tensor), "the result came first: it is (peak_bytes, result)")
        name = f"the peak of {expression}, with x of {x.numel()} numbers,"
        assert_bytes(name, peak_bytes, want, mistakes, hint)
        return result

    @pytest.mark.basic
    def test_worked_example(self):
        mistakes = {
            "the arguments are counted": 8004,
            "what is alive afterwards is returned, not the peak": 4,
            "the result is left out: it counts, it was not there before": 4000,
        }
        result = self.check("(x + 1).sum()", torch.zeros(1000), 4004, mistakes)
        assert_equal("the result of (x + 1).sum()", float(result), 1000.0)

    @pytest.mark.basic
    def test_random_sizes(self, rng):
        for n in (5000, *rng.integers(10, 4000, 3).tolist()):
            mistakes = {
                "the peak is that of an earlier call": 20_004,
                "the arguments are subtracted, which were never counted": 4,
                "what is alive afterwards is returned, not the peak": 4,
                "the result is left out: it counts, it was not there before": 4 * n,
            }
            self.check("(x + 1).sum()", torch.zeros(n), 4 * n + 4, mistakes)

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
        _, result = peak_and_result(measure_memory(torch.exp, leaf(5)))
        message = "the result of x.exp() has lost its graph: fn must run as it would without a tracker"
        require(result.requires_grad, message)

    def test_a_function_that_allocates_nothing(self):
        self.check("x.view(10, 100).T", torch.zeros(1000), 0, hint="a view takes nothing")
        self.check("x.add_(1)", torch.zeros(1000), 0, hint="an operator in place takes nothing")

    @pytest.mark.robust
    def test_an_exception_passes(self):
        call = partial(measure_memory, function("[x.exp().sum(), {}['inside']]", "x"), torch.zeros(100))
        assert_passes_on(call, "where fn raised one")

    @pytest.mark.parametrize("arguments", CALLS)
    def test_device_of_the_arguments(self, arguments):
        @probe
        def measured():
            def takes_300_bytes_of_the_gpu_and_40_of_the_cpu(*_args, **_kwargs):
                gpu.allocate(300)
                gpu.free(200)
                return torch.zeros(10)

            measure = partial(measure_memory, takes_300_bytes_of_the_gpu_and_40_of_the_cpu)
            with two_gpus() as gpu:
                gpu.allocate(1000)
                names = {"measure": measure, "on_cpu": torch.zeros(1), "on_cuda": OnCuda(torch.zeros(1))}
                return eval(f"measure({arguments})", names)

        name = f"the peak of fn({arguments}), which takes 40 bytes of the CPU and 300 of a GPU (played by a stand-in),"
        hint = "the first tensor among the arguments, also inside lists and dicts, says which device to measure"
        assert_bytes(name, peak_and_result(measured())[0], CALLS[arguments], hint=hint)


def leaf(*shape, **options):
    return torch.ones(shape, requires_grad=True, **options)


class TestSavedForBackward:
    def check(self, expression, want, hint="", mistakes=None, **args):
        """Compare what is saved for `expression`, a function of `args`: of x, 1000 numbers, if none are given."""
        args = args or {"x": leaf(1000)}
        got = saved_for_backward(function(expression, *args), *args.values())
        assert_bytes(f"what is saved for {expression}", got, want, mistakes, hint)

    @pytest.mark.basic
    def test_worked_example(self):
        self.check("x.exp().sum()", 4000, "the output is counted")
        self.check("x.exp()", 0, "the output is counted")
        self.check("x.sin().sum()", 0, "the input is counted")

    @pytest.mark.basic
    def test_a_storage_counts_once(self):
        hint = "exp saves its result, and the product saves the same storage twice more"
        mistakes = {"each time a tensor is saved counts": 16_000}
        self.check("((e := x.exp()) * e).sin().sum()", 8000, hint, mistakes)

    @simulated
    @pytest.mark.parametrize("device", ["cpu", "meta"])
    def test_views_of_one_storage(self, device):
        expression = "((e := x.exp()).T @ e[:, :5]).sum() + (e[2:] * e[:-2]).sum()"
        mistakes = {
            "the elements saved are counted, not the storage that they keep alive": 4480,
            "storages are told apart by data_ptr(): data_ptr() differs from view to view": 9600,
        }
        hint = "a storage counts once and in full, whatever views of it are saved"
        self.check(expression, 4800, hint, mistakes, x=leaf(30, 40, device=device))

    def test_a_view_keeps_the_whole_storage(self):
        hint = "the elements saved are counted, not the storage that they keep alive"
        self.check("(x + x)[:10].sin().sum()", 4000, hint)

    def test_views_of_inputs_and_of_the_output(self):
        hint = "a view of an input is the input: its storage was there before"
        self.check("x @ w.T + (x[1:] * x[:-1]).sum()", 0, hint, x=leaf(6, 7), w=leaf(5, 7))
        self.check("x.exp()[1:]", 0, "the output's storage is left out, whatever view of it is returned")

    def test_inputs_and_outputs_in_containers(self):
        hint, x, w = "look inside lists, tuples and dicts", leaf(100), {"w": leaf(100)}
        self.check("{'a': (a := x[0].sin(), None), 'product': a * w['w']}", 0, hint, x=[x], w=w)
        self.check("{'a': (a := x[1][0].sin(), None), 'product': a * w['w']}", 0, hint, x=(5, [x]), w=w)
        self.check("(x.exp(), x.exp())", 0, "every tensor that fn returns is output")

    def test_every_dtype_counts(self):
        hint = "the maximum saves its positions: int64, 8 bytes each"
        self.check("x.exp().sin().max(-1)[0].sum()", 4080, hint, x=leaf(10, 100))
        self.check("(x * (x > 0)).sum()", 1000, "booleans count too, a byte each")
        self.check("x.exp().sum()", 2000, "two bytes an element of bfloat16", x=leaf(1000, dtype=torch.bfloat16))

    def test_a_python_number_is_no_tensor(self):
        hint = "a Python number counts: autograd keeps it as a tensor of one element"
        self.check("(x * 2).sum()", 0, hint)
        self.check("(x / 3.0).sum()", 0, hint)

    def test_modules(self):
        for module, name, hint in (
            (torch.nn.Linear(20, 30), "a linear layer", "a module's parameters are inputs"),
            (torch.nn.BatchNorm1d(20), "a batch norm that does not train", "a module's buffers are inputs too"),
        ):
            got = saved_for_backward(module.eval(), leaf(7, 20))
            assert_bytes(f"what is saved for {name}", got, 0, hint=hint)

    def test_functions_with_their_own_backward(self):
        hint = "what ctx.save_for_backward is given counts too"
        self.check("Doubled.apply(x).sum()", 400, hint, x=leaf(100))

    def test_attention(self, rng):
        batch, n, d = (int(rng.integers(*bounds)) for bounds in ((1, 4), (20, 60), (5, 30)))
        inputs, want = [leaf(batch, n, d) for _ in range(3)], step_memory((batch, n, d), "saved", **EXACT)
        name = f"what is saved for attention of batch {batch}, seq_len {n}, d_model {d}"
        hint = "it is two (B, N, N) arrays, the positions of the maxima, int64, and the row sums"
        mistakes = {"a Python number, √d, counts: autograd keeps it as a tensor of one element": want + 8}
        assert_bytes(name, saved_for_backward(attention, *inputs), want, mistakes, hint)

        scale = torch.ones(n, d)
        got = saved_for_backward(lambda q, k, v: attention(q * scale, k, v).sum(), *inputs)
        want += inputs[0].nbytes
        mistakes = {"scale, which is neither among args nor in the output, is left out": want}
        hint = "q * scale is kept for k's gradient, and scale for q's"
        name = "what is saved for attention(q * scale, k, v).sum(), where fn closes over scale,"
        assert_bytes(name, got, want + scale.nbytes, mistakes, hint)

    def test_a_leaf_that_is_no_argument(self):
        w = leaf(1000)
        got = saved_for_backward(lambda x: (x * w).sum(), leaf(1000))
        mistakes = {"w, which is neither among args nor in the output, is left out": 0}
        name = "what is saved for (x * w).sum(), where fn closes over w, which requires a gradient too,"
        assert_bytes(name, got, 4000, mistakes)

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

    def test_no_backward_pass_is_run(self):
        @probe
        def has_gradient():
            x = torch.ones(100, requires_grad=True)
            saved_for_backward(lambda x: x.exp().sum(), x)
            return x.grad is not None

        require(
            not has_gradient(), "x.grad is there after saved_for_backward: a backward pass was run, and none is to be"
        )

    @pytest.mark.cost
    def test_nothing_stays_saved(self):
        cause = "pack returns the very tensor it was given; where that is the output, the graph holds itself "
        cause += "(return tensor.detach()). Or storages are collected in a global"
        for expression in ("x.exp().sin() * 2", "x.exp()"):
            alive = alive_after(partial(saved_for_backward, function(expression, "x"), leaf(1000)))
            message = f"{alive:,} bytes are still alive after saved_for_backward of {expression}\nUsual cause: {cause}"
            require(alive == 0, message)

    @pytest.mark.robust
    def test_an_exception_passes(self):
        call = partial(saved_for_backward, function("[x.exp().sum(), {}['inside']]", "x"), torch.ones(10))
        assert_passes_on(call, "where fn raised one")


SHAPES = [
    *((8, 16384, 128, 4), (1, 2**20, 64, 4), (2, 63, 17, 4), (7, 31, 31, 4)),  # long and odd sequences
    *((3, 200, 20, 1), (3, 200, 20, 2), (3, 200, 20, 8)),
    # where d is large against N, another moment has the peak
    *((4, 64, 1024, 4), (3, 5, 300, 4), (1, 40, 170, 4), (1, 40, 80, 4)),
    *((1000, 1, 4, 4), (1, 1, 512, 4), (1, 1, 1, 4)),  # one token
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
    @pytest.mark.refuses
    def test_sizes_below_one_are_refused(self, name):
        for value in (0, -3):
            sizes = {"batch": 2, "seq_len": 3, "d_model": 4, "dtype_bytes": 4, name: value}
            call = partial(attention_training_memory, **sizes)
            assert_raises(ValueError, call, when=f"for {name} {value}", mentions={name: value})


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
        for capacity in (1, 10**6, 64 * MIB, 64 * MIB + 4096):  # nothing fits
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

    @pytest.mark.seconds(15)
    @pytest.mark.robust
    def test_devices_of_the_far_future(self):
        for capacity in (10**15, 10**33):
            self.check(capacity, 1, 3)

    @pytest.mark.refuses
    @pytest.mark.parametrize("peak", ["peek", "weights"])
    def test_an_unknown_peak_is_refused(self, peak):
        call = partial(largest_seq_len, 10**9, 1, 1, peak=peak)
        assert_raises(ValueError, call, when=f"for peak={peak!r}", mentions={"peak": peak})


ADD_MEM = {256: "4.02344", 1024: "64.0938", 4096: "1024.38", 8192: "4096.75", 16384: "16385.5"}
"""Length → add_mem_MB of the published table, as printed, in MiB, for any width."""
MEM_MAX = {
    16: ("72.7739", "195.094", "2124.38", "8280.75", "32881.5"),
    32: ("73.5239", "198.094", "2136.38", "8304.75", "32929.5"),
    64: ("75.0239", "204.094", "2160.38", "8352.75", "33025.5"),
    128: ("78.0239", "216.094", "2208.38", "8448.75", "33217.5"),
}
"""Width → mem_max_MB for each of these lengths."""
ONE_STEP = {"batch_size": 1, "warmup_steps": 0, "steps": 1}


@probe
def paced_rows(forward_ms, backward_ms, *args, **asked):
    """Rows of steps that take the given times; the times taken; how many forward and backward passes ran in all.

    Last, how many steps without a tracker began without gradients.
    """
    steps = PacedSteps(forward_ms, backward_ms)
    with steps.pace(getattr(benchmark_attention, "__globals__", {})):
        rows = benchmark_attention(*args, **asked)
    return rows, steps.taken_ms, steps.n_forward, steps.n_backward, steps.n_fresh


class TestBenchmarkAttention:
    @pytest.mark.basic
    @simulated
    @pytest.mark.parametrize("device", ["cpu", "meta"])
    def test_other_rows(self, device, rng):
        """On meta every tensor is rounded up, on the CPU none."""
        sizes = [17, int(rng.integers(20, 300))], [5, int(rng.integers(40, 400))]
        asked = {"batch_size": 3, "warmup_steps": 0, "steps": 1, "device": device}
        for row in requested(benchmark_attention(*sizes, **asked), *sizes, **asked):
            assert_memory_columns(row)

    @pytest.mark.basic
    @simulated
    def test_the_published_table(self):
        widths, lengths = list(MEM_MAX), list(ADD_MEM)
        rows = requested(benchmark_attention(widths, lengths, device="meta"), widths, lengths, device="meta")
        for row in rows:
            n, d = row["seq_len"], row["d_model"]
            assert_memory_columns(row)
            want = MEM_MAX[d][lengths.index(n)], ADD_MEM[n]
            printed = f"{row['mem_max_MB']:.6g}", f"{row['add_mem_MB']:.6g}"
            assert_equal(f"mem_max_MB and add_mem_MB for {n}, {d}, printed,", printed, want)
            times = row["fwd_ms"], row["bwd_ms"]
            assert_equal(f"fwd_ms and bwd_ms for {n}, {d}", times, (None, None), hint="a simulation has no times")

    @simulated
    def test_simulated_rows_are_measured(self):
        _, _, n_forward, n_backward, _ = paced_rows([1], [1], [16, 32], [64], batch_size=2, steps=1, device="meta")
        message = f"for two rows, {n_forward} forward passes ran on meta tensors, expected two steps of each"
        cause = "the numbers are worked out by a formula, or copied: this table is to be measured"
        require(n_forward >= 4 and n_backward >= 2, f"{message}\nUsual cause: {cause}")

    def test_number_of_steps(self):
        steps = {}
        for warmup, timed in ((0, 2), (0, 5), (3, 2)):
            asked = {"batch_size": 1, "warmup_steps": warmup, "steps": timed}
            rows, taken_ms, _, _, n_fresh = paced_rows([1], [1], [4], [8], **asked)
            message = f"{n_fresh} steps that are timed or warm up begin without gradients, which only a first step does"
            require(n_fresh < timed, f"{message}\nUsual cause: .grad is thrown away: it stays from step to step")
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
        rows, taken_ms, _, _, _ = paced_rows(*costs, [4], [16], **asked)
        (row,) = requested(rows, [4], [16], **asked)
        assert_time_columns(row, taken_ms)

    @pytest.mark.parametrize("where", ["CUDA", "CPU", "CPU_on_Windows"])
    @pytest.mark.robust
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
        numbers = [rows[1][name] for name in ("fwd_ms", "bwd_ms", "mem_max_MB", "add_mem_MB")]
        assert_equal("the four numbers of a row that ran out of memory", numbers, [None] * 4)
        assert_memory_columns(rows[2])

    @pytest.mark.parametrize(
        ("kind", "text"),
        [
            (RuntimeError, "mat1 and mat2 shapes cannot be multiplied"),
            (RuntimeError, "CUDA error: an illegal memory access was encountered"),
            (TypeError, "mat1 and mat2 shapes cannot be multiplied"),
        ],
        ids=["RuntimeError", "illegal_memory_access", "TypeError"],
    )
    @pytest.mark.robust
    def test_other_errors_pass(self, kind, text):
        @probe
        def statuses_where_attention_fails():
            with SmallDevice(4 * 100 * 100, lambda: kind(text)):
                return [row["status"] for row in benchmark_attention([4], [128], **ONE_STEP)]

        with nothing_left_on("an error inside"):
            when = f"where attention raised {text!r}, which is not out of memory"
            assert_raises(kind, statuses_where_attention_fails, when=when, mentions=())

    @pytest.mark.cost
    def test_nothing_stays_alive(self):
        alive = alive_after(lambda: benchmark_attention([8], [64, 65], batch_size=2, warmup_steps=0, steps=1))
        require(alive == 0, f"{alive:,} bytes are still alive after the benchmark: rows hold numbers, not tensors")

    @pytest.mark.refuses
    def test_other_devices_are_refused(self):
        rows = partial(benchmark_attention, [4], [8], steps=1, device="mps")
        assert_raises(ValueError, rows, when="for device='mps'", mentions=["mps"])

    @pytest.mark.gpu
    def test_on_a_gpu(self):
        asked = {"warmup_steps": 2, "steps": 3, "device": "cuda"}
        (row,) = requested(benchmark_attention([64], [2048], **asked), [64], [2048], **asked)
        assert_row_of_a_gpu(row)
