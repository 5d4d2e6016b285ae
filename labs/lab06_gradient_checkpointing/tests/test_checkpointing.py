"""Lab 06's suite: gradients of recomputed functions, what is kept between the passes, and how often what runs."""

import contextlib
import itertools
import math
import types
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from checkpointing import Checkpoint, checkpoint, checkpoint_cost, checkpoint_sequential, plan_segments

from labkit.meters.products import ProductMeter
from labkit.meters.saved import kept_by_forward
from labkit.meters.tensors import AllocationMeter
from labkit.testing.compare import (
    assert_at_most,
    assert_close,
    assert_equal,
    assert_raises,
    assert_tuple,
    assert_type,
    assert_unchanged,
    require,
)
from labkit.testing.programs import program, programs_here

# Programs


@program
def deep(x):
    """Eight steps, each of which saves a tensor of x's size when autograd looks on."""
    for _ in range(8):
        x = torch.tanh(x)
    return x


@program
def mixed(a, power, b, names, frozen, rows, flag):
    """Tensors of all kinds between other arguments; two results of different shapes, and one of integers."""
    if not isinstance(names, tuple) or flag is not None:
        raise TypeError("fn was not given its arguments in their order")
    product = a**power @ b
    return product * frozen, torch.sin(a[rows]).sum(-1) * b.sum(), product.argmax(-1)


@program
def eight_steps(run, x):
    """One function."""
    return run(deep, x)


@program
def all_kinds(run, *args):
    """One function with arguments and results of all kinds."""
    return run(mixed, *args)


@program
def two_results(run, a, b):
    """A tuple of two."""
    return run(lambda a, b: (a * b, torch.sin(a) + b**2), a, b)


@program
def in_the_middle(run, x, other):
    """An argument that comes out of a graph, and goes on beside."""
    hidden = torch.exp(x)
    return run(lambda h, o: torch.sin(h) * o, hidden, other * 2) + hidden


@program
def given_twice(run, x):
    """One tensor in two places."""
    return run(lambda a, b: a * torch.sin(b), x, x)


@program
def parameters_inside(run, x, weight, bias, scale):
    """A function that closes over tensors."""
    return run(lambda x: torch.tanh(F.linear(x, weight, bias)) * scale, x)


@program
def sine_times_data(run, x, data):
    """Two arguments."""
    return run(lambda x, data: torch.sin(x) * data, x, data)


@program
def times_data(run, x, data):
    """Two arguments, both needed in the backward pass."""
    return run(lambda x, data: x * data, x, data)


@program
def times_changed_data(run, x, data):
    """`times_data`, whose second argument is changed in place afterwards."""
    y = times_data(run, x, data)
    data += 1
    return y


@program
def deep_sum(run, *args):
    """Many activations of any number of arguments."""
    return run(lambda *args: deep(sum(torch.sin(arg) for arg in args)), *args)


@program
def six_deep(run, x):
    """Six functions in a row."""
    for _ in range(6):
        x = run(deep, x)
    return x


@program
def product(run, x, other):
    """One matrix product."""
    return run(torch.matmul, x, other)


@program
def dropouts(run, x):
    """Two dropouts in one function, while others draw before and after."""
    torch.rand(2)
    y = run(lambda x: F.dropout(F.dropout(x, 0.5), 0.3), x)
    torch.rand(3)
    return y


@program
def dropout(run, x):
    """One dropout."""
    return run(lambda x: F.dropout(x, 0.5), x)


@program
def dropout_again(run, x):
    """The same function twice, and then others draw."""
    results = dropout(run, x), dropout(run, x)
    torch.rand(3, device=x.device)
    return results


@program
def sine_and_exponential(run, x):
    """Two functions of the same argument."""
    return run(torch.sin, x) * run(torch.exp, x)


@program
def handed_through(run, x, y):
    """A result that is an argument."""
    return run(lambda x, y: (x, x * y), x, y)


@program
def nested(run, x):
    """A function that runs others."""
    return run(lambda x: run(lambda x: F.dropout(torch.sin(x), 0.5), run(torch.exp, x)) * x, x)


@program
def some_rows(run, x, n, rows, data):
    """Tensors, and a number between them."""
    return run(lambda x, n, rows, data: torch.sin(x)[rows] * data * n, x, n, rows, data)


@program
def sine_times(run, x, n):
    """A tensor and a number."""
    return run(lambda x, n: torch.sin(x) * n, x, n)


@program
def weight_inside(run, data, weight, given):
    """A function that closes over what it needs, and is given data, nothing, or a number."""

    def fn(*args):
        return torch.tanh(data @ weight * (args[0] if given == "a number" else 1))

    return run(fn, *{"data": [data], "nothing": [], "a number": [0.5]}[given])


