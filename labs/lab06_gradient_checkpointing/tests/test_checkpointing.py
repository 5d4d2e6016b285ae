"""Lab 06's suite: gradients of recomputed functions, bytes kept between the passes, and how often what runs.

A test gives a function `f(run, …)`. It is called next to your code, where run is `Checkpoint.apply`, `checkpoint` or
`StrictCheckpoint.apply`, and once more in the test, where `run(fn, *args)` is `fn(*args)`: the gradients must be the
same.
"""

import itertools
import math
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from checkpointing import checkpoint_sequential

from labkit.testing.compare import (
    assert_at_most,
    assert_close,
    assert_equal,
    assert_raises,
    assert_tuple,
    assert_type,
    require,
    require_at_most,
)
from labkit.testing.unchanged import copied, unchanged

from .probes import (
    borrowed,
    call,
    deep,
    dropped_twice,
    grad_modes,
    kept,
    large_sequence,
    large_step,
    mixed,
    node,
    passes,
    penalised,
    sequence_passes,
    two_dropouts,
    under_autocast,
)
from .support import (
    NO_WAY_BACK,
    above_one,
    assert_gradients,
    assert_mask,
    assert_ran,
    assert_right_within,
    assert_three_products,
    copies,
    draw_seed,
    gradients,
    in_activations,
    numbers,
    random,
    same_states,
    with_room,
)

ROOM_FOR_STATE = 16 * 1024
"""Bytes: the CPU generator's state is 5,056."""

WIDENED = {
    torch.float32: "",
    torch.bfloat16: "in bfloat16 an activation of float32 counts as two; or ",
}


@pytest.fixture(autouse=True)
def generator():
    """Whatever a test does to torch's own generator is undone."""
    with torch.random.fork_rng(devices=[]):
        yield


def plain_run(fn, *args):
    return fn(*args)


SAME_GRADIENTS = {
    "an argument in the middle of a graph": (
        ("x",),
        lambda run, x: run(torch.sin, hidden := torch.exp(x)) + hidden,
        "fn runs again on arguments that are not detached, so that gradients flow past them",
    ),
    "several in one graph": (
        ("x", "y"),
        lambda run, x, y: run(torch.sin, x) * run(torch.exp, x) * y,
        "what one call keeps is overwritten by the next: it belongs into ctx",
    ),
    "nested": (
        ("x", "y"),
        lambda run, x, y: run(lambda x: run(torch.sin, run(torch.exp, x)) * x, x) * y,
        "a checkpointed function calls checkpointed ones: nothing may be kept outside of ctx",
    ),
    "an argument handed through": (
        ("x", "y"),
        lambda run, x, y: run(lambda x, y: (x, x * y), x, y),
        "a result may be an argument as it came: without a grad_fn in the second run, it requires grad all the same",
    ),
    "one tensor given twice": (
        ("x",),
        lambda run, x: run(lambda a, b: a * torch.sin(b), x, x),
        "each argument gets the gradient of both, and autograd adds the two: each needs a detached tensor of its own",
    ),
    "a result that the loss leaves out": (
        ("x", "y"),
        lambda run, x, y: run(lambda x: (torch.exp(x), torch.sin(x)), x)[1] * y,
        "the gradient of a result that nothing uses is None (or zeros, which autograd makes if it may): leave it out",
    ),
    "a result that needs no gradient": (
        ("x", "y"),
        lambda run, x, y: sum(run(lambda x, y: (x * y, y.detach() * 2), x, y)),
        "a result of fn that requires no grad is handed to torch.autograd.backward: leave it out",
    ),
    "a parameter inside fn": (
        ("x", "weight_inside_fn"),
        lambda run, x, weight_inside_fn: run(lambda x: torch.tanh(x * weight_inside_fn), x),
        "torch.autograd.grad(results, args) finds the arguments' gradients only, and not those of what is inside fn; "
        "torch.autograd.backward finds all",
    ),
}
"""Functions of `run` and tensors, by these names, and what is wrong where the gradients are not autograd's own."""


half_or_not = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])


