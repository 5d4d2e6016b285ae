"""Lab 02's suite: bytes counted while they live, bytes kept for the backward pass, and bytes predicted.

Most tests are lines of Python, which `run` runs where the answer is. In the first three classes a test's docstring is
such lines, with what must be read then in comments: of a tracker (`LINES.follow`), or as what a call of the task gives
for a line (`LINES.gives`).
"""

import math
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

import labkit.meters.examples as examples
import labkit.meters.stand_ins as stand_ins
from labkit.meters.allocation import AllocationMeter
from labkit.meters.lines import left_on, read, run_lines
from labkit.testing.compare import assert_equal, assert_raises, require
from labkit.testing.lines import Lines, assert_bytes, lines_of_dtypes, peak_and_result, random_lines
from labkit.testing.probes import probe

from .support import (
    EXACT,
    RequestedRows,
    assert_longest,
    assert_prediction,
    measured_step,
    new_bytes,
    saved_by,
    saved_suspects,
    step_memory,
)

MIB, GIB = 2**20, 2**30
WORKSPACE_BYTES = 64 * MIB

pytestmark = pytest.mark.seconds(30)  # a dispatch mode that does not decline dynamo imports it at its first operator
simulated = pytest.mark.seconds(90)  # so does the first arithmetic on meta tensors, with a computer algebra system


WITHIN_REACH = {
    "MemoryTracker": MemoryTracker,
    "attention_training_memory": attention_training_memory,
    "benchmark_attention": benchmark_attention,
    "measure_memory": measure_memory,
    "saved_for_backward": saved_for_backward,
    "AllocationMeter": AllocationMeter,
    "examples": examples,
    "left_on": left_on,
    "read": read,
    "stand_ins": stand_ins,
    "torch": torch,
}
"""What lines may name."""


@probe
def run(lines, **names):
    """Run lines of Python; returns what they `note`. They know `names` and what is within reach."""
    return run_lines(lines, WITHIN_REACH | names)


LINES = Lines(run)
peak = LINES.gives("measure_memory", part=0)
saved = LINES.gives("saved_for_backward")


