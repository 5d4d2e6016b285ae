"""Lab 06's suite: gradients of recomputed functions, what is kept between the passes, and how often what runs."""

import itertools
import math
import types

import pytest
import torch
import torch.nn.functional as F
from checkpointing import Checkpoint, checkpoint, checkpoint_cost, checkpoint_sequential, plan_segments

from labkit.compare import (
    assert_at_most,
    assert_close,
    assert_equal,
    assert_raises,
    assert_tuple,
    assert_type,
    assert_unchanged,
    require,
)
from labkit.meters.products import ProductMeter
from labkit.meters.saved import kept_by_forward
from labkit.meters.tensors import AllocationMeter

ROOM_FOR_STATE = 16 * 1024
"""Bytes: the CPU generator's state is 5,056."""

CUT = "the way back was cut by a detach, or by no_grad, before the arguments reach Checkpoint.apply"


@pytest.fixture(autouse=True)
def generator(rng):
    """torch's own generator, seeded from the test's and given back afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**31)))
        yield


# Inputs, and what is right


def numbers(tensor):
    """The tensor as a NumPy array in a precision NumPy has."""
    return tensor.detach().cpu().numpy()


def random(rng, *shape, dtype=torch.float32, grad=True):
    return torch.from_numpy(rng.standard_normal(shape)).to(dtype).requires_grad_(grad)


def copies(tensors, dtype):
    """New leaves with the same numbers, in `dtype` where they are of a floating-point dtype."""
    return [
        x.detach().to(dtype if x.is_floating_point() else x.dtype).clone().requires_grad_(x.requires_grad)
        if isinstance(x, torch.Tensor)
        else x
        for x in tensors
    ]


def weighted(results, factors):
    """A loss: every floating-point result times factors of its own, all added up."""
    every = results if isinstance(results, tuple) else (results,)
    results = [result for result in every if result.is_floating_point()]
    return sum((result * factor.to(result)).sum() for result, factor in zip(results, factors, strict=True))


def gradients(fn, args, factors, dtype=torch.float64):
    """The gradients by plain autograd, in `dtype`; None where an argument has none."""
    leaves = copies(args, dtype)
    weighted(fn(*leaves), factors).backward()
    return [leaf.grad if isinstance(leaf, torch.Tensor) else None for leaf in leaves]


def assert_gradients(fn, args, factors, names, suspects=None, hint="", lost=""):
    """Compare `.grad` of each of `args` with plain autograd's; `lost` says why there may be none at all."""
    exact, plain = gradients(fn, args, factors), gradients(fn, args, factors, torch.float32)
    for i, (name, arg) in enumerate(zip(names, args, strict=True)):
        if exact[i] is None:
            continue
        got = arg.grad
        require(got is not None, f"the gradient of {name} is None\nUsual cause: {lost or hint or CUT}")
        usual = {text: numbers(value[i]) for text, value in (suspects or {}).items() if value[i] is not None}
        usual |= {"the gradient arrives twice": 2 * numbers(exact[i]), "the gradient is lost": 0 * numbers(exact[i])}
        assert_close(f"the gradient of {name}", got, numbers(exact[i]), plain=numbers(plain[i]), dtype=arg.dtype,
                     suspects=usual, hint=hint)  # fmt: skip


class Watched:
    """A function that notes each of its calls."""

    def __init__(self, fn):
        self.fn, self.calls = fn, 0

    def __call__(self, *args):
        self.calls += 1
        return self.fn(*args)

    def assert_ran(self, times, when):
        usual = "keep the arguments, not the results, and run fn once in each pass"
        if self.calls < times:
            usual = "the forward pass kept what backward needs, in place of having fn run again"
        assert_equal(f"the number of times fn has run {when}", self.calls, times, hint=usual)


def deep(x):
    """Eight steps, each of which saves a tensor of x's size when autograd looks on."""
    for _ in range(8):
        x = torch.tanh(x)
    return x


def mixed(a, power, b, names, frozen, rows, flag):
    """Tensors of all kinds between other arguments; two results of different shapes, and one of integers."""
    require(isinstance(names, tuple) and flag is None, "fn was not given its arguments in their order")
    product = a**power @ b
    return product * frozen, torch.sin(a[rows]).sum(-1) * b.sum(), product.argmax(-1)


def mixed_arguments(rng):
    """What `mixed` takes, the factors of its loss, and names."""
    a, b = random(rng, 5, 3), random(rng, 3, 4)
    frozen, rows = random(rng, 5, 4, grad=False), torch.tensor([4, 0, 0])
    factors = [random(rng, 5, 4, grad=False), random(rng, 3, grad=False)]
    return [a, 2, b, ("x", "y"), frozen, rows, None], factors, ["a", "power", "b", "names", "frozen", "rows", "flag"]