class Runs:
    """Runs of a function under one of the tasks."""

    TASK = ""

    def passes(self, fn, factors=None, options=None, **args):
        """What your code makes of `fn(run, **args)` and its backward pass."""
        return SimpleNamespace(**passes(self.TASK, fn, args, factors=factors, **(options or {})))

    def check(self, fn, factors, *, args, hint="", lost="", mistakes=None, options=None):
        """The same, its gradients compared with plain autograd's; `mistakes` are a usual mistake's factors."""
        made = self.passes(fn, factors, options, **dict(zip(args, copied(*args.values()), strict=True)))

        def plain(args):
            return fn(plain_run, **args)

        why = lost or (hint if made.requires_grad else NO_WAY_BACK)
        wrong = {text: gradients(plain, args, each) for text, each in (mistakes or {}).items()}
        found = made.gradients[-1] if made.gradients else None
        assert_gradients(found, plain, args, factors, mistakes=wrong, hint=hint, lost=why)
        require(made.all_calls > made.calls, "fn does not run again: the forward pass kept what backward needs")
        return made


class Recomputation(Runs):
    """What `Checkpoint.apply` and `checkpoint` have in common."""

    @pytest.mark.basic
    def test_result_and_gradient(self, rng):
        def fn(run, x):
            return run(deep, x)

        x, factors = random(rng, 7, 5), [random(rng, 7, 5, grad=False)]
        made = self.passes(fn, factors, x=x)
        assert_type("the result", made.results, torch.Tensor, "the tensor that fn returns")
        exact, baseline = (numbers(deep(x.to(dtype))) for dtype in (torch.float64, torch.float32))
        assert_close("the result", made.results, exact, baseline=baseline, dtype=torch.float32)
        require(made.requires_grad, "the result does not require grad though the argument does")
        twice = "fn runs again on arguments that are not detached: their gradient arrives twice"
        mistakes = {"the gradient of the result is taken to be 1": [torch.ones(7, 5)], twice: [2 * factors[0]]}
        lost = "no graph in the second run (torch.enable_grad), its gradient not returned, or detached arguments"
        hint = "fn runs again on other numbers than the arguments given"
        self.check(fn, factors, args={"x": x}, mistakes=mistakes, hint=hint, lost=lost)

    @pytest.mark.basic
    def test_arguments_and_results_of_all_kinds(self, rng):
        args = {
            **{"a": random(rng, 5, 3), "power": 2, "b": random(rng, 3, 4), "names": ("x", "y")},
            **{"frozen": random(rng, 5, 4, grad=False), "rows": torch.tensor([4, 0, 0]), "flag": None},
        }
        factors = [random(rng, 5, 4, grad=False), random(rng, 3, grad=False)]
        twice = "fn runs again on arguments that are not detached: their gradient arrives twice"
        mistakes = {
            "only the first result's gradient is used": [factors[0], torch.zeros(3)],
            twice: [2 * factor for factor in factors],
        }
        hint = "the gradients do not stand where their arguments do: one for each, None for what is no tensor"

        def fn(run, **args):
            return run(mixed, *args.values())

        made = self.check(fn, factors, args=args, mistakes=mistakes, hint=hint)
        results = assert_tuple("the result", made.results, ("product", "sums", "positions"))
        exact, baseline = mixed(**copies(args, torch.float64)), mixed(**args)
        for name, got, want, rounded in zip(("product", "sums"), results, exact, baseline, strict=False):
            assert_close(name, got, numbers(want), baseline=numbers(rounded), dtype=torch.float32)
        require(torch.equal(results[2], baseline[2]), "the third result, of integers, is not what fn returns")
        require(made.gradients[-1][4] is None, "an argument that needs no gradient was given one")

    @pytest.mark.robust
    def test_tuple_of_one_result(self, rng):
        made = self.passes(lambda run, x: run(lambda x: (torch.sin(x),), x), x=random(rng, 5))
        assert_tuple("the result of an fn that returns a tuple of one tensor", made.results, ("sine",))

    @pytest.mark.parametrize(("names", "fn", "hint"), SAME_GRADIENTS.values(), ids=SAME_GRADIENTS)
    def test_gradients_are_those_of_plain_autograd(self, rng, names, fn, hint):
        args = {name: random(rng, 6) for name in names}
        try:
            self.check(fn, [random(rng, 6, grad=False), random(rng, 6, grad=False)], args=args, hint=hint)
        except RuntimeError as error:
            messages = {
                "second time": "backward goes a second time through the graph that computed an argument",
                "implicitly": "torch.autograd.backward is given a result of fn without its gradient",
                "does not require grad": "torch.autograd.backward is given a result of fn that requires no grad",
            }
            for text, message in messages.items():
                require(text not in str(error), f"{message}\nUsual cause: {hint}")
            raise

    def test_arguments_are_left_alone(self, rng):
        args = {"x": random(rng, 5), "data": random(rng, 5, grad=False)}
        with unchanged(args):
            made = self.passes(lambda run, x, data: run(lambda x, data: torch.sin(x) * data, x, data), **args)
        for name, needs, needs_now in zip(args, (True, False), made.needs, strict=True):
            message = f"requires_grad of {name}, an argument, was changed to {not needs}"
            require(needs_now is needs, f"{message}\nThe caller's tensors stay as they are: work on a detached one")
        require(made.gradients, "the result does not require grad though the argument does")
        require(made.gradients[-1][1] is None, "data, an argument that requires no grad, has a .grad after backward")

    def test_fn_runs_once_in_each_pass(self, rng):
        made = self.passes(lambda run, x: run(deep, x), x=random(rng, 4, 4))
        assert_ran(made.calls, 1, "in the forward pass")
        assert_ran(made.all_calls, 2, "in both passes together")

    @pytest.mark.cost
    @half_or_not
    def test_keeps_its_arguments_only(self, rng, dtype):
        def fn(run, **args):
            return run(lambda *args: deep(sum(torch.sin(arg) for arg in args)), *args.values())

        args = {name: random(rng, 64, 256, dtype=dtype) for name in "abc"}
        kept_bytes, _ = kept(self.TASK, fn, args)
        size = args["a"].nbytes
        why = f"fn on its own keeps 11 tensors of {size:,} bytes; here only the arguments may stay"
        if kept_bytes <= 4 * size:
            why = "a copy of an argument costs as much as an activation: keep the tensors themselves"
        name = "what the forward pass keeps, besides arguments and result,"
        assert_at_most(name, kept_bytes, ROOM_FOR_STATE, hint=why)

    @pytest.mark.cost
    @half_or_not
    def test_does_not_keep_its_result(self, rng, dtype):
        x = random(rng, 64, 256, dtype=dtype)
        kept_bytes, _ = kept(self.TASK, lambda run, x: run(deep, x).sum(), {"x": x})
        hint = f"the sum of a result of {x.nbytes:,} bytes needs none of it, but it stays: backward computes it again"
        name = "what the forward pass keeps, besides the argument, of a result that is summed up,"
        assert_at_most(name, kept_bytes, ROOM_FOR_STATE, hint=hint)

    @pytest.mark.cost
    @half_or_not
    def test_recomputed_activations_are_released(self, rng, dtype):
        def fn(run, x):
            for _ in range(6):
                x = run(deep, x)
            return x

        x, factors = random(rng, 64, 256, dtype=dtype), [torch.ones(64, 256, dtype=dtype)]
        made = self.check(fn, factors, args={"x": x}, options={"measured": True})
        hint = "six functions of 8 steps: the 6 results between them and the 8 activations of one function at a time\n"
        hint += f"Usual cause: {WIDENED[dtype]}something holds on to what was recomputed (plain autograd keeps all 48)"
        peak = in_activations(made.peak_bytes, x)
        assert_at_most("the peak of both passes", peak, with_room(6 + 8), unit="activations", hint=hint)

    @pytest.mark.cost
    @pytest.mark.memory_limit(mib=16)
    def test_step_seen_from_outside(self, memory_limit):
        assert_right_within(memory_limit, large_step, self.TASK)

    def test_no_arithmetic_for_gradients_nobody_needs(self, rng):
        def fn(run, x, frozen):
            return run(torch.matmul, x, frozen)

        args = {"x": random(rng, 32, 32), "frozen": random(rng, 32, 32, grad=False)}
        made = self.check(fn, [torch.ones(32, 32)], args=args, options={"measured": True})
        hint = "two forward, one for the gradient of x: that of `frozen`, which nobody needs, is computed too, "
        hint += "or fn runs a third time"
        assert_three_products("x @ frozen", made.flops, hint=hint)

    def test_dropout_draws_the_same_mask_again(self, rng):
        def fn(run, x):
            torch.rand(2)
            y = run(dropped_twice, x)
            torch.rand(3)
            return y

        x = above_one(rng, 40, 50).requires_grad_()
        made = self.passes(fn, options={"seed": draw_seed(rng)}, x=x)
        torch.set_rng_state(made.before[0])
        anew = numbers(dropped_twice(torch.ones_like(x)))
        hint = "the second run starts from another state of the generator than the first: take it before fn runs"
        assert_mask("two dropouts", made, x, hint=hint, mistakes={"backward draws a new mask": anew})

    def test_generator_goes_on_as_if_nothing_was_recomputed(self, rng):
        x, seed = random(rng, 8, 8), draw_seed(rng)
        torch.manual_seed(seed)
        F.dropout(x, 0.5)
        after_plain = torch.get_rng_state()
        made = self.passes(lambda run, x: run(lambda x: F.dropout(x, 0.5), x), options={"seed": seed}, x=x)
        message = "after the forward pass the random generator is not where one run of fn leaves it"
        cause = "the state was put back, or set, in the forward pass"
        require(torch.equal(made.before[0], after_plain), f"{message}\nUsual cause: {cause}")
        made = self.passes(two_dropouts, options={"seed": seed}, x=x)
        first, second = made.results
        require(not torch.equal(first, second), "two calls draw the same dropout mask: a fixed seed was set")
        message = "backward leaves the random generator changed: what draws next repeats, or skips, numbers"
        cause = "the state set for the second run is not put back"
        require(same_states(made.before, made.after), f"{message}\nUsual cause: {cause}")

    def test_nested_dropout(self, rng):
        def nested(run, x):
            return run(lambda x: run(lambda h: F.dropout(torch.sin(h), 0.5), F.dropout(x, 0.3)) * x, x)

        args, factors, seed = {"x": random(rng, 60)}, [random(rng, 60, grad=False)], draw_seed(rng)
        made = self.passes(nested, factors, {"seed": seed}, **args)
        torch.manual_seed(seed)
        first, second = (F.dropout(torch.ones(60), p).double() for p in (0.3, 0.5))

        def masked(args):
            x = args["x"]
            return torch.sin(x * first.to(x)) * second.to(x) * x

        hint = "a dropout two levels down draws another mask: each level sets the generator's state, and puts it back"
        assert_gradients(made.gradients and made.gradients[-1], masked, args, factors, hint=hint, lost=hint)

    def test_backward_twice(self, rng):
        factors, options = [random(rng, 5, grad=False)], {"n_backward": 2}
        made = self.passes(lambda run, x: run(deep, x), factors, options, x=random(rng, 5))
        for gradient in made.gradients or [[None]]:
            require(gradient[0] is not None, "the gradient of x is None in one of two backward passes")
        want, again = (numbers(gradient[0]) for gradient in made.gradients)
        hint = "the second backward starts from what the first has left, not from the saved arguments, detached afresh"
        mistakes = {"the first backward's gradient is added to it": 2 * want}
        assert_close("the gradient of x in a second backward", again, want, baseline=want, mistakes=mistakes, hint=hint)

    @pytest.mark.parametrize("changed", ["data", "rows"])
    def test_argument_changed_before_backward(self, rng, changed):
        def fn(run, x, **others):
            y = run(lambda x, data, rows: x[rows] * data, x, *others.values())
            others[changed].mul_(0)
            return y

        args = {"x": random(rng, 5), "data": random(rng, 5, grad=False), "rows": torch.tensor([4, 0, 0, 1, 2])}
        kind = {"data": "of numbers that need no gradient", "rows": "of integers"}[changed]
        when = f"when an argument {kind} was changed in place before backward (ctx.save_for_backward notices it)"
        assert_raises(RuntimeError, lambda: self.passes(fn, **args).gradients, when=when, mentions=())

    @pytest.mark.gpu
    def test_dropout_on_cuda(self, rng):
        x = above_one(rng, 40, 50).cuda().requires_grad_()
        made = self.passes(two_dropouts, options={"seed": draw_seed(rng)}, x=x)
        hint = "a GPU has a random generator of its own: torch.cuda.get_rng_state"
        assert_mask("two dropouts on CUDA", made, x, hint=hint)
        require(same_states(made.before, made.after), "backward leaves the GPU's generator changed")