@LINES.follow
class TestMemoryTracker:
    def test_worked_example(self):
        """
        with MemoryTracker() as tracker:  # current 0, peak 0
            x = torch.zeros(1000)  # current 4000, peak 4000
            y = (x + 1).view(10, 100)  # current 8000, peak 8000
            del x  # current 4000, peak 8000 — what is released no longer counts
        # current 4000, peak 8000
        """

    def test_a_temporary_raises_the_peak(self):
        """
        x = torch.ones(1000)
        with MemoryTracker() as tracker:
            y = ((x + 1) * 2).sum()  # current 4, peak 8000 — x + 1 is alive while it is doubled, and not afterwards
        """

    def test_the_peak_is_of_one_moment(self):
        """
        with MemoryTracker() as tracker:
            for n in [1000] * 5:
                x = torch.zeros(n)
                del x
            n = 500  # current 0, peak 4000 — arrays came and went: forget a storage's identity, it is used again
            # 20000: everything ever allocated is added up
            x = [torch.zeros(n) for _ in range(3)]  # current 6000, peak 6000 — a released storage is forgotten
        """

    @pytest.mark.parametrize("device", ["cpu", "meta"])
    def test_views_share_their_storage(self, device):
        """
        with MemoryTracker(device) as tracker:
            x = torch.zeros(30, 40, device=device)
            views = [x.view(1200), x.T, x[3:5], x[:, 1], x.detach(), x.unsqueeze(0).expand(9, 30, 40)]
            views += x.unbind(0)  # current 4800, peak 4800 — count storages; data_ptr() differs from view to view
            y = x.clone()  # current 9600, peak 9600
            del x, views[1:]  # current 9600 — a storage lives as long as any view of it, the whole of it
            views.clear()  # current 4800
        """

    def test_a_view_counts_with_its_whole_storage(self):
        """
        with MemoryTracker() as tracker:
            x = torch.empty_strided((10,), (100,))  # current 3604 — ten elements, every hundredth of 901
            # 40: the tensor's elements are counted in place of its storage
            x = torch.zeros(1000)[:10]  # current 4000 — the array before is gone, this one is held whole
            # 40: the view's elements are counted in place of its storage
            y = torch.zeros(100).expand(50, 100)  # current 4400 — a hundred numbers, however often they are seen
            # 24000: elements are counted in place of the storage
        """

    def test_results_in_place_add_nothing(self):
        """
        with MemoryTracker() as tracker:
            x = torch.zeros(1000)
            y = x.add_(1).mul_(2).relu_()
            torch.exp(x, out=x)
            x[:5] = 3  # current 4000, peak 4000 — an operator in place returns its operand
        """

    def test_what_was_there_before_adds_nothing(self):
        """
        x, gone = torch.zeros(1000), torch.zeros(500)
        with MemoryTracker() as tracker:
            views = [x.view(10, 100), x[3:], x.detach()]
            x.add_(1).exp_()
            torch.add(x, 1, out=x)  # current 0, peak 0 — a result may lie in an operand's storage, there before
            y = x.exp()
            del gone, x, views  # current 4000, peak 4000 — releasing what was never counted takes nothing off
        """

    def test_several_results(self):
        """
        x = torch.arange(24.0).reshape(4, 6)
        with MemoryTracker() as tracker:
            values, positions = x.max(-1)  # current 48, peak 48 — two results: max returns int64 positions too
            parts = torch._foreach_add([values, x], 1.0)  # current 160, peak 160 — two results, in a list
        """

    def test_dtypes(self):
        LINES.assert_readings(lines_of_dtypes(bool=1, int8=1, bfloat16=2, float16=2, float64=8, int64=8))

    def test_reset(self):
        """
        with MemoryTracker() as tracker:
            x = torch.zeros(1000)
            y = torch.zeros(2000)
            del y
            tracker.reset()  # current 4000, peak 4000
            # 0: reset sets it to 0, though an array is alive
            # 12000: reset changes nothing
            z = torch.zeros(10)  # current 4040, peak 4040
            del x  # current 40, peak 4040 — reset starts the peak again; what is alive stays counted, and its release
        """

    def test_after_the_block(self):
        with LINES.nothing_left_on("the block"):
            LINES.assert_readings(
                "with MemoryTracker() as tracker:\n"
                "    x = torch.zeros(100)\n"
                "y = torch.zeros(1000)  # current 400, peak 400 — what is made after the block does not count"
            )

    @pytest.mark.kind("robust")
    def test_an_exception_passes(self):
        tracker = MemoryTracker()
        lines = "with tracker:\n    torch.zeros(100)\n    raise KeyError('inside')"
        LINES.assert_passes_on(lambda: run(lines, tracker=tracker), "where one was raised inside the block")
        LINES.assert_readings("x = torch.zeros(1000)  # peak 400 — an exception ends the block too", tracker=tracker)

    def test_entering_again_starts_from_zero(self):
        """
        tracker = MemoryTracker()
        with tracker:
            x = torch.zeros(1000)
        with tracker:  # current 0, peak 0 — what an earlier block counted is there before
            y = torch.zeros(10)
            del x  # current 40, peak 40
        """

    def test_one_inside_another(self):
        """
        with MemoryTracker() as outer:
            x = torch.zeros(1000)
            with MemoryTracker() as inner:
                y = torch.zeros(500)  # inner: current 2000, peak 2000 — each tracker has its own count
            n = 10  # outer: current 6000, peak 6000
            z = torch.zeros(n)  # inner: current 2000
        """

    def test_any_order(self, rng):
        LINES.assert_readings(random_lines(rng))

    def test_what_autograd_keeps(self):
        """
        x = torch.ones(1000, requires_grad=True)
        with MemoryTracker() as tracker:
            loss = x.exp().sum()  # current 4004, peak 4004 — the exponentials, kept for the backward pass, have no name
            loss = x.exp().sin().sum()  # current 4004, peak 12008 — the last loss and its exponentials are still there
            loss.backward()  # current 4004 — what was saved goes, x.grad stays
            x.grad = None  # current 4
        """

    def test_a_training_step_of_attention(self):
        """
        with MemoryTracker() as tracker:
            q, k, v = (torch.randn(2, 37, 12, requires_grad=True) for _ in range(3))
            loss = examples.attention(q, k, v).sum()
            loss.backward()
            tracker.reset()
            loss = examples.attention(q, k, v).sum()  # current {live_after_forward}, peak {forward_peak}
            loss.backward()  # peak {step_peak} — temporaries of the backward pass count as well
        """
        moments = ("live_after_forward", "forward_peak", "step_peak")
        return {name: step_memory((2, 37, 12), name, **EXACT) for name in moments}

    def test_meta_tensors(self):
        """
        with MemoryTracker("meta") as tracker:
            x = torch.empty(2**20, 2**20, device="meta")
            y = x.clone()  # current {twice} — a meta tensor has a storage with a size; its data_ptr() is 0
            del x  # current {once}, peak {twice}
            z = torch.zeros(5)  # current {more} — a tracker counts tensors of the CPU as well
        """
        return {"once": 2**42, "twice": 2**43, "more": 2**42 + 20}

    @pytest.mark.kind("refuses")
    def test_without_a_gpu_cuda_is_refused(self):
        lines = "with stand_ins.without_a_gpu(), MemoryTracker('cuda') as tracker: note(tracker.peak_allocated())"
        assert_raises(RuntimeError, lambda: run(lines), when="for MemoryTracker('cuda') without a GPU")

    @pytest.mark.kind("refuses")
    def test_other_devices_are_refused(self):
        assert_raises(ValueError, lambda: MemoryTracker("mps"), when="for MemoryTracker('mps')", mentions=["mps"])

    @pytest.mark.parametrize("device", ["cuda", "cuda:1"])
    def test_statistics_of_cuda(self, device):
        """
        with stand_ins.CudaStandIn() as gpu:
            gpu.allocate(5000, device)
            gpu.free(3000, device)
            with MemoryTracker(device) as tracker:  # current 0, peak 0 — 2000 bytes were there, 5000 at their peak
                # -2000: another device is read, the current one
                # 2000: what was allocated before is not taken off
                # 3000: the peak is not reset on entering
                # 5000: neither is the peak reset on entering nor what was allocated before taken off
                gpu.allocate(700, device)
                gpu.free(300, device)  # current 400, peak 700 — not what is reserved, and of the tracker's own device
                tracker.reset()  # current 400, peak 400 — reset_peak_memory_stats
                # 0: reset takes the baseline anew
                gpu.allocate(100, device)  # current 500, peak 500
            # peak 500
        """

    @pytest.mark.gpu
    def test_on_a_gpu(self):
        """
        MemoryTracker()
        held = torch.zeros(2**20, device="cuda")
        with MemoryTracker("cuda") as tracker:
            x = torch.zeros(2**20, device="cuda")
            y = (x + 1)[:128] * 2  # current 4194816, peak 8389120
            tracker.reset()  # peak 4194816
        """