@program
def weight_in_deep(run, data, weight):
    """Many activations, for a tensor that the function closes over."""
    return run(lambda data: deep(data * weight), data)


@program
def sine_and_sign(run, x, n):
    """A result of numbers, and one of truth values."""
    return run(lambda x, n: (torch.sin(x) * n, x > 0), x, n)


@program
def two_with_weight(run, data, weight):
    """A tuple of two, for a tensor that the function closes over."""
    return run(lambda data: (data * weight, torch.sin(weight) + data), data)


@program
def sine(run, x):
    """One function of torch's."""
    return run(torch.sin, x)


# Steps


@program
def passes(task, program, args, factors=None, seed=0, n_backward=1, measured=False):
    """A program's results, and its gradients for the sum of the results, each times its factor where there are any.

    Told is also how often the functions ran, where the random generators stood, and, when measured, the peak memory and
    the arithmetic of all passes; the results are then let go before the backward pass, and not told.
    """
    run, ran = _counted(task)
    told = _passes(lambda: globals()[program](run, *args), args, factors, ran, seed, n_backward, measured)
    return told | {"calls": told["n_forward"], "all_calls": len(ran)}


@program
def sequence_passes(kind, parameters, segments, x, factors=None, seed=0, measured=False):
    """As `passes`, for `checkpoint_sequential`; moreover the functions' numbers in the order in which they ran."""
    ran = []
    functions, leaves = _sequence(kind, parameters, ran)
    forward = lambda: checkpoint_sequential(functions, segments, x)  # noqa: E731
    return _passes(forward, [x, *leaves], factors, ran, seed, 1, measured) | {"ran": ran}


@program
def kept(task, program, args):
    """The bytes besides arguments and results that a program's forward pass keeps, and how often the functions ran."""
    run, ran = _counted(task)
    return kept_by_forward(globals()[program], run, *args), len(ran)


@program
def kept_by_sequence(kind, parameters, segments, x):
    """As `kept`, for `checkpoint_sequential`."""
    functions, _ = _sequence(kind, parameters, [])
    return kept_by_forward(checkpoint_sequential, functions, segments, x)


@program
def node(program, args):
    """The name of the result's node, whether Checkpoint is of torch's own kind, and which arguments the node saved."""
    y = globals()[program](Checkpoint.apply, *args)
    places = {arg.data_ptr(): i for i, arg in enumerate(args) if isinstance(arg, torch.Tensor)}
    saved = getattr(y.grad_fn, "saved_tensors", ())
    theirs = isinstance(Checkpoint, type) and issubclass(Checkpoint, torch.utils.checkpoint.CheckpointFunction)
    return type(y.grad_fn).__name__, theirs, [places.get(tensor.data_ptr()) for tensor in saved]


@program
def borrowed(task, program, args):
    """`passes`, and the names of what it called of torch.utils.checkpoint."""
    theirs, called = torch.utils.checkpoint, []
    before = {
        name: thing
        for name, thing in vars(theirs).items()
        if isinstance(thing, types.FunctionType) and "checkpoint" in name
    }
    function = theirs.CheckpointFunction
    try:
        for name, thing in before.items():
            setattr(theirs, name, _noting(called, name, thing))
        apply = _noting(called, "CheckpointFunction", function.apply)
        theirs.CheckpointFunction = types.SimpleNamespace(apply=apply)
        return passes(task, program, args), called
    finally:
        for name, thing in before.items():
            setattr(theirs, name, thing)
        theirs.CheckpointFunction = function


@program
def _noting(called, name, function):
    def noting(*args, **kwargs):
        called.append(name)
        return function(*args, **kwargs)

    return noting


@program
def _counted(task):
    """The answer's way to run a function, and a list that grows with each of the functions' calls."""
    ran, run = [], Checkpoint.apply if task == "Checkpoint" else checkpoint
    return lambda fn, *args: run(_noting(ran, task, fn), *args), ran


@program
def _sequence(kind, parameters, ran):
    """The functions, which note their numbers in `ran`, and the leaves they use."""
    if kind == "dropout":
        return [lambda x: F.dropout(x, parameters[0])] * len(parameters), []
    if kind == "module":
        layers = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))
        with torch.no_grad():
            for own, given in zip(layers.parameters(), parameters, strict=True):
                own.copy_(given)
        return layers, list(layers.parameters())
    return [_shifted(i, shift, ran) for i, shift in enumerate(parameters)], list(parameters)


@program
def _shifted(i, shift, ran):
    def step(x):
        ran.append(i)
        return torch.tanh(x + shift) if x.shape[-1] == shift.shape[-1] else torch.tanh(x)

    return step