class TestCheckpointFunction(Recomputation):
    """The autograd Function."""

    TASK = "Checkpoint"

    def test_is_a_function_of_its_own(self, rng):
        name, is_torchs = node(random(rng, 3))
        message = f"the result's grad_fn is {name}, expected CheckpointBackward"
        require(name == "CheckpointBackward", f"{message}: the gradient is to come from Checkpoint's own backward")
        require(not is_torchs, "Checkpoint is PyTorch's own: write the two passes yourself")

    @pytest.mark.cost
    def test_first_run_makes_no_graph(self, rng):
        modes = call(self.TASK, grad_modes, random(rng, 3))
        hint = "in the first run a graph, made for nothing, holds all activations until fn returns"
        assert_equal("grad mode in the two runs of fn", modes, [False, True], hint=hint if modes[:1] == [True] else "")


class TestCheckpoint(Recomputation):
    """The function around it."""

    TASK = "checkpoint"

    @pytest.mark.parametrize("given", ["data", "nothing", "a number", "token ids"])
    def test_parameters_when_no_argument_requires_grad(self, rng, given):
        functions = {
            "data": lambda run, data, weight, ids: run(lambda data: torch.tanh(data @ weight), data),
            "nothing": lambda run, data, weight, ids: run(lambda: torch.tanh(data @ weight)),
            "a number": lambda run, data, weight, ids: run(lambda n: torch.tanh(data @ weight * n), 0.5),
            "token ids": lambda run, data, weight, ids: run(lambda ids: torch.tanh(F.embedding(ids, weight)), ids),
        }
        ids = torch.tensor([3, 0, 0, 1, 2, 3])
        args = {"data": random(rng, 6, 4, grad=False), "weight": random(rng, 4, 3), "ids": ids}
        hint = "no argument requires grad, so autograd never calls backward: hand it one that does"
        made = self.check(functions[given], [random(rng, 6, 3, grad=False)], args=args, hint=hint, lost=hint)
        assert_ran(made.all_calls, 2, "in both passes together")
        untouched = made.gradients[-1][0] is None and not any(needs for needs in (made.needs[0], made.needs[2]))
        require(untouched, "data, which requires no grad, was made to require it")

    def test_no_arithmetic_for_data(self, rng):
        def fn(run, data, weight):
            return run(lambda data: data @ weight, data)

        args = {"data": random(rng, 32, 32, grad=False), "weight": random(rng, 32, 32)}
        made = self.check(fn, [torch.ones(32, 32)], args=args, options={"measured": True})
        hint = "two forward, one for the gradient of the weight: data, which requires no grad, was made to require one"
        assert_three_products("data @ weight", made.flops, hint=hint)

    @pytest.mark.cost
    @half_or_not
    def test_keeps_nothing_when_no_argument_requires_grad(self, rng, dtype):
        def fn(run, data, weight):
            return run(lambda data: deep(data * weight), data)

        args = {"data": random(rng, 64, 256, grad=False, dtype=dtype), "weight": random(rng, 256, dtype=dtype)}
        kept_bytes, _ = kept(self.TASK, fn, args)
        hint = "is something added to an argument, so that it requires grad? The sum is a new tensor, and is kept"
        assert_at_most("what the forward pass keeps for a parameter inside fn", kept_bytes, ROOM_FOR_STATE, hint=hint)

    def test_nothing_requires_grad(self, rng):
        def fn(run, data):
            return run(lambda x, n: (torch.sin(x) * n, x > 0), data, 2)

        data, weight = random(rng, 5, grad=False), random(rng, 5)
        made = self.passes(fn, [weight], data=data)
        assert_tuple("the result", made.results, ("sine", "positive"))
        want, name = numbers(torch.sin(data) * 2), "the gradient of a weight behind a function without any"
        require(made.of_factors[0] is not None, f"{name} is None")
        hint = "backward may find no result that requires grad, and has nothing to do then"
        assert_close(name, made.of_factors[0], want, baseline=want, hint=hint)

    def test_no_grad(self, rng):
        x = random(rng, 64, 256)
        with torch.no_grad():
            kept_bytes, n_runs = kept(self.TASK, lambda run, x: run(deep, x), {"x": x})
            made = self.passes(lambda run, x: run(deep, x), x=x)
        message = "under torch.no_grad() the result requires grad"
        require(not made.requires_grad, f"{message}\nUsual cause: grad mode is switched on inside, or not looked at")
        assert_ran(n_runs + made.all_calls, 2, "in two calls under torch.no_grad()")
        assert_at_most("what a call under torch.no_grad() keeps", kept_bytes, 0, hint="there will be no backward pass")

    def test_is_not_borrowed(self, rng):
        called = borrowed(self.TASK, random(rng, 3))
        require(not called, "torch.utils.checkpoint was called: write checkpoint with your own Function")