# What both the Function and the function around it must do


class Recomputation:
    """Tests of `run(fn, *args)`, whichever of the two it is."""

    def run(self, fn, *args):
        raise NotImplementedError

    def test_result_and_gradient(self, rng):
        x, factors = random(rng, 7, 5), [random(rng, 7, 5, grad=False)]
        y = self.run(deep, x)
        assert_type("the result", y, torch.Tensor, "the tensor that fn returns")
        exact, plain = (numbers(deep(x.to(dtype))) for dtype in (torch.float64, torch.float32))
        assert_close("the result", y, exact, plain=plain, dtype=torch.float32)
        require(y.requires_grad, "the result does not require grad though the argument does")
        weighted(y, factors).backward()
        ones = gradients(deep, [x], [torch.ones(7, 5)])
        suspects = {"the gradient of the result is taken to be 1": ones}
        lost = "no graph in the second run (torch.enable_grad), its gradient not returned, or detached arguments"
        assert_gradients(deep, [x], factors, ["x"], suspects, "fn runs again on the arguments given, detached", lost)

    def test_arguments_and_results_of_all_kinds(self, rng):
        args, factors, names = mixed_arguments(rng)
        results = assert_tuple("the result", self.run(mixed, *args), ("product", "sums", "positions"))
        for name, got, want in zip(("product", "sums"), results, mixed(*copies(args, torch.float64)), strict=False):
            plain = mixed(*args)[("product", "sums").index(name)]
            assert_close(name, got, numbers(want), plain=numbers(plain), dtype=torch.float32)
        require(torch.equal(results[2], mixed(*args)[2]), "the third result, of integers, is not what fn returns")
        weighted(results, factors).backward()
        none = [0 * factor for factor in factors]
        suspects = {
            "only the first result's gradient is used": gradients(mixed, args, [factors[0], none[1]]),
            "only the last result's gradient is used": gradients(mixed, args, [none[0], factors[1]]),
            "the gradients of the results are taken to be 1": gradients(mixed, args, [torch.ones(5, 4), torch.ones(3)]),
        }
        assert_gradients(mixed, args, factors, names, suspects, "one gradient for each argument, None for what is no "
                         "tensor, in the arguments' order")  # fmt: skip
        require(args[4].grad is None, "an argument that needs no gradient was given one")

    def test_result_that_the_loss_leaves_out(self, rng):
        a, b, factors = random(rng, 4), random(rng, 4), [torch.zeros(4), random(rng, 4, grad=False)]

        def two(a, b):
            return a * b, torch.sin(a) + b**2

        results = self.run(two, a, b)
        (results[1] * factors[1]).sum().backward()
        assert_gradients(two, [a, b], factors, ["a", "b"], hint="the gradient that backward is given for a result may "
                         "be zeros, or None; the other results count all the same")  # fmt: skip

    def test_argument_in_the_middle_of_a_graph(self, rng):
        x, other = random(rng, 6), random(rng, 6)

        def whole(x, other):
            hidden = torch.exp(x)
            return self.run(lambda h, o: torch.sin(h) * o, hidden, other * 2) + hidden

        def plain(x, other):
            return torch.sin(torch.exp(x)) * (other * 2) + torch.exp(x)

        factors = [random(rng, 6, grad=False)]
        result = whole(x, other)
        try:
            weighted(result, factors).backward()
        except RuntimeError as raised:
            if "second time" not in str(raised):
                raise
            raise AssertionError(
                "backward went on from the argument into the graph it came from, which is not its business\n"
                "Usual cause: fn runs again on arguments that are not detached"
            ) from None
        assert_gradients(plain, [x, other], factors, ["x", "other"], hint="fn runs again on arguments that are not "
                         "detached, so that gradients flow past them")  # fmt: skip

    def test_one_tensor_given_twice(self, rng):
        x, factors = random(rng, 5), [random(rng, 5, grad=False)]
        weighted(self.run(lambda a, b: a * torch.sin(b), x, x), factors).backward()
        assert_gradients(lambda x: x * torch.sin(x), [x], factors, ["x"], hint="each place of an argument has a "
                         "gradient of its own; autograd adds them")  # fmt: skip

    def test_parameters_inside(self, rng):
        x, scale, factors = random(rng, 6, 4), random(rng, 3), [random(rng, 6, 3, grad=False)]
        layer = torch.nn.Linear(4, 3)
        weighted(self.run(lambda x: torch.tanh(layer(x)) * scale, x), factors).backward()

        def plain(x, weight, bias, scale):
            return torch.tanh(F.linear(x, weight, bias)) * scale

        given = [x, layer.weight, layer.bias, scale]
        names = ["x", "the weight inside fn", "the bias inside fn", "the tensor that fn closes over"]
        hint = (
            "torch.autograd.grad(results, args) finds the arguments' gradients only; torch.autograd.backward finds all"
        )
        assert_gradients(plain, given, factors, names, hint=hint)

    def test_arguments_are_left_alone(self, rng):
        x, data = random(rng, 5), random(rng, 5, grad=False)
        before = [numbers(tensor).copy() for tensor in (x, data)]
        y = self.run(lambda x, data: torch.sin(x) * data, x, data)
        y.sum().backward()
        for name, tensor, kept, needs in (("x", x, before[0], True), ("data", data, before[1], False)):
            assert_unchanged(name, numbers(tensor), kept)
            require(tensor.requires_grad is needs, f"requires_grad of {name}, an argument, was changed to {not needs}\n"
                    "The caller's tensors stay as they are: work on a detached one")  # fmt: skip
        require(data.grad is None, "data, an argument that requires no grad, has a .grad after backward")

    def test_fn_runs_once_in_each_pass(self, rng):
        fn, x = Watched(deep), random(rng, 4, 4)
        y = self.run(fn, x)
        fn.assert_ran(1, "in the forward pass")
        y.sum().backward()
        fn.assert_ran(2, "in both passes together")

    @pytest.mark.parametrize("n_arguments", [1, 3])
    def test_keeps_its_arguments_only(self, rng, n_arguments):
        args = [random(rng, 64, 256) for _ in range(n_arguments)]
        kept = kept_by_forward(self.run, lambda *args: deep(sum(torch.sin(arg) for arg in args)), *args)
        size = 64 * 256 * 4
        why = (
            f"fn on its own keeps {8 + n_arguments} tensors of {size:,} bytes; here nothing but the arguments may stay"
        )
        if kept <= (n_arguments + 1) * size:
            why = "a copy of an argument costs as much as an activation: keep the tensors themselves"
        assert_at_most("what the forward pass keeps, besides arguments and result,", kept, ROOM_FOR_STATE, hint=why)

    def test_recomputed_activations_are_given_back(self, rng):
        x, size = random(rng, 64, 256), 64 * 256 * 4
        with AllocationMeter() as meter:
            y = x
            for _ in range(6):
                y = self.run(deep, y)
            y.sum().backward()
        hint = (
            "six functions of 8 steps: the 6 results between them and the 8 activations of one function at a time\n"
            "Usual cause: something holds on to what was recomputed (plain autograd keeps all 48)"
        )
        peak = math.ceil(meter.peak_bytes / size)
        assert_at_most("the peak of both passes", peak, 6 + 8 + 4, unit="activations", hint=hint)

    def test_no_arithmetic_for_gradients_nobody_needs(self, rng):
        x, frozen = random(rng, 32, 32), random(rng, 32, 32, grad=False)
        with ProductMeter() as meter:
            self.run(torch.matmul, x, frozen).sum().backward()
        require(meter.flops, "no matrix product was seen, though fn is one")
        assert_at_most("the arithmetic of both passes of x @ frozen", meter.flops // (2 * 32**3), 3, unit="products",
                       hint="two forward, one for the gradient of x: the gradient of `frozen`, which nobody needs, is "
                       "computed as well")  # fmt: skip

    def test_dropout_draws_the_same_mask_again(self, rng):
        x = torch.from_numpy(rng.uniform(1, 2, (40, 50))).float().requires_grad_()
        torch.rand(2)  # others have drawn before
        y = self.run(lambda x: F.dropout(F.dropout(x, 0.5), 0.3), x)
        torch.rand(3)  # others draw as well before backward comes
        start = torch.get_rng_state()
        y.sum().backward()
        torch.set_rng_state(start)
        anew = F.dropout(F.dropout(torch.ones_like(x), 0.5), 0.3)
        want = numbers(y) / numbers(x)
        hint = "the state of the generator is to be taken before fn runs, and set before it runs again"
        assert_close("the gradient of two dropouts, which is their mask,", x.grad, want, plain=want,
                     suspects={"backward draws a new mask": numbers(anew)}, hint=hint)  # fmt: skip

    def test_generator_goes_on_as_if_nothing_was_recomputed(self, rng):
        x = random(rng, 8, 8)
        start = torch.get_rng_state()
        F.dropout(x, 0.5)
        after_plain = torch.get_rng_state()
        torch.set_rng_state(start)
        first = self.run(lambda x: F.dropout(x, 0.5), x)
        require(
            torch.equal(torch.get_rng_state(), after_plain),
            "after the forward pass the random generator is not where one run of fn leaves it\n"
            "Usual cause: the state was put back, or set, in the forward pass",
        )
        second = self.run(lambda x: F.dropout(x, 0.5), x)
        require(not torch.equal(first, second), "two calls draw the same dropout mask: a fixed seed was set")
        torch.rand(3)
        before = torch.get_rng_state()
        (first.sum() + second.sum()).backward()
        require(
            torch.equal(torch.get_rng_state(), before),
            "backward leaves the random generator changed: what draws next repeats, or skips, numbers\n"
            "Usual cause: the state set for the second run is not put back",
        )

    def test_several_in_one_graph(self, rng):
        x, factors = random(rng, 6), [random(rng, 6, grad=False)]
        first, second = self.run(torch.sin, x), self.run(torch.exp, x)
        weighted(first * second, factors).backward()
        hint = "what one call keeps is overwritten by the next: it belongs into ctx"
        assert_gradients(lambda x: torch.sin(x) * torch.exp(x), [x], factors, ["x"], hint=hint)

    def test_argument_handed_through(self, rng):
        x, y = random(rng, 4), random(rng, 4)
        factors = [random(rng, 4, grad=False), random(rng, 4, grad=False)]

        def two(x, y):
            return x, x * y

        weighted(self.run(two, x, y), factors).backward()
        hint = (
            "a result may be an argument as it came: without a grad_fn in the second run, it requires grad all the same"
        )
        assert_gradients(two, [x, y], factors, ["x", "y"], hint=hint)

    def test_nested(self, rng):
        x, factors = random(rng, 6), [random(rng, 6, grad=False)]

        def masked(x):
            return F.dropout(torch.sin(x), 0.5)

        def inner(x):
            return self.run(masked, self.run(torch.exp, x)) * x

        start = torch.get_rng_state()
        y = self.run(inner, x)
        torch.set_rng_state(start)
        mask = F.dropout(torch.ones(6), 0.5)
        weighted(y, factors).backward()
        hint = "a checkpointed function calls checkpointed ones: nothing may be kept outside of ctx"
        assert_gradients(lambda x: torch.sin(torch.exp(x)) * mask.to(x) * x, [x], factors, ["x"], hint=hint)

    def test_backward_twice(self, rng):
        x, factors = random(rng, 5), [random(rng, 5, grad=False)]
        y = self.run(deep, x)
        weighted(y, factors).backward(retain_graph=True)
        once = x.grad.clone()
        x.grad = None
        weighted(y, factors).backward()
        hint = "the second backward starts from the saved arguments again, detached afresh"
        suspects = {"the first backward's gradient is added to it": 2 * numbers(once)}
        name, want = "the gradient of x in a second backward", numbers(once)
        assert_close(name, x.grad, want, plain=want, suspects=suspects, hint=hint)

    def test_argument_changed_before_backward(self, rng):
        x, data = random(rng, 5), random(rng, 5, grad=False)
        y = self.run(lambda x, data: x * data, x, data)
        data += 1
        hint = "when an argument was changed in place before backward, which would give a wrong gradient"
        try:
            assert_raises(RuntimeError, lambda: y.sum().backward(), when=hint)
        except AssertionError as error:
            raise AssertionError(f"{error}\nUsual cause: tensors kept as attributes of ctx. ctx.save_for_backward "
                                 "notices such changes") from None  # fmt: skip

    def test_no_grad(self, rng):
        fn, x = Watched(deep), random(rng, 64, 256)
        with torch.no_grad():
            kept = kept_by_forward(self.run, fn, x)
            y = self.run(fn, x)
        require(not y.requires_grad, "under torch.no_grad() the result requires grad")
        fn.assert_ran(2, "in two calls under torch.no_grad()")
        assert_at_most("what a call under torch.no_grad() keeps", kept, 0, hint="there will be no backward pass")

    @pytest.mark.gpu
    def test_dropout_on_cuda(self, rng):
        x = torch.from_numpy(rng.uniform(1, 2, (40, 50))).float().cuda().requires_grad_()
        y = self.run(lambda x: F.dropout(x, 0.5), x)
        torch.rand(3, device="cuda")
        before = torch.cuda.get_rng_state()
        y.sum().backward()
        want = numbers(y) / numbers(x)
        hint = "a GPU has a random generator of its own: torch.cuda.get_rng_state"
        assert_close("the gradient of dropout on CUDA, which is its mask,", x.grad, want, plain=want, hint=hint)
        require(torch.equal(torch.cuda.get_rng_state(), before), "backward leaves the GPU's generator changed")