@program
def _passes(forward, args, factors, ran, seed, n_backward, measured):
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    gpus = sorted({x.device.index for x in tensors if x.is_cuda})
    told = {"gradients": []}
    with torch.random.fork_rng(devices=gpus), contextlib.ExitStack() as stack:
        torch.manual_seed(seed)
        if measured:
            products, memory = stack.enter_context(ProductMeter()), stack.enter_context(AllocationMeter())
        results = forward()
        told |= {"n_forward": len(ran), "before": [] if measured else _states(gpus), "results": _detached(results)}
        told["requires_grad"] = any(x.requires_grad for x in _every(results))
        loss = _loss(results, factors)
        if measured:
            results = told["results"] = None
        for i in range(n_backward if isinstance(loss, torch.Tensor) and loss.requires_grad else 0):
            for x in tensors:
                x.grad = None
            loss.backward(retain_graph=i + 1 < n_backward)
            told["gradients"].append([x.grad if isinstance(x, torch.Tensor) else None for x in args])
        told |= {"after": [] if measured else _states(gpus), "needs": [x.requires_grad for x in tensors]}
    if measured:
        told |= {"peak_bytes": memory.peak_bytes, "flops": products.flops}
    return told | {"of_factors": [None if x is None else x.grad for x in factors or []]}


@program
def _every(results):
    every = results if isinstance(results, tuple) else (results,)
    return [x for x in every if isinstance(x, torch.Tensor)]


@program
def _loss(results, factors):
    """The sum of the floating-point results, each times its factor; those whose factor is None are left out."""
    results = [x for x in _every(results) if x.is_floating_point()]
    if factors is None:
        return sum(x.sum() for x in results)
    return sum((x * factor).sum() for x, factor in zip(results, factors, strict=False) if factor is not None)


@program
def _detached(results):
    if isinstance(results, tuple):
        return tuple(_detached(x) for x in results)
    return results.detach() if isinstance(results, torch.Tensor) else results


@program
def _states(gpus):
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(gpu) for gpu in gpus)]


ROOM_FOR_STATE = 16 * 1024
"""Bytes: the CPU generator's state is 5,056."""

CUT = "the way back was cut by a detach, or by no_grad, before the arguments reach Checkpoint.apply"


@pytest.fixture(autouse=True)
def generator():
    """Whatever a test does to torch's own generator is undone."""
    with torch.random.fork_rng(devices=[]):
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


PROGRAMS = programs_here(__file__)


def plainly(program):
    """The program without checkpoints, as a function of its arguments."""
    return lambda *args: getattr(PROGRAMS, program)(lambda fn, *rest: fn(*rest), *args)


def draw_seed(rng):
    return int(rng.integers(2**31))


def gradients(fn, args, factors, dtype=torch.float64):
    """The gradients by plain autograd, in `dtype`; None where an argument has none."""
    leaves = copies(args, dtype)
    weighted(fn(*leaves), factors).backward()
    return [leaf.grad if isinstance(leaf, torch.Tensor) else None for leaf in leaves]


def assert_gradients(got, fn, args, factors, names, suspects=None, hint="", lost=""):
    """Compare the gradients of `args` with plain autograd's; `lost` says why there may be none at all."""
    exact, plain = gradients(fn, args, factors), gradients(fn, args, factors, torch.float32)
    for i, (name, arg) in enumerate(zip(names, args, strict=True)):
        if exact[i] is None:
            continue
        found = got[-1][i] if got else None
        require(found is not None, f"the gradient of {name} is None\nUsual cause: {lost or hint or CUT}")
        usual = {text: numbers(value[i]) for text, value in (suspects or {}).items() if value[i] is not None}
        usual |= {"the gradient arrives twice": 2 * numbers(exact[i]), "the gradient is lost": 0 * numbers(exact[i])}
        assert_close(f"the gradient of {name}", found, numbers(exact[i]), plain=numbers(plain[i]), dtype=arg.dtype,
                     suspects=usual, hint=hint)  # fmt: skip


def assert_ran(calls, times, when):
    """Fail unless the functions ran as often as that."""
    usual = "keep the arguments, not the results, and run fn once in each pass"
    if calls < times:
        usual = "the forward pass kept what backward needs, in place of having fn run again"
    assert_equal(f"the number of times fn has run {when}", calls, times, hint=usual)


def same_states(some, others):
    """Whether the random generators stood alike."""
    return all(torch.equal(one, other) for one, other in zip(some, others, strict=True))


def mixed_arguments(rng):
    """What `mixed` takes, the factors of its loss, and names."""
    a, b = random(rng, 5, 3), random(rng, 3, 4)
    frozen, rows = random(rng, 5, 4, grad=False), torch.tensor([4, 0, 0])
    factors = [random(rng, 5, 4, grad=False), random(rng, 3, grad=False)]
    return [a, 2, b, ("x", "y"), frozen, rows, None], factors, ["a", "power", "b", "names", "frozen", "rows", "flag"]


# What both the Function and the function around it must do