def chained(x, *shifts):
    """The functions of a chain, tanh(x + shift), one after the other."""
    for shift in shifts:
        x = torch.tanh(x + shift)
    return x


def segment_lengths(ran):
    """The lengths of the runs of consecutive numbers in `ran`."""
    starts = [i for i in range(len(ran)) if i == 0 or ran[i] != ran[i - 1] + 1]
    return [stop - start for start, stop in itertools.pairwise([*starts, len(ran)])]


class Chain:
    """A chain of n functions tanh(x + shift); each saves one activation of x's size."""

    def __init__(self, rng, n, width=6, dtype=torch.float32):
        self.shifts = [random(rng, width, dtype=dtype) for _ in range(n)]

    def passes(self, segments, x, factors=None, **options):
        return SimpleNamespace(**sequence_passes(self.shifts, segments, x, factors=factors, **options))

    def assert_gradients(self, made, x, factors, *, hint="", lost=""):
        """Compare the gradients of x and of all parameters with plain autograd's."""
        n = len(self.shifts)
        shifts = {f"the parameter of function {i} (of 0 … {n - 1})": shift for i, shift in enumerate(self.shifts)}
        found = made.gradients[-1] if made.gradients else None
        assert_gradients(found, lambda args: chained(*args.values()), {"x": x, **shifts}, factors, hint=hint, lost=lost)