class TestCheckpointFunction(Recomputation):
    """The autograd Function."""

    def run(self, fn, *args):
        result = Checkpoint.apply(fn, *args)
        return result

    def test_is_a_function_of_its_own(self, rng):
        y = Checkpoint.apply(torch.sin, random(rng, 3))
        node = type(y.grad_fn).__name__
        require(node == "CheckpointBackward", f"the result's grad_fn is {node}, expected CheckpointBackward: the "
                "gradient is to come from Checkpoint's own backward")  # fmt: skip
        theirs = torch.utils.checkpoint.CheckpointFunction
        require(not issubclass(Checkpoint, theirs), "Checkpoint is PyTorch's own: write the two passes yourself")

    def test_saves_the_arguments_themselves(self, rng):
        x, data, rows = random(rng, 6, 3), random(rng, 3, grad=False), torch.tensor([2, 0])
        y = Checkpoint.apply(lambda x, n, rows, data: torch.sin(x)[rows] * data * n, x, 2, rows, data)
        saved = y.grad_fn.saved_tensors
        theirs = {tensor.data_ptr() for tensor in (x, rows, data)}
        require({tensor.data_ptr() for tensor in saved} == theirs, f"ctx.save_for_backward was given {len(saved)} "
                "tensors that are not the 3 tensor arguments\nExpected: the arguments themselves, and neither copies "
                "nor results")  # fmt: skip

    def test_no_argument_requires_grad(self, rng):
        fn, x = Watched(lambda x, n: torch.sin(x) * n), random(rng, 4, grad=False)
        y = Checkpoint.apply(fn, x, 3)
        fn.assert_ran(1, "in the forward pass")
        want = numbers(torch.sin(x) * 3)
        assert_close("the result for arguments that require no grad", y, want, plain=want)