WHERE_TO_MEASURE = {  # the arguments of a function that takes 300 bytes of a GPU and 40 of the CPU
    **dict.fromkeys(("{'x': [on_cuda]}", "5, on_cuda, on_cpu", "y=on_cuda"), 300),
    **dict.fromkeys(("on_cpu, on_cuda", "on_cpu, y=on_cuda", "5"), 40),
}


@peak
class TestMeasureMemory:
    def test_worked_example(self):
        """
        x = torch.zeros(1000)
        (x + 1).sum()  # 4004
        # 4: what is alive at the end is measured, not the peak
        # 8004: the arguments are counted
        # 4000: the result's bytes are taken off
        """

    def test_sizes_drawn_at_random(self, rng):
        for n in map(int, rng.integers(10, 5000, 3)):
            peak_bytes, result = LINES.measured("(x + 1).sum()", x=torch.zeros(n))
            require(not isinstance(peak_bytes, torch.Tensor), "the result came first: it is (peak_bytes, result)")
            assert_bytes(f"the peak of (x + 1).sum(), of {n} numbers,", peak_bytes, 4 * n + 4)
            assert_equal("the result of (x + 1).sum()", float(result), float(n))

    def test_the_result_is_handed_on_as_it_is(self):
        lines = """
for value in ([torch.zeros(3)], None):
    got = measure_memory(lambda: value)
    note((got, isinstance(got, tuple) and got[-1] is value))
"""
        for name, (got, is_handed_on) in zip(("a list", "nothing"), run(lines), strict=True):
            peak_and_result(got)
            require(is_handed_on, f"fn returned {name}; measure_memory returned something else")
        _, result = LINES.measured("x.exp()", x=torch.ones(5, requires_grad=True))
        lost = "the result of x.exp() has lost its graph: fn must run as it would without a tracker"
        require(result.requires_grad, lost)

    def test_arguments_are_handed_on(self):
        lines = """
x, y = torch.ones(100), torch.ones(100)
def fn(first, *more, scale=1.0, other=None):
    note((first is x and more == (2, 3), scale == 0.5 and other is y))
measure_memory(fn, x, 2, 3, scale=0.5, other=y)
"""
        ((positional, keyword),) = run(lines)
        require(positional, "positional arguments do not reach fn as they are")
        require(keyword, "keyword arguments do not reach fn as they are")

    def test_fn_is_called_once(self):
        measured, n_calls = run("calls = []\nnote(measure_memory(calls.append, 1))\nnote(len(calls))")
        peak_and_result(measured)
        assert_equal("the number of calls of fn", n_calls, 1)

    def test_a_function_that_allocates_nothing(self):
        """
        x = torch.zeros(1000)
        x.view(10, 100).T  # 0 — a view
        x.add_(1)  # 0 — in place
        """

    def test_the_peak_is_over_what_was_there(self):
        first, second = LINES.call("measure_memory", "x.exp()", times=2, x=torch.zeros(1000))
        assert_bytes("the peak of the first of two calls", peak_and_result(first)[0], 4000)
        hint = "what an earlier call left belongs to the baseline"
        assert_bytes("the peak of the second", peak_and_result(second)[0], 4000, hint=hint)

    def test_the_peak_of_a_smaller_call_after_a_larger_one(self):
        """
        n = 5000
        torch.zeros(n)  # 20000
        n = 10
        torch.zeros(n)  # 40 — not what an earlier call needed
        """

    def test_inside_a_tracker(self):
        got, outer_bytes = LINES.metered("measure_memory(torch.exp, x)", x=torch.zeros(1000))
        assert_bytes("the peak of a call, measured while others measure too,", peak_and_result(got)[0], 4000)
        require(outer_bytes >= 4000, "the meter outside no longer sees what is allocated")

    def test_attention(self):
        inputs = {name: torch.randn(3, 29, 17) for name in "qkv"}
        for function, softmax in (("attention", "written_out"), ("attention_built_in", "built_in")):
            peak_bytes, _ = LINES.measured(f"examples.{function}(q, k, v)", **inputs)
            want = new_bytes((3, 29, 17), "inference_peak", softmax=softmax)
            assert_bytes(f"the peak of attention, its softmax {softmax},", peak_bytes, want)

    def test_a_training_step(self):
        shape = (2, 31, 8)
        inputs = {name: torch.randn(shape, requires_grad=True) for name in "qkv"}
        first, second = LINES.call("measure_memory", "examples.attention(q, k, v).sum().backward()", times=2, **inputs)
        new = new_bytes(shape, "step_peak")
        gradient_of_v = 4 * math.prod(shape)  # the first to be made, and in the first step it stays
        hint = "the backward pass runs inside fn: it counts, and so do the gradients that it makes"
        assert_bytes("the peak of forward and backward", peak_and_result(first)[0], new + gradient_of_v, hint=hint)
        assert_bytes("the peak of a second step, its gradients kept,", peak_and_result(second)[0], new)

    def test_meta_arguments(self):
        x = torch.empty(2**20, 2**20, device="meta")
        peak_bytes, result = LINES.measured("xs['x'][0].clone()", xs={"x": [x]})
        require(result.device.type == "meta", "the result is no longer on meta")
        assert_bytes("the peak of a simulated copy of 4 TiB", peak_bytes, 2**42)

    @pytest.mark.kind("robust")
    def test_an_exception_passes(self):
        x = torch.zeros(100)
        LINES.assert_passes_on(lambda: LINES.measured("[x.exp().sum(), {}['inside']]", x=x), "where fn raised one")
        with LINES.nothing_left_on("a measurement"):
            LINES.measured("torch.zeros(n)", n=5)

    @pytest.mark.parametrize(("arguments", "bytes_there"), [*WHERE_TO_MEASURE.items()])
    def test_no_bytes_without_a_gpu(self, arguments, bytes_there):
        LINES.measured("torch.zeros(n)", n=5)
        lines = f"""
on_cpu, on_cuda = torch.zeros(1), stand_ins.OnCuda(torch.zeros(1))
with stand_ins.takes_of_a_gpu(300, otherwise=40) as fn:
    note(measure_memory(fn, {arguments}))
"""
        name = f"the peak of fn({arguments}), which takes 40 bytes of the CPU and 300 of a GPU (played by a stand-in),"
        hint = "the first tensor among the arguments, also inside lists and dicts, says which device to measure"
        assert_bytes(name, peak_and_result(run(lines)[0])[0], bytes_there, hint=hint)