class Recomputation:
    """Tests of what runs a function and recomputes it, whichever of the two it is."""

    TASK = ""

    def passes(self, program, args, factors=None, **options):
        """What came out of a program run by the student's code."""
        return SimpleNamespace(**passes(self.TASK, program, args, factors, **options))

    def test_result_and_gradient(self, rng):
        x, factors = random(rng, 7, 5), [random(rng, 7, 5, grad=False)]
        deep = plainly("eight_steps")
        made = self.passes("eight_steps", [x], factors)
        assert_type("the result", made.results, torch.Tensor, "the tensor that fn returns")
        exact, plain = (numbers(deep(x.to(dtype))) for dtype in (torch.float64, torch.float32))
        assert_close("the result", made.results, exact, plain=plain, dtype=torch.float32)
        require(made.requires_grad, "the result does not require grad though the argument does")
        ones = gradients(deep, [x], [torch.ones(7, 5)])
        suspects = {"the gradient of the result is taken to be 1": ones}
        lost = "no graph in the second run (torch.enable_grad), its gradient not returned, or detached arguments"
        hint = "fn runs again on the arguments given, detached"
        assert_gradients(made.gradients, deep, [x], factors, ["x"], suspects, hint, lost)

    def test_arguments_and_results_of_all_kinds(self, rng):
        args, factors, names = mixed_arguments(rng)
        mixed = plainly("all_kinds")
        made = self.passes("all_kinds", args, factors)
        results = assert_tuple("the result", made.results, ("product", "sums", "positions"))
        for name, got, want in zip(("product", "sums"), results, mixed(*copies(args, torch.float64)), strict=False):
            plain = mixed(*args)[("product", "sums").index(name)]
            assert_close(name, got, numbers(want), plain=numbers(plain), dtype=torch.float32)
        require(torch.equal(results[2], mixed(*args)[2]), "the third result, of integers, is not what fn returns")
        none = [0 * factor for factor in factors]
        suspects = {
            "only the first result's gradient is used": gradients(mixed, args, [factors[0], none[1]]),
            "only the last result's gradient is used": gradients(mixed, args, [none[0], factors[1]]),
            "the gradients of the results are taken to be 1": gradients(mixed, args, [torch.ones(5, 4), torch.ones(3)]),
        }
        assert_gradients(made.gradients, mixed, args, factors, names, suspects, "one gradient for each argument, None "
                         "for what is no tensor, in the arguments' order")  # fmt: skip
        require(made.gradients[-1][4] is None, "an argument that needs no gradient was given one")

    def test_result_that_the_loss_leaves_out(self, rng):
        args, factor = [random(rng, 4), random(rng, 4)], random(rng, 4, grad=False)
        made = self.passes("two_results", args, [None, factor])
        assert_gradients(made.gradients, plainly("two_results"), args, [torch.zeros(4), factor], ["a", "b"],
                         hint="the gradient that backward is given for a result may be zeros, or None; the other "
                         "results count all the same")  # fmt: skip

    def test_argument_in_the_middle_of_a_graph(self, rng):
        args, factors = [random(rng, 6), random(rng, 6)], [random(rng, 6, grad=False)]
        try:
            made = self.passes("in_the_middle", args, factors)
        except RuntimeError as raised:
            if "second time" not in str(raised):
                raise
            raise AssertionError(
                "backward went on from the argument into the graph it came from, which is not its business\n"
                "Usual cause: fn runs again on arguments that are not detached"
            ) from None
        assert_gradients(made.gradients, plainly("in_the_middle"), args, factors, ["x", "other"], hint="fn runs again "
                         "on arguments that are not detached, so that gradients flow past them")  # fmt: skip

    def test_one_tensor_given_twice(self, rng):
        x, factors = random(rng, 5), [random(rng, 5, grad=False)]
        made = self.passes("given_twice", [x], factors)
        assert_gradients(made.gradients, plainly("given_twice"), [x], factors, ["x"], hint="each place of an argument "
                         "has a gradient of its own; autograd adds them")  # fmt: skip

    def test_parameters_inside(self, rng):
        given = [random(rng, 6, 4), random(rng, 3, 4), random(rng, 3), random(rng, 3)]
        factors = [random(rng, 6, 3, grad=False)]
        made = self.passes("parameters_inside", given, factors)
        names = ["x", "the weight inside fn", "the bias inside fn", "the tensor that fn closes over"]
        hint = (
            "torch.autograd.grad(results, args) finds the arguments' gradients only; torch.autograd.backward finds all"
        )
        assert_gradients(made.gradients, plainly("parameters_inside"), given, factors, names, hint=hint)

    def test_arguments_are_left_alone(self, rng):
        x, data = random(rng, 5), random(rng, 5, grad=False)
        before = [numbers(tensor).copy() for tensor in (x, data)]
        made = self.passes("sine_times_data", [x, data])
        given = zip(("x", "data"), (x, data), before, (True, False), made.needs, strict=True)
        for name, tensor, old, needs, needs_now in given:
            require(needs_now is needs, f"requires_grad of {name}, an argument, was changed to {not needs}\n"
                    "The caller's tensors stay as they are: work on a detached one")  # fmt: skip
            assert_unchanged(name, tensor, old)
        require(made.gradients, "the result does not require grad though the argument does")
        require(made.gradients[-1][1] is None, "data, an argument that requires no grad, has a .grad after backward")

    def test_fn_runs_once_in_each_pass(self, rng):
        made = self.passes("eight_steps", [random(rng, 4, 4)])
        assert_ran(made.calls, 1, "in the forward pass")
        assert_ran(made.all_calls, 2, "in both passes together")

    @pytest.mark.parametrize("n_arguments", [1, 3])
    def test_keeps_its_arguments_only(self, rng, n_arguments):
        kept_bytes, _ = kept(self.TASK, "deep_sum", [random(rng, 64, 256) for _ in range(n_arguments)])
        size = 64 * 256 * 4
        why = (
            f"fn on its own keeps {8 + n_arguments} tensors of {size:,} bytes; here nothing but the arguments may stay"
        )
        if kept_bytes <= (n_arguments + 1) * size:
            why = "a copy of an argument costs as much as an activation: keep the tensors themselves"
        name = "what the forward pass keeps, besides arguments and result,"
        assert_at_most(name, kept_bytes, ROOM_FOR_STATE, hint=why)

    def test_recomputed_activations_are_given_back(self, rng):
        x, size = random(rng, 64, 256), 64 * 256 * 4
        made = self.passes("six_deep", [x], measured=True)
        hint = (
            "six functions of 8 steps: the 6 results between them and the 8 activations of one function at a time\n"
            "Usual cause: something holds on to what was recomputed (plain autograd keeps all 48)"
        )
        peak = math.ceil(made.peak_bytes / size)
        assert_at_most("the peak of both passes", peak, 6 + 8 + 3, unit="activations", hint=hint)
        assert_gradients(made.gradients, plainly("six_deep"), [x], [torch.ones(64, 256)], ["x"])

    def test_no_arithmetic_for_gradients_nobody_needs(self, rng):
        args = [random(rng, 32, 32), random(rng, 32, 32, grad=False)]
        made = self.passes("product", args, measured=True)
        require(made.flops, "no matrix product was seen, though fn is one")
        assert_at_most("the arithmetic of both passes of x @ frozen", made.flops // (2 * 32**3), 3, unit="products",
                       hint="two forward, one for the gradient of x: the gradient of `frozen`, which nobody needs, is "
                       "computed as well")  # fmt: skip
        assert_gradients(made.gradients, plainly("product"), args, [torch.ones(32, 32)], ["x", "frozen"])

    def test_dropout_draws_the_same_mask_again(self, rng):
        x = torch.from_numpy(rng.uniform(1, 2, (40, 50))).float().requires_grad_()
        made = self.passes("dropouts", [x], seed=draw_seed(rng))
        torch.set_rng_state(made.before[0])
        anew = F.dropout(F.dropout(torch.ones_like(x), 0.5), 0.3)
        want = numbers(made.results) / numbers(x)
        require(made.gradients, f"the gradient of x is None\nUsual cause: {CUT}")
        hint = "the state of the generator is to be taken before fn runs, and set before it runs again"
        assert_close("the gradient of two dropouts, which is their mask,", made.gradients[-1][0], want, plain=want,
                     suspects={"backward draws a new mask": numbers(anew)}, hint=hint)  # fmt: skip

    def test_generator_goes_on_as_if_nothing_was_recomputed(self, rng):
        x, seed = random(rng, 8, 8), draw_seed(rng)
        torch.manual_seed(seed)
        F.dropout(x, 0.5)
        after_plain = torch.get_rng_state()
        made = self.passes("dropout", [x], seed=seed)
        require(
            torch.equal(made.before[0], after_plain),
            "after the forward pass the random generator is not where one run of fn leaves it\n"
            "Usual cause: the state was put back, or set, in the forward pass",
        )
        made = self.passes("dropout_again", [x], seed=seed)
        first, second = made.results
        require(not torch.equal(first, second), "two calls draw the same dropout mask: a fixed seed was set")
        require(
            same_states(made.before, made.after),
            "backward leaves the random generator changed: what draws next repeats, or skips, numbers\n"
            "Usual cause: the state set for the second run is not put back",
        )

    def test_several_in_one_graph(self, rng):
        x, factors = random(rng, 6), [random(rng, 6, grad=False)]
        made = self.passes("sine_and_exponential", [x], factors)
        hint = "what one call keeps is overwritten by the next: it belongs into ctx"
        assert_gradients(made.gradients, plainly("sine_and_exponential"), [x], factors, ["x"], hint=hint)

    def test_argument_handed_through(self, rng):
        args = [random(rng, 4), random(rng, 4)]
        factors = [random(rng, 4, grad=False), random(rng, 4, grad=False)]
        made = self.passes("handed_through", args, factors)
        hint = (
            "a result may be an argument as it came: without a grad_fn in the second run, it requires grad all the same"
        )
        assert_gradients(made.gradients, plainly("handed_through"), args, factors, ["x", "y"], hint=hint)

    def test_nested(self, rng):
        x, factors, seed = random(rng, 6), [random(rng, 6, grad=False)], draw_seed(rng)
        made = self.passes("nested", [x], factors, seed=seed)
        torch.manual_seed(seed)
        mask = F.dropout(torch.ones(6), 0.5)
        hint = "a checkpointed function calls checkpointed ones: nothing may be kept outside of ctx"
        masked = lambda x: torch.sin(torch.exp(x)) * mask.to(x) * x  # noqa: E731
        assert_gradients(made.gradients, masked, [x], factors, ["x"], hint=hint)

    def test_backward_twice(self, rng):
        x, factors = random(rng, 5), [random(rng, 5, grad=False)]
        made = self.passes("eight_steps", [x], factors, n_backward=2)
        for gradient in made.gradients or [[None]]:
            require(gradient[0] is not None, f"the gradient of x is None\nUsual cause: {CUT}")
        want, again = (numbers(gradient[0]) for gradient in made.gradients)
        hint = "the second backward starts from the saved arguments again, detached afresh"
        suspects = {"the first backward's gradient is added to it": 2 * want}
        assert_close("the gradient of x in a second backward", again, want, plain=want, suspects=suspects, hint=hint)

    def test_argument_changed_before_backward(self, rng):
        args = [random(rng, 5), random(rng, 5, grad=False)]
        self.passes("times_data", args)

        def changed():
            self.passes("times_changed_data", args)

        hint = "when an argument was changed in place before backward, which would give a wrong gradient"
        try:
            assert_raises(RuntimeError, changed, when=hint)
        except AssertionError as error:
            raise AssertionError(f"{error}\nUsual cause: tensors kept as attributes of ctx. ctx.save_for_backward "
                                 "notices such changes") from None  # fmt: skip

    def test_no_grad(self, rng):
        x = random(rng, 64, 256)
        with torch.no_grad():
            kept_bytes, n_runs = kept(self.TASK, "eight_steps", [x])
            made = self.passes("eight_steps", [x])
        require(not made.requires_grad, "under torch.no_grad() the result requires grad")
        assert_ran(n_runs + made.all_calls, 2, "in two calls under torch.no_grad()")
        assert_at_most("what a call under torch.no_grad() keeps", kept_bytes, 0, hint="there will be no backward pass")

    @pytest.mark.gpu
    def test_dropout_on_cuda(self, rng):
        x = torch.from_numpy(rng.uniform(1, 2, (40, 50))).float().cuda().requires_grad_()
        made = self.passes("dropout_again", [x], seed=draw_seed(rng))
        want = sum(numbers(y) for y in made.results) / numbers(x)
        hint = "a GPU has a random generator of its own: torch.cuda.get_rng_state"
        name = "the gradient of two dropouts on CUDA, which is the sum of their masks,"
        assert_close(name, made.gradients[-1][0], want, plain=want, hint=hint)
        require(same_states(made.before, made.after), "backward leaves the GPU's generator changed")