class TestCheckpoint(Recomputation):
    """The function around it."""

    def run(self, fn, *args):
        return checkpoint(fn, *args)

    @pytest.mark.parametrize("given", ["data", "nothing", "a number"])
    def test_parameters_when_no_argument_requires_grad(self, rng, given):
        weight, factors = random(rng, 4, 3), [random(rng, 6, 3, grad=False)]
        data = random(rng, 6, 4, grad=False)
        fn = Watched(lambda *args: torch.tanh(data @ weight * (args[0] if given == "a number" else 1)))
        args = {"data": [data], "nothing": [], "a number": [0.5]}[given]
        y = checkpoint(fn, *args)
        factor = 0.5 if given == "a number" else 1
        hint = "no argument requires grad, so autograd never calls backward: hand it one that does"
        require(
            y.requires_grad, "the result does not require grad though a parameter inside fn does\nUsual cause: " + hint
        )
        weighted(y, factors).backward()
        assert_gradients(lambda data, weight: torch.tanh(data @ weight * factor), [data, weight], factors,
                         ["data", "the weight inside fn"], hint=hint)  # fmt: skip
        fn.assert_ran(2, "in both passes together")
        require(data.grad is None and not data.requires_grad, "data, which requires no grad, was made to require it")

    def test_keeps_nothing_when_no_argument_requires_grad(self, rng):
        data, weight = random(rng, 64, 256, grad=False), random(rng, 256)
        kept = kept_by_forward(checkpoint, lambda data: deep(data * weight), data)
        hint = "is something added to an argument, so that it requires grad? The sum is a new tensor, and is kept"
        assert_at_most("what the forward pass keeps for a parameter inside fn", kept, ROOM_FOR_STATE, hint=hint)

    def test_nothing_requires_grad(self, rng):
        data, weight = random(rng, 5, grad=False), random(rng, 5)
        y = checkpoint(lambda x, n: (torch.sin(x) * n, x > 0), data, 2)
        assert_tuple("the result", y, ("sine", "positive"))
        (y[0] * weight).sum().backward()
        want = numbers(torch.sin(data) * 2)
        assert_close("the gradient of a weight behind a function without any", weight.grad, want, plain=want,
                     hint="backward may find no result that requires grad, and has nothing to do then")  # fmt: skip

    def test_several_results_when_no_argument_requires_grad(self, rng):
        data, weight = random(rng, 5, grad=False), random(rng, 5)
        factors = [random(rng, 5, grad=False), random(rng, 5, grad=False)]

        def two(data, weight):
            return data * weight, torch.sin(weight) + data

        results = assert_tuple("the result", checkpoint(lambda data: two(data, weight), data), ("product", "sum"))
        weighted(results, factors).backward()
        suspects = {
            "only the first result's gradient is used": gradients(two, [data, weight], [factors[0], torch.zeros(5)])
        }
        assert_gradients(two, [data, weight], factors, ["data", "the weight inside fn"], suspects)

    def test_is_not_borrowed(self, rng, monkeypatch):
        x = random(rng, 3)

        def theirs(*_args, **_kwargs):
            raise AssertionError("torch.utils.checkpoint was called: write checkpoint with your own Function")

        for name, thing in list(vars(torch.utils.checkpoint).items()):
            if isinstance(thing, types.FunctionType) and "checkpoint" in name:
                monkeypatch.setattr(torch.utils.checkpoint, name, theirs)
        monkeypatch.setattr(torch.utils.checkpoint, "CheckpointFunction", types.SimpleNamespace(apply=theirs))
        checkpoint(torch.sin, x).sum().backward()
        want = numbers(torch.cos(x))
        assert_close("the gradient of sin", x.grad, want, plain=want)