@saved
class TestSavedForBackward:
    def test_worked_example(self):
        """
        x = examples.leaf(1000)
        x.exp().sum()  # 4000
        # 4004: the output is counted
        x.exp()  # 0
        # 4000: the output is counted
        x.sin().sum()  # 0
        # 4000: the input is counted
        """

    def test_a_storage_counts_once(self):
        """
        x = examples.leaf(1000)
        ((e := x.exp()) * e).sin().sum()  # 8000 — exp saves its result, and the product the same storage twice more
        # 16000: each time a tensor is saved counts
        # 4000: a storage is forgotten and its identity used again
        """

    @simulated
    @pytest.mark.parametrize("device", ["cpu", "meta"])
    def test_views_of_one_storage(self, device):
        """
        x = examples.leaf(30, 40, device=device)
        ((e := x.exp()).T @ e[:, :5]).sum() + (e[2:] * e[:-2]).sum()  # 4800 — data_ptr() differs from view to view
        """

    def test_a_view_keeps_the_whole_storage(self):
        """
        x = examples.leaf(1000)
        ((x * 2)[:10].sin() * 3).sum()  # 4000
        # 40: the elements saved are counted, not the storage that they keep alive
        """

    def test_views_of_inputs_are_inputs(self):
        """
        x, w = examples.leaf(6, 7), examples.leaf(5, 7)
        (x @ w.T + (x[1:] * x[:-1]).sum()).sum()  # 0 — a view of an input is the input: its storage was there before
        """

    def test_views_of_the_output_are_output(self):
        """
        x = examples.leaf(6, 7)
        x.exp().T  # 0 — the output's storage is left out, whatever view of it is returned
        x.exp()[1:]  # 0 — the output's storage is left out, whatever view of it is returned
        """

    def test_inputs_and_outputs_in_containers(self):
        """
        x, w = examples.leaf(100), examples.leaf(100)
        pair, deeper, named = [x], (5, [x]), dict(w=w)
        dict(product=(a := pair[0].sin()) * named["w"], a=[a])  # 0 — look inside lists, tuples and dicts
        dict(product=(a := deeper[1][0].sin()) * named["w"], a=(a, None))  # 0 — look inside lists, tuples and dicts
        (x.exp(), x.exp())  # 0 — every tensor that fn returns is output
        """

    def test_every_dtype_counts(self):
        """
        x = examples.leaf(10, 100)
        (x * 2).max(-1)[0].sum()  # 80 — the maximum saves where it was found: int64, 8 bytes each
        x.masked_fill(~torch.zeros(x.shape, dtype=torch.bool), 0.0).sum()  # 1000 — the mask, a byte an element
        half = examples.leaf(1000, dtype=torch.bfloat16)
        half.exp().sum()  # 2000 — two bytes an element
        """

    def test_modules(self):
        for module, name, hint in (
            ("torch.nn.Linear(20, 30)", "a linear layer", "a module's parameters are inputs"),
            ("torch.nn.BatchNorm1d(20)", "a batch norm that does not train", "a module's buffers are inputs too"),
        ):
            (got,) = run(f"note(saved_for_backward({module}.eval(), x))", x=torch.ones(7, 20, requires_grad=True))
            assert_bytes(f"what is saved for {name}", got, 0, hint=hint)

    def test_functions_with_a_backward_of_their_own(self):
        """
        x = examples.leaf(100)
        examples.Doubled.apply(x).sum()  # 400 — what ctx.save_for_backward is given counts too
        """

    def test_without_gradients(self):
        """
        x, y = torch.ones(1000), examples.leaf(1000)
        x.exp().sum()  # 0 — x needs no gradient
        torch.no_grad()(torch.exp)(y).sum()  # 0 — nothing is saved under no_grad
        """

    def test_attention(self, rng):
        shape = tuple(int(rng.integers(*bounds)) for bounds in ((1, 4), (20, 60), (5, 30)))
        inputs = {name: torch.ones(shape, requires_grad=True) for name in "qkv"}
        for text, nbytes in saved_by(shape).items():
            got = LINES.call("saved_for_backward", text, **inputs)
            assert_bytes(f"what is saved for {text} on {shape}", got, nbytes, suspects=saved_suspects(shape))
        line = "note(saved_for_backward(lambda q, k, v: examples.attention(q * scale, k, v).sum(), q, k, v))"
        scale, without_scale = torch.ones(shape[1:]), step_memory(shape, "saved", **EXACT) + inputs["q"].nbytes
        name = f"what is saved for attention on {shape} of q * scale, where fn closes over scale,"
        suspects = {"scale, which is neither among args nor in the output, is left out": without_scale}
        hint = "q * scale is kept for k's gradient, and scale for q's"
        got = run(line, **inputs, scale=scale)[0]
        assert_bytes(name, got, without_scale + scale.nbytes, suspects=suspects, hint=hint)

    def test_fn_is_called_once_and_no_backward_pass_runs(self):
        lines = """
calls = []
saved_for_backward(lambda x: (calls.append(1), x.exp().sum())[1], x)
note((len(calls), x.grad))
"""
        ((n_calls, gradient),) = run(lines, x=torch.ones(100, requires_grad=True))
        assert_equal("the number of calls of fn", n_calls, 1)
        require(gradient is None, "x has a gradient: a backward pass was run")

    @pytest.mark.kind("small")
    def test_nothing_stays_saved(self):
        x = torch.ones(1000, requires_grad=True)
        with LINES.nothing_left_on("a call of saved_for_backward"):
            for text in ("x.exp().sin() * 2", "x.exp()"):
                cause = "pack returns the very tensor it was given; where that is the output, the graph holds "
                cause += "itself (return tensor.detach()). Or storages are collected in a global"
                after = f"saved_for_backward has returned\nUsual cause: {cause}"
                LINES.assert_nothing_alive(f"saved_for_backward(lambda x: {text}, x)", after, x=x)
        asked_twice = LINES.call("saved_for_backward", "x.exp().sum()", times=2, x=x)
        assert_equal("what is saved for x.exp().sum(), asked a second time,", asked_twice[1], 4000)

    @pytest.mark.kind("robust")
    def test_hooks_go_when_fn_raises(self):
        call = partial(LINES.call, "saved_for_backward", "[x.exp().sum(), {}['inside']]", x=torch.ones(10))
        LINES.assert_passes_on(call, "where fn raised one")