class TestCheckpointFunction(Recomputation):
    """The autograd Function."""

    TASK = "Checkpoint"

    def test_is_a_function_of_its_own(self, rng):
        name, is_torchs, _ = node("sine", [random(rng, 3)])
        require(name == "CheckpointBackward", f"the result's grad_fn is {name}, expected CheckpointBackward: the "
                "gradient is to come from Checkpoint's own backward")  # fmt: skip
        require(not is_torchs, "Checkpoint is PyTorch's own: write the two passes yourself")

    def test_saves_the_arguments_themselves(self, rng):
        x, data, rows = random(rng, 6, 3), random(rng, 3, grad=False), torch.tensor([2, 0])
        _, _, saved = node("some_rows", [x, 2, rows, data])
        require(set(saved) == {0, 2, 3}, f"ctx.save_for_backward was given {len(saved)} "
                "tensors that are not the 3 tensor arguments\nExpected: the arguments themselves, and neither copies "
                "nor results")  # fmt: skip

    def test_no_argument_requires_grad(self, rng):
        x = random(rng, 4, grad=False)
        made = self.passes("sine_times", [x, 3])
        assert_ran(made.calls, 1, "in the forward pass")
        want = numbers(torch.sin(x) * 3)
        assert_close("the result for arguments that require no grad", made.results, want, plain=want)