# A chain of functions


class Chain:
    """Functions that note, in a common list, who ran; each saves one activation of its input's size."""

    def __init__(self, rng, n, width=6):
        self.ran = []
        self.shifts = [random(rng, width) for _ in range(n)]
        self.factors = [random(rng, 5, width, grad=False)]

    @property
    def functions(self):
        return [self._step(i, shift) for i, shift in enumerate(self.shifts)]

    def _step(self, i, shift):
        def step(x):
            self.ran.append(i)
            return torch.tanh(x + shift) if x.shape[-1] == shift.shape[-1] else torch.tanh(x)

        return step

    @staticmethod
    def plain(x, *shifts):
        for shift in shifts:
            x = torch.tanh(x + shift)
        return x

    def recomputed(self):
        """The runs of neighbouring functions that ran after the first n, sorted."""
        runs = []
        for i in self.ran[len(self.shifts) :]:
            if runs and runs[-1][-1] == i - 1:
                runs[-1].append(i)
            else:
                runs.append([i])
        return sorted(runs)


SPLITS = [(10, 4), (9, 4), (7, 3), (5, 5), (6, 1), (1, 1), (16, 4), (11, 6)]


class TestCheckpointSequential:
    """A chain, cut into segments."""

    @pytest.mark.parametrize(("n", "segments"), SPLITS)
    def test_result_and_gradients(self, rng, n, segments):
        chain, x = Chain(rng, n), random(rng, 5, 6)
        y = checkpoint_sequential(chain.functions, segments, x)
        exact, plain = (numbers(chain.plain(*copies([x, *chain.shifts], t))) for t in (torch.float64, torch.float32))
        suspects = {}
        for left_out in range(1, n):
            suspects[f"the last {left_out} of the functions are left out"] = lambda m=left_out: numbers(
                chain.plain(x, *chain.shifts[:-m])
            )
        suspects["the functions are applied in the opposite order"] = lambda: numbers(
            chain.plain(x, *chain.shifts[::-1])
        )
        for k in {segments, -(-n // segments)}:
            order = [shift for start in range(k) for shift in chain.shifts[start::k]]
            suspects[f"a segment takes every function of {k}, not neighbours"] = lambda order=order: numbers(
                chain.plain(x, *order)
            )
        assert_close(f"the result of {n} functions in {segments} segments", y, exact, plain=plain,
                     dtype=torch.float32, suspects=suspects)  # fmt: skip
        weighted(y, chain.factors).backward()
        names = ["x", *(f"the parameter of function {i} (of 0 … {n - 1})" for i in range(n))]
        hint = "each segment's functions are fixed when it is checkpointed. A lambda made in a loop sees the last ones"
        lost = "what one segment hands to the next was detached"
        assert_gradients(chain.plain, [x, *chain.shifts], chain.factors, names, hint=hint, lost=lost)

    @pytest.mark.parametrize(("n", "segments"), SPLITS)
    def test_every_function_runs_once_more(self, rng, n, segments):
        chain, x = Chain(rng, n), random(rng, 5, 6)
        y = checkpoint_sequential(chain.functions, segments, x)
        assert_equal("the order in which the functions run in the forward pass", chain.ran, list(range(n)))
        y.sum().backward()
        extra = sorted(chain.ran[n:])
        missing = [i for i in range(n) if i not in extra]
        hint = ""
        if missing:
            hint = f"functions {_span(missing)} are not recomputed: their segment is not checkpointed"
        elif len(extra) > n:
            hint = "a function runs more than once more: is a segment checkpointed within a checkpointed one?"
        assert_equal(f"the functions that run again in the backward pass ({n} in {segments} segments)", extra,
                     list(range(n)), hint=hint)  # fmt: skip

    @pytest.mark.parametrize(("n", "segments"), SPLITS)
    def test_segments_are_contiguous_and_equal(self, rng, n, segments):
        chain, x = Chain(rng, n), random(rng, 5, 6)
        checkpoint_sequential(chain.functions, segments, x).sum().backward()
        lengths = [len(run) for run in chain.recomputed()]
        require(
            len(lengths) == segments,
            f"{n} functions in {segments} segments: the backward pass recomputes neighbours in runs of the lengths "
            f"{lengths}\nUsual cause: {_why_other_number(n, segments, lengths)}",
        )
        require(
            max(lengths) - min(lengths) <= 1,
            f"{n} functions in {segments} segments: the lengths are {lengths}, which differ by more than 1\n"
            "Usual cause: what the division leaves over all goes to one segment",
        )

    def test_first_parameters_when_x_is_data(self, rng):
        chain, x = Chain(rng, 6), random(rng, 5, 6, grad=False)
        y = checkpoint_sequential(chain.functions, 3, x)
        require(y.requires_grad, "with x that requires no grad the result requires none, though the parameters do\n"
                "Usual cause: Checkpoint.apply asks its arguments only: checkpoint handles that")  # fmt: skip
        weighted(y, chain.factors).backward()
        names = ["x", *(f"the parameter of function {i} (of 0 … 5)" for i in range(6))]
        hint = "x requires no grad, so the first segment's backward is never called: checkpoint handles that"
        assert_gradients(chain.plain, [x, *chain.shifts], chain.factors, names, hint=hint)

    def test_dropout(self, rng):
        x = torch.from_numpy(rng.uniform(1, 2, (30, 20))).float().requires_grad_()
        y = checkpoint_sequential([lambda x: F.dropout(x, 0.2)] * 5, 2, x)
        before = torch.get_rng_state()
        y.sum().backward()
        want = numbers(y) / numbers(x)
        assert_close("the gradient of five dropouts, which is their mask,", x.grad, want, plain=want,
                     hint="every segment draws its own masks again: keep the generator's state with each")  # fmt: skip
        require(torch.equal(torch.get_rng_state(), before), "backward leaves the random generator changed")

    def test_a_module_is_a_sequence_too(self, rng):
        layers = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))
        x, factors = random(rng, 5, 6), [random(rng, 5, 3, grad=False)]
        weighted(checkpoint_sequential(layers, 2, x), factors).backward()

        def plain(x, w0, b0, w1, b1):
            return F.linear(torch.tanh(F.linear(x, w0, b0)), w1, b1)

        assert_gradients(plain, [x, *layers.parameters()], factors, ["x", "weight 0", "bias 0", "weight 2", "bias 2"])

    @pytest.mark.parametrize(("n", "segments"), [(16, 4), (24, 3), (12, 6), (16, 16)])
    def test_peak_is_the_model_s(self, rng, n, segments):
        chain, x = Chain(rng, n, width=1), random(rng, 64, 256)
        size = 64 * 256 * 4
        with AllocationMeter() as meter:
            checkpoint_sequential(chain.functions, segments, x).sum().backward()
        model = segments + -(-n // segments)
        hint = f"{segments} kept and ⌈{n} / {segments}⌉ recomputed, and room for gradients; without checkpoints {n}"
        assert_at_most(f"the peak of {n} functions in {segments} segments", math.ceil(meter.peak_bytes / size),
                       model + 3, unit="activations", hint=hint)  # fmt: skip

    def test_between_the_passes_only_segments_inputs(self, rng):
        chain, x = Chain(rng, 12, width=1), random(rng, 64, 256)
        kept = kept_by_forward(checkpoint_sequential, chain.functions, 4, x)
        size = 64 * 256 * 4
        hint = "x is the caller's, so three inputs of segments remain; plain autograd keeps twelve activations"
        assert_at_most("what 12 functions in 4 segments keep between the passes", kept, 3 * size + 4 * ROOM_FOR_STATE,
                       hint=hint)  # fmt: skip

    @pytest.mark.parametrize(("n", "segments"), [(4, 0), (4, 5), (4, -1)])
    def test_impossible_segments(self, rng, n, segments):
        x = random(rng, 5, 6)
        chain = Chain(rng, n)

        def call():
            return tuple(checkpoint_sequential(chain.functions, segments, x).shape)

        when = f"for {segments} segments of {n} functions"
        assert_raises(ValueError, call, when=when, mentions=(str(n), str(segments)))


def _span(missing):
    return f"{missing[0]} … {missing[-1]}" if len(missing) > 1 else str(missing[0])


def _why_other_number(n, segments, lengths):
    if not lengths:
        return "nothing is checkpointed"
    if len(lengths) == 1:
        return "all functions are in one segment"
    if len(lengths) == n:
        return "every function is a segment of its own"
    if len(lengths) == segments - 1 and sum(lengths) < n:
        return "the last segment is not checkpointed"
    if len(lengths) < segments:
        return "the number given is not used, or steps of ⌈n / segments⌉ reach the end too early"
    return "what the division leaves over is a segment of its own"


# The plan and the model


def root_above(n):
    """⌈√n⌉, by counting."""
    return next(k for k in itertools.count(1) if k * k >= n)


class TestPlanSegments:
    """⌈√n⌉."""

    @pytest.mark.parametrize("layers", [23, 17, 16, 100, 1, 2, 3, 4, 5, 12, 24, 37, 96, 101, 1000, 9999, 10_001])
    def test_root_rounded_up(self, layers):
        suspects = {
            "√layers is rounded to the nearest": round(math.sqrt(layers)),
            "√layers is rounded down": math.isqrt(layers),
            "⌊√layers⌋ + 1 is taken, also for squares": math.isqrt(layers) + 1,
            "the logarithm is taken": math.ceil(math.log2(layers)),
            "half of the layers are taken": layers // 2,
            "the number of segments is that of the layers": layers,
        }
        assert_equal(f"plan_segments({layers})", plan_segments(layers), root_above(layers), suspects=suspects)

    def test_every_small_chain(self):
        for layers in range(1, 400):
            assert_equal(f"plan_segments({layers})", plan_segments(layers), root_above(layers))

    @pytest.mark.parametrize("layers", [5, 49])
    def test_is_a_whole_number(self, layers):
        got = plan_segments(layers)
        assert_type(f"plan_segments({layers})", got, int, "an int, to be used as a count")

    @pytest.mark.parametrize("layers", [0, -4])
    def test_no_layers(self, layers):
        assert_raises(ValueError, lambda: plan_segments(layers), when=f"for {layers} layers", mentions=("layers",))


class TestCheckpointCost:
    """The model of memory and work."""

    @pytest.mark.parametrize(
        ("layers", "segments"),
        [(96, 8), (100, 7), (100, 10), (16, 4), (17, 4), (12, 1), (12, 12), (1, 1), (50, 8), (9, 7)],
    )
    def test_peak_and_work(self, layers, segments):
        got = assert_tuple(
            "checkpoint_cost's result", checkpoint_cost(layers, segments), ("peak_activations", "extra_forwards")
        )
        longest, shortest = -(-layers // segments), layers // segments
        peaks = {
            "layers / segments is rounded down": segments + shortest,
            "the longest segment is left out": segments,
            "what the segments keep is left out": longest,
            "the last segment's input is not counted": segments - 1 + longest,
            "the two are multiplied": segments * longest,
            "the best number of segments is used in place of the one given": root_above(layers)
            + -(-layers // root_above(layers)),
        }
        extras = {
            "the last segment is taken as not recomputed": layers - longest,
            "the last segment, a short one, is taken as not recomputed": layers - shortest,
            "only one segment is taken as recomputed": longest,
            "the plain step's own forward is counted as extra": 2 * layers,
            "the segments are counted, not the layers in them": segments,
            "a layer is taken as recomputed once for each segment": layers * segments,
            "all but the first of each segment are taken as recomputed": layers - segments,
        }
        call = f"checkpoint_cost({layers}, {segments})"
        if got == (layers, segments + longest) and layers != segments + longest:
            raise AssertionError(f"{call} gives the two numbers in the opposite order: peak_activations comes first")
        assert_equal(f"peak_activations of {call}", got[0], segments + longest, suspects=peaks)
        assert_equal(f"extra_forwards of {call}", got[1], layers, suspects=extras)

    def test_every_small_chain(self):
        for layers in range(1, 40):
            for segments in range(1, layers + 1):
                want = (segments + -(-layers // segments), layers)
                got = checkpoint_cost(layers, segments)
                assert_tuple("checkpoint_cost's result", got, ("peak_activations", "extra_forwards"))
                assert_equal(f"checkpoint_cost({layers}, {segments})", got, want)

    def test_are_whole_numbers(self):
        got = assert_tuple("checkpoint_cost's result", checkpoint_cost(20, 5), ("peak_activations", "extra_forwards"))
        for name, value in zip(("peak_activations", "extra_forwards"), got, strict=True):
            assert_type(name, value, int, "an int: activations and layers are counted")

    @pytest.mark.parametrize(("layers", "segments"), [(0, 0), (0, 1), (-3, 1), (5, 0), (5, 6), (5, -1)])
    def test_impossible(self, layers, segments):
        named = "layers" if layers < 1 else "segments"
        assert_raises(ValueError, lambda: checkpoint_cost(layers, segments),
                      when=f"for {segments} segments of {layers} layers", mentions=(named,))  # fmt: skip