class TestAttentionTrainingMemory:
    def check(self, *shape, itemsize=4):
        given = () if itemsize == 4 else (itemsize,)
        assert_prediction(attention_training_memory(*shape, *given), shape, itemsize)

    def test_worked_example(self):
        self.check(8, 256, 16)

    def test_the_longest_row_of_the_table(self):
        self.check(8, 16384, 128)

    @pytest.mark.parametrize("shape", [(2, 63, 17), (3, 129, 5), (1, 1, 1), (7, 31, 31)])
    def test_odd_shapes(self, shape):
        self.check(*shape)

    @pytest.mark.parametrize("itemsize", [1, 2, 8])
    def test_bytes_of_an_element(self, itemsize):
        self.check(3, 100, 20, itemsize=itemsize)

    @pytest.mark.parametrize(
        "shape", [(1, 1, 512), (3, 5, 300), (1, 40, 170), (1, 40, 80), (2, 2, 7), (2, 64, 1024), (128, 1, 4)]
    )
    def test_wide_models(self, shape):
        self.check(*shape)

    def test_any_shape(self, rng):
        for _ in range(20):
            batch, n, d = (int(2 ** rng.uniform(0, top)) for top in (4, 9, 11))
            self.check(batch, n, d, itemsize=int(rng.choice([2, 4, 8])))

    @pytest.mark.kind("small")
    def test_a_million_tokens(self):
        got, peak_bytes = LINES.metered("attention_training_memory(1, 2**20, 64)")
        assert_prediction(got, (1, 2**20, 64))
        require(peak_bytes == 0, f"the prediction allocates {peak_bytes:,} bytes: nothing is to be allocated")

    def test_the_tracker_agrees(self):
        shape = (8, 16, 16)
        got = attention_training_memory(*shape)
        for name, want in measured_step(shape).items():
            assert_bytes(f"{name} of {shape}, beside a measured step,", got[name], want)

    @pytest.mark.parametrize("position", range(4))
    @pytest.mark.kind("refuses")
    def test_nothing_is_refused(self, position):
        name = ("batch", "seq_len", "d_model", "dtype_bytes")[position]
        for value in (0, -3):
            sizes = [2, 3, 4, 4]
            sizes[position] = value
            call = partial(attention_training_memory, *sizes)
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

    @pytest.mark.parametrize("peak", [None, "forward_peak", "step_peak", "saved"])
    def test_devices(self, peak):
        for capacity in (70 * MIB, 16 * 10**9, 98 * GIB):
            for d in (16, 128):
                self.check(capacity, 8, d, peak=peak)

    def test_other_dtypes(self):
        for itemsize in (1, 2, 8):
            for peak in (None, "step_peak"):
                self.check(3 * GIB, 2, 40, itemsize=itemsize, peak=peak)

    def test_a_total_of_exactly_the_capacity_fits(self, rng):
        for peak in ("forward_peak", "step_peak"):
            for _ in range(10):
                batch, n, d = (int(2 ** rng.uniform(0, top)) for top in (3, 13, 8))
                total = step_memory((batch, n, d), peak)
                self.check(total, batch, d, peak=peak)
                self.check(total - 1, batch, d, peak=peak)

    def test_wide_models(self):
        for d in (4096, 20_000):
            for peak in ("forward_peak", "step_peak"):
                self.check(WORKSPACE_BYTES + 40 * MIB, 4, d, peak=peak)

    def test_lengths_that_take_the_same_memory(self):
        for n in range(1, 12):
            self.check(step_memory((1, n, 1), "forward_peak", dtype_bytes=1), 1, 1, itemsize=1)

    @pytest.mark.parametrize("capacity", [0, 1, 10**6, WORKSPACE_BYTES, WORKSPACE_BYTES + 4096])
    def test_nothing_fits(self, capacity):
        self.check(capacity, 8, 64)

    def test_one_token_fits(self):
        self.check(step_memory((8, 1, 64), "forward_peak"), 8, 64)

    @pytest.mark.seconds(5)
    @pytest.mark.kind("robust")
    def test_devices_of_the_far_future(self):
        for capacity in (10**15, 10**21 + 12_345, 10**41):
            self.check(capacity, 1, 3)

    @pytest.mark.kind("refuses")
    def test_an_unknown_peak_is_refused(self):
        call = partial(largest_seq_len, 10**9, 1, 1, peak="peek")
        assert_raises(ValueError, call, when="for peak='peek'", mentions=["peek"])