class TestCheckpoint(Recomputation):
    """The function around it."""

    TASK = "checkpoint"

    @pytest.mark.parametrize("given", ["data", "nothing", "a number"])
    def test_parameters_when_no_argument_requires_grad(self, rng, given):
        data, weight = random(rng, 6, 4, grad=False), random(rng, 4, 3)
        args, factors = [data, weight, given], [random(rng, 6, 3, grad=False)]
        made = self.passes("weight_inside", args, factors)
        hint = "no argument requires grad, so autograd never calls backward: hand it one that does"
        require(
            made.requires_grad,
            "the result does not require grad though a parameter inside fn does\nUsual cause: " + hint,
        )
        names = ["data", "the weight inside fn", "given"]
        assert_gradients(made.gradients, plainly("weight_inside"), args, factors, names, hint=hint)
        assert_ran(made.all_calls, 2, "in both passes together")
        untouched = made.gradients[-1][0] is None and not data.requires_grad
        require(untouched, "data, which requires no grad, was made to require it")

    def test_keeps_nothing_when_no_argument_requires_grad(self, rng):
        kept_bytes, _ = kept(self.TASK, "weight_in_deep", [random(rng, 64, 256, grad=False), random(rng, 256)])
        hint = "is something added to an argument, so that it requires grad? The sum is a new tensor, and is kept"
        assert_at_most("what the forward pass keeps for a parameter inside fn", kept_bytes, ROOM_FOR_STATE, hint=hint)

    def test_nothing_requires_grad(self, rng):
        data, weight = random(rng, 5, grad=False), random(rng, 5)
        made = self.passes("sine_and_sign", [data, 2], [weight])
        assert_tuple("the result", made.results, ("sine", "positive"))
        want = numbers(torch.sin(data) * 2)
        require(made.of_factors[0] is not None, "the gradient of a weight behind a function without any is None")
        assert_close("the gradient of a weight behind a function without any", made.of_factors[0], want, plain=want,
                     hint="backward may find no result that requires grad, and has nothing to do then")  # fmt: skip

    def test_several_results_when_no_argument_requires_grad(self, rng):
        args = [random(rng, 5, grad=False), random(rng, 5)]
        factors, two = [random(rng, 5, grad=False), random(rng, 5, grad=False)], plainly("two_with_weight")
        made = self.passes("two_with_weight", args, factors)
        assert_tuple("the result", made.results, ("product", "sum"))
        suspects = {"only the first result's gradient is used": gradients(two, args, [factors[0], torch.zeros(5)])}
        assert_gradients(made.gradients, two, args, factors, ["data", "the weight inside fn"], suspects)

    def test_is_not_borrowed(self, rng):
        x = random(rng, 3)
        made, called = borrowed(self.TASK, "sine", [x])
        require(not called, "torch.utils.checkpoint was called: write checkpoint with your own Function")
        assert_gradients(made["gradients"], torch.sin, [x], [torch.ones(3)], ["x"])