splits = pytest.mark.parametrize(
    ("n", "segments"),
    [pytest.param(*each, id="{}in{}".format(*each)) for each in ((10, 4), (9, 4), (5, 5), (6, 1), (11, 6))],
)


class TestCheckpointSequential:
    """A chain, divided into segments."""

    @pytest.mark.basic
    @splits
    def test_result_and_gradients(self, rng, n, segments):
        chain, x, factors = Chain(rng, n), random(rng, 5, 6), [random(rng, 5, 6, grad=False)]
        made = chain.passes(segments, x, factors)
        want = numbers(chained(x.double(), *(shift.double() for shift in chain.shifts)))
        hint = "a lambda made in a loop sees the last segment's functions: fix them when it is checkpointed"
        name = f"the result of {n} functions in {segments} segments"
        baseline = numbers(chained(x, *chain.shifts))
        order = "the order is another, or what one segment returns is not what the next is given"
        assert_close(name, made.results, want, baseline=baseline, dtype=torch.float32, hint=order)
        chain.assert_gradients(made, x, factors, hint=hint, lost="what one segment hands to the next was detached")

    @pytest.mark.basic
    @splits
    def test_every_function_runs_once_more(self, rng, n, segments):
        made = Chain(rng, n).passes(segments, random(rng, 5, 6))
        forward, extra = made.ran[: made.calls], sorted(made.ran[n:])
        assert_equal("the order in which the functions run in the forward pass", forward, list(range(n)))
        missing = [i for i in range(n) if i not in extra]
        hint = "a function runs more than once more: is a segment checkpointed within a checkpointed one?"
        if missing:
            hint = f"functions {missing[0]} … {missing[-1]} are not recomputed: their segment is not checkpointed"
        name = f"the functions that run again in the backward pass ({n} in {segments} segments)"
        assert_equal(name, extra, list(range(n)), hint=hint)

    @splits
    def test_segments_are_contiguous_and_equal(self, rng, n, segments):
        again = Chain(rng, n).passes(segments, random(rng, 5, 6)).ran[n:]
        lengths = segment_lengths(again)
        causes = {1: "all functions are in one segment", n: "every function is a segment of its own"}
        usual = "steps of ⌈n / segments⌉ reach the end too early, or what the division leaves is its own segment"
        if max(lengths) == segments:
            usual = "segments is taken for the length of one"
        message = f"{n} functions in {segments} segments: the backward pass recomputes runs of the lengths {lengths}"
        require(len(lengths) == segments, f"{message}\nUsual cause: {causes.get(len(lengths), usual)}")
        cause = "steps of ⌈n / segments⌉ leave too few for the last segment"
        if max(lengths) > -(-n // segments):
            cause = "all that the division leaves is in one segment"
        require(max(lengths) - min(lengths) <= 1, f"{message}, which differ by more than 1\nUsual cause: {cause}")

    @pytest.mark.cost
    def test_none_takes_the_lowest_peak(self, rng):
        for n in (100, 17, 2, 1, int(rng.integers(40, 90))):
            chain, x, factors = Chain(rng, n), random(rng, 5, 6), [random(rng, 5, 6, grad=False)]
            made = chain.passes(None, x, factors)
            k = len(segment_lengths(made.ran[n:]))
            peak, lowest = (each + -(-n // each) for each in (k, math.isqrt(n - 1) + 1))
            message = (
                f"{n} functions, segments None: with {k} segments the model's peak is {peak}, the lowest is {lowest}"
            )
            hint = "the kept inputs, k, and the activations of the longest segment, ⌈n / k⌉, balance at k = √n"
            require(peak <= lowest, f"{message}\nUsual cause: {hint}")
            chain.assert_gradients(made, x, factors)

    def test_first_parameters_when_x_is_data(self, rng):
        chain, x, factors = Chain(rng, 6), random(rng, 5, 6, grad=False), [random(rng, 5, 6, grad=False)]
        made = chain.passes(3, x, factors)
        message = "with x that requires no grad the result requires none, though the parameters do"
        cause = "Checkpoint.apply asks its arguments only: checkpoint handles that"
        require(made.requires_grad, f"{message}\nUsual cause: {cause}")
        hint = "x requires no grad, so the first segment's backward is never called: checkpoint handles that"
        chain.assert_gradients(made, x, factors, hint=hint, lost=hint)

    def test_a_module_is_a_sequence_too(self, rng):
        x = random(rng, 5, 6)
        made = torch.nn.Sequential(torch.nn.Tanh(), torch.nn.Softplus(), torch.nn.Tanh())
        result, gradient = large_sequence(made, 2, x)
        want = made(x)
        (of_x,) = torch.autograd.grad(want.sum(), x)
        assert_close("the result of a torch.nn.Sequential", result, numbers(want), baseline=numbers(want))
        assert_close("the gradient of x", gradient, numbers(of_x), baseline=numbers(of_x))

    @pytest.mark.cost
    @half_or_not
    @pytest.mark.parametrize(("n", "segments"), [(64, 8), (36, 12)])
    def test_peak_is_the_model_s(self, rng, n, segments, dtype):
        chain, x = Chain(rng, n, width=1, dtype=dtype), random(rng, 64, 256, dtype=dtype)
        made = chain.passes(segments, x, measured=True)
        chain.assert_gradients(made, x, [torch.ones(64, 256, dtype=dtype)])
        peak = in_activations(made.peak_bytes, x)
        hint = f"{segments} kept and ⌈{n} / {segments}⌉ recomputed, and room for gradients; without checkpoints {n}\n"
        hint += f"Usual cause: {WIDENED[dtype]}inputs of functions are kept that are no inputs of segments"
        name = f"the peak of {n} functions in {segments} segments"
        assert_at_most(name, peak, with_room(segments + -(-n // segments)), unit="activations", hint=hint)

    @pytest.mark.cost
    @pytest.mark.memory_limit(mib=16)
    def test_step_seen_from_outside(self, memory_limit):
        assert_right_within(memory_limit, large_sequence, [torch.tanh] * 48, 6)

    @pytest.mark.refuses
    @pytest.mark.parametrize(("n", "segments"), [(4, 0), (4, 5)])
    def test_impossible_segments(self, rng, n, segments):
        refused = partial(checkpoint_sequential, [torch.tanh] * n, segments, random(rng, 5, 6))
        when = f"for {segments} segments of {n} functions"
        assert_raises(ValueError, refused, when=when, mentions={"functions": n, "segments": segments})


class TestStrictCheckpoint(Runs):
    """What PyTorch's own checkpoint does besides."""

    TASK = "StrictCheckpoint"

    @pytest.mark.basic
    def test_does_what_checkpoint_does(self, rng):
        def fn(run, x, data, n):
            return run(lambda x, data, n: deep(dropped_twice(x) * data * n), x, data, n)

        args = {"x": random(rng, 64, 256), "data": random(rng, 64, 256, grad=False), "n": 2}
        factors, seed = [random(rng, 64, 256, grad=False)], draw_seed(rng)
        made = self.passes(fn, factors, {"seed": seed}, **args)
        torch.manual_seed(seed)
        mask = dropped_twice(torch.ones(64, 256))

        def masked(args):
            return deep(args["x"] * mask.to(args["x"]) * args["data"] * args["n"])

        hint = "it is not Checkpoint's: are forward and backward its own, or called with the same fn and arguments?"
        assert_gradients(made.gradients and made.gradients[-1], masked, args, factors, hint=hint, lost=hint)
        kept_bytes, _ = kept(self.TASK, fn, args)
        assert_at_most("what the forward pass keeps, besides arguments and result,", kept_bytes, ROOM_FOR_STATE)

    @pytest.mark.parametrize(
        ("dtype", "forward_under", "backward_under"),
        [
            pytest.param("bfloat16", True, False, id="forward"),
            pytest.param("float16", True, False, id="forward-float16"),
            pytest.param("bfloat16", False, True, id="backward"),
        ],
    )
    def test_autocast(self, rng, dtype, forward_under, backward_under):
        """The second run computes in the dtype of the first, whether autocast was on, and to which dtype, or off."""
        args = random(rng, 6, 5), random(rng, 5, 4, grad=False), getattr(torch, dtype), forward_under, backward_under
        dtypes, gradient = call(self.TASK, under_autocast, *args)
        _, want = under_autocast(plain_run, *args)
        hint = "fn runs again without the autocast of its first run, or the state is taken after the first run"
        if dtypes == ["torch.float16", "torch.bfloat16"]:
            hint = "autocast is set again without its dtype, so that the CPU's default is taken"
        if dtypes == ["torch.float32", "torch.bfloat16"]:
            hint = "autocast was off in the forward pass, and is not switched off when fn runs again"
        wanted = [f"torch.{dtype if forward_under else 'float32'}"] * 2
        if dtypes[:1] != wanted[:1]:
            hint = "the first run has another autocast: is its state that of the CPU, is_autocast_enabled('cpu')?"
        assert_equal("the list of the dtypes that fn computes in, in its two runs,", dtypes, wanted, hint=hint)
        hint = "the first run's autocast is for fn only: gradients are computed under that of the backward pass"
        assert_close("the gradient of x under autocast", gradient, numbers(want), baseline=numbers(want), hint=hint)

    def test_generator_after_an_error(self, rng):
        def raises_in_the_second_run(run, x):
            calls = []

            def fn(x):
                calls.append(1)
                y = F.dropout(x, 0.5)
                if len(calls) > 1:
                    raise KeyError("the second run")
                return y

            y = run(fn, x)
            torch.rand(3)
            before = torch.get_rng_state()
            try:
                y.sum().backward()
            except KeyError as error:
                return error.args[0], torch.equal(before, torch.get_rng_state())
            return "no error", False

        error, same = call(self.TASK, raises_in_the_second_run, random(rng, 8))
        require(error == "the second run", f"fn raised a KeyError when it was run again; what came out is {error}")
        hint = "put it back in every case: torch.random.fork_rng, or `try … finally`"
        require(same, f"fn raised when it was run again, and the random generator stays changed\nUsual cause: {hint}")

    @pytest.mark.parametrize("first", ["grad", "backward"])
    def test_second_derivatives(self, rng, first):
        """Right, or an error: of y = w·x² and the penalty (∂y/∂x)², the first derivative by either function."""
        x, w = (float(value) for value in rng.uniform(1, 2, 2))
        gradient, want = call(self.TASK, penalised, x, w, first), 2 * w * x + 8 * w**2 * x
        message = f"the gradient of y + (∂y/∂x)², y = w·x², is {gradient}, expected {want:.6g} or a RuntimeError"
        cause = "with create_graph=True, grad mode on, a backward that leaves no graph of its own must raise"
        if gradient is not None:
            require_at_most("a penalty's error", abs(gradient - want), 1e-3, f"{message}\nUsual cause: {cause}")

    def test_torch_autograd_grad(self, rng):
        """Right, or an error; in neither case does a parameter that was not asked for get a gradient."""

        def by_grad(run, x, w):
            y = run(lambda x: w * x, x).sum()
            try:
                (gradient,) = torch.autograd.grad(y, x)
            except RuntimeError:
                gradient = None
            return gradient, w.grad

        w = random(rng, 4)
        gradient, of_parameter = call(self.TASK, by_grad, random(rng, 4), w)
        message = "torch.autograd.grad(result, x) has filled the .grad of a parameter inside fn, which nobody asked for"
        cause = "backward cannot tell who called it; torch.autograd._is_checkpoint_valid() can: where it is False, "
        require(of_parameter is None, f"{message}\nUsual cause: {cause}raise a RuntimeError")
        if gradient is not None:
            assert_close("the gradient of x by torch.autograd.grad", gradient, numbers(w), baseline=numbers(w))