BENCHMARK = RequestedRows(run)
ONE_STEP = {"batch_size": 1, "warmup_steps": 0, "steps": 1}


class TestBenchmarkAttention:
    @simulated
    def test_the_published_table(self):
        BENCHMARK.assert_published()

    @simulated
    def test_simulated_rows_are_rounded(self, rng):
        widths, lengths = [17, int(rng.integers(20, 300))], [5, int(rng.integers(40, 400))]
        BENCHMARK.assert_memory(widths, lengths, batch_size=3, warmup_steps=0, steps=1, device="meta")

    @simulated
    def test_simulated_rows_are_measured(self):
        BENCHMARK.assert_measured([16, 32], [64], batch_size=2, steps=1, device="meta")

    def test_the_cpu_rounds_nothing(self):
        BENCHMARK.assert_memory([17, 300], [63, 5], batch_size=3, warmup_steps=0, steps=1)

    def test_the_steps_are_those_asked_for(self):
        BENCHMARK.assert_steps()

    def test_times_of_the_cpu(self, rng):
        BENCHMARK.assert_times(rng, warmup=2, steps=5)

    @pytest.mark.parametrize("where", ["CUDA", "CPU", "CPU_on_Windows"])
    @pytest.mark.kind("robust")
    def test_rows_that_run_out_of_memory(self, where):
        device = f"with stand_ins.SmallDevice(4 * 100 * 100, lambda: stand_ins.out_of_memory({where!r})):"
        BENCHMARK.assert_second_runs_out([4], [40, 128, 41], within=device, **ONE_STEP)

    @pytest.mark.parametrize(
        ("kind", "text"),
        [(RuntimeError, "mat1 and mat2 shapes cannot be multiplied"), (TypeError, "a mistake")],
        ids=["RuntimeError", "TypeError"],
    )
    @pytest.mark.kind("robust")
    def test_other_errors_pass(self, kind, text):
        device = f"with stand_ins.SmallDevice(4 * 100 * 100, lambda: {kind.__name__}({text!r})):"
        call = lambda: [row["status"] for row in BENCHMARK.rows([4], [128], within=device, **ONE_STEP)]  # noqa: E731
        with LINES.nothing_left_on("an error inside"):
            assert_raises(kind, call, when="where attention raised one that is not about memory")

    @pytest.mark.kind("small")
    def test_nothing_stays_alive(self):
        line = "rows = benchmark_attention([8], [64, 65], batch_size=2, warmup_steps=0, steps=1)"
        LINES.assert_nothing_alive(line, after="the benchmark: rows hold numbers, not tensors")

    @pytest.mark.kind("refuses")
    def test_without_a_gpu_cuda_is_refused(self):
        rows = partial(BENCHMARK.rows, [4], [8], within="with stand_ins.without_a_gpu():", steps=1, device="cuda")
        assert_raises(RuntimeError, rows, when="for device='cuda' without a GPU")

    @pytest.mark.kind("refuses")
    def test_other_devices_are_refused(self):
        rows = partial(benchmark_attention, [4], [8], steps=1, device="mps")
        assert_raises(ValueError, rows, when="for device='mps'", mentions=["mps"])

    @pytest.mark.gpu
    def test_on_a_gpu(self):
        BENCHMARK.assert_on_a_gpu([64], [2048], warmup_steps=2, steps=3)