# A chain of functions


class Chain:
    """The parameters of functions that note their numbers when they run; each saves one activation of x's size."""

    def __init__(self, rng, n, width=6):
        self.shifts = [random(rng, width) for _ in range(n)]
        self.factors = [random(rng, 5, width, grad=False)]

    def passes(self, segments, x, factors=None, **options):
        """What came out of the student's checkpoint_sequential."""
        return SimpleNamespace(**sequence_passes("chain", self.shifts, segments, x, factors, **options))

    @staticmethod
    def plain(x, *shifts):
        for shift in shifts:
            x = torch.tanh(x + shift) if x.shape[-1] == shift.shape[-1] else torch.tanh(x)
        return x


def neighbours(numbers):
    """Runs of neighbours in a list of numbers, sorted."""
    runs = []
    for i in numbers:
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
        made = chain.passes(segments, x, chain.factors)
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
        assert_close(f"the result of {n} functions in {segments} segments", made.results, exact, plain=plain,
                     dtype=torch.float32, suspects=suspects)  # fmt: skip
        names = ["x", *(f"the parameter of function {i} (of 0 … {n - 1})" for i in range(n))]
        hint = "each segment's functions are fixed when it is checkpointed. A lambda made in a loop sees the last ones"
        lost = "what one segment hands to the next was detached"
        leaves = [x, *chain.shifts]
        assert_gradients(made.gradients, chain.plain, leaves, chain.factors, names, hint=hint, lost=lost)

    @pytest.mark.parametrize(("n", "segments"), SPLITS)
    def test_every_function_runs_once_more(self, rng, n, segments):
        chain, x = Chain(rng, n), random(rng, 5, 6)
        made = chain.passes(segments, x)
        forward = made.ran[: made.n_forward]
        assert_equal("the order in which the functions run in the forward pass", forward, list(range(n)))
        extra = sorted(made.ran[n:])
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
        lengths = [len(run) for run in neighbours(chain.passes(segments, x).ran[n:])]
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
        made = chain.passes(3, x, chain.factors)
        require(made.requires_grad, "with x that requires no grad the result requires none, though the parameters do\n"
                "Usual cause: Checkpoint.apply asks its arguments only: checkpoint handles that")  # fmt: skip
        names = ["x", *(f"the parameter of function {i} (of 0 … 5)" for i in range(6))]
        hint = "x requires no grad, so the first segment's backward is never called: checkpoint handles that"
        leaves = [x, *chain.shifts]
        assert_gradients(made.gradients, chain.plain, leaves, chain.factors, names, hint=hint)

    def test_dropout(self, rng):
        x = torch.from_numpy(rng.uniform(1, 2, (30, 20))).float().requires_grad_()
        made = SimpleNamespace(**sequence_passes("dropout", [0.2] * 5, 2, x, seed=draw_seed(rng)))
        want = numbers(made.results) / numbers(x)
        require(made.gradients, f"the gradient of x is None\nUsual cause: {CUT}")
        assert_close("the gradient of five dropouts, which is their mask,", made.gradients[-1][0], want, plain=want,
                     hint="every segment draws its own masks again: keep the generator's state with each")  # fmt: skip
        require(same_states(made.before, made.after), "backward leaves the random generator changed")

    def test_a_module_is_a_sequence_too(self, rng):
        x, factors = random(rng, 5, 6), [random(rng, 5, 3, grad=False)]
        parameters = [random(rng, *shape) for shape in ((4, 6), (4,), (3, 4), (3,))]
        made = SimpleNamespace(**sequence_passes("module", parameters, 2, x, factors))

        def plain(x, w0, b0, w1, b1):
            return F.linear(torch.tanh(F.linear(x, w0, b0)), w1, b1)

        names = ["x", "weight 0", "bias 0", "weight 2", "bias 2"]
        assert_gradients(made.gradients, plain, [x, *parameters], factors, names)

    @pytest.mark.parametrize(("n", "segments"), [(16, 4), (24, 3), (12, 6), (16, 16)])
    def test_peak_is_the_model_s(self, rng, n, segments):
        chain, x = Chain(rng, n, width=1), random(rng, 64, 256)
        size = 64 * 256 * 4
        made = chain.passes(segments, x, measured=True)
        model = segments + -(-n // segments)
        hint = f"{segments} kept and ⌈{n} / {segments}⌉ recomputed, and room for gradients; without checkpoints {n}"
        assert_at_most(f"the peak of {n} functions in {segments} segments", math.ceil(made.peak_bytes / size),
                       model + 3, unit="activations", hint=hint)  # fmt: skip
        assert_gradients(made.gradients[:1], chain.plain, [x, *chain.shifts], [torch.ones(64, 256)],
                         ["x", *(f"the parameter of function {i}" for i in range(n))])  # fmt: skip

    def test_between_the_passes_only_segments_inputs(self, rng):
        chain, x = Chain(rng, 12, width=1), random(rng, 64, 256)
        kept_bytes = kept_by_sequence("chain", chain.shifts, 4, x)
        size = 64 * 256 * 4
        hint = "x is the caller's, so three inputs of segments remain; plain autograd keeps twelve activations"
        assert_at_most("what 12 functions in 4 segments keep between the passes", kept_bytes,
                       3 * size + 4 * ROOM_FOR_STATE, hint=hint)  # fmt: skip

    @pytest.mark.parametrize(("n", "segments"), [(4, 0), (4, 5), (4, -1)])
    def test_impossible_segments(self, rng, n, segments):
        x = random(rng, 5, 6)

        def call():
            return tuple(checkpoint_sequential([torch.tanh] * n, segments, x).shape)

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
        for layers in range(1, 150):
            assert_equal(f"plan_segments({layers})", plan_segments(layers), root_above(layers))

    def test_layers_drawn_at_random(self, rng):
        for layers in map(int, rng.integers(400, 1_000_000, 20)):
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
        for layers in range(1, 20):
            for segments in range(1, layers + 1):
                want = (segments + -(-layers // segments), layers)
                got = checkpoint_cost(layers, segments)
                assert_tuple("checkpoint_cost's result", got, ("peak_activations", "extra_forwards"))
                assert_equal(f"checkpoint_cost({layers}, {segments})", got, want)

    def test_chains_drawn_at_random(self, rng):
        for layers in map(int, rng.integers(40, 10_000, 20)):
            segments = int(rng.integers(1, layers + 1))
            got = checkpoint_cost(layers, segments)
            want = (segments + -(-layers // segments), layers)
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
