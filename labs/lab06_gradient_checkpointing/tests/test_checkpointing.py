"""Lab 06's suite: gradients of recomputed functions, what is kept between the passes, and how often what runs.

What a test computes is written as a line, `run(torch.sin, x)`: `passes` computes it where the answer is, with the
answer's way to run a function, and the test itself without checkpoints.
"""

import itertools
import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from checkpointing import Checkpoint, checkpoint, checkpoint_cost, checkpoint_sequential, plan_segments

from labkit.meters.chains import deep, mixed, sequence
from labkit.meters.passes import watch_passes
from labkit.meters.recomputed import QUESTIONS, noted
from labkit.meters.saved import kept_by_forward
from labkit.testing.attention.gradients import assert_gradients, copies, gradients, numbers
from labkit.testing.attention.recomputation import (
    NO_WAY_BACK,
    Chain,
    above_one,
    assert_mask,
    assert_ran,
    chained,
    cost_suspects,
    draw_seed,
    plan_suspects,
    random,
    roots_above,
    same_states,
    split_suspects,
    why_other_number,
    with_room,
)
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
from labkit.testing.probes import probe
from labkit.testing.unchanged import left_alone

ROOM_FOR_STATE = 16 * 1024
"""Bytes: the CPU generator's state is 5,056."""


@probe
def counted(task):
    """The answer's way to run a function, and a list that grows with each of the functions' calls."""
    return noted(Checkpoint.apply if task == "Checkpoint" else checkpoint)


@probe
def asked(question, task, *args):
    """What comes of a question of `labkit.meters.recomputed`, asked of the answer's way to run a function."""
    return QUESTIONS[question](*counted(task), *args)


WITHIN_REACH = {"F": F, "torch": torch, "deep": deep, "mixed": mixed}
"""What lines may name."""


@probe
def passes(task, line, args, **options):
    """What `watch_passes` tells of a line, and how often its functions ran in the forward pass and in all."""
    run, ran = counted(task)
    names = WITHIN_REACH | args | {"run": run}
    told = watch_passes(lambda: eval(line, names), list(args.values()), ran=ran, **options)
    return told | {"calls": told["n_forward"], "all_calls": len(ran)}


@probe
def kept(task, line, args):
    """The bytes besides arguments and results that a line's forward pass keeps, and how often its functions ran."""
    run, ran = counted(task)
    return kept_by_forward(lambda: eval(line, WITHIN_REACH | args | {"run": run})), len(ran)


@probe
def far_step(task, x):
    """A training step through 6 functions of 8 steps each: the result, and x's gradient."""
    run, _ = counted(task)
    y = x = x.detach().requires_grad_()
    for _ in range(6):
        y = run(deep, y)
    y.sum().backward()
    return y.detach(), x.grad


@probe
def far_sequence(n, segments, x):
    """A training step through `checkpoint_sequential` of n tanh: the result, and x's gradient."""
    x = x.detach().requires_grad_()
    y = checkpoint_sequential([torch.tanh] * n, segments, x)
    y.sum().backward()
    return y.detach(), x.grad


def assert_right_within(outside, step, *args):
    """Within the bound of the test's mark, a step of 48 tanh in all has the right result and gradient."""
    x = torch.linspace(-1, 1, 2**17).reshape(256, 512)
    step(*args, torch.zeros(1))  # what its first use imports is nobody's allocation
    got = outside(step, *args, x)
    y, gradient = x.double(), torch.ones(256, 512, dtype=torch.float64)
    for _ in range(48):
        y = torch.tanh(y)
        gradient *= 1 - y**2
    close = all(torch.allclose(a.double(), b, 1e-3, 1e-6) for a, b in zip(got, (y, gradient), strict=True))
    require(close, "within that bound the result or the gradient is not right, of 48 steps on 0.5 MiB")


@pytest.fixture(autouse=True)
def generator():
    """Whatever a test does to torch's own generator is undone."""
    with torch.random.fork_rng(devices=[]):
        yield


def plainly(line):
    """The line without checkpoints, as a function of its arguments by name."""
    return lambda args: eval(line, globals() | args | {"run": lambda fn, *rest: fn(*rest)})


ONE_DROPOUT = "run(lambda x: F.dropout(x, 0.5), x)"
TWO_DROPOUTS = f"({ONE_DROPOUT}, {ONE_DROPOUT}, torch.rand(3, device=x.device))[:2]"


@probe
def node(fn, args):
    """The name of the result's node, whether Checkpoint is of torch's own kind, and which arguments the node saved."""
    y = Checkpoint.apply(eval(fn, dict(WITHIN_REACH)), *args)
    places = {arg.data_ptr(): i for i, arg in enumerate(args) if isinstance(arg, torch.Tensor)}
    saved = getattr(y.grad_fn, "saved_tensors", ())
    theirs = isinstance(Checkpoint, type) and issubclass(Checkpoint, torch.utils.checkpoint.CheckpointFunction)
    return type(y.grad_fn).__name__, theirs, [places.get(tensor.data_ptr()) for tensor in saved]


INSIDE = {name: f"the {name} inside fn" for name in ("weight", "bias", "scale")}


class Recomputation:
    """Tests of what runs a function and recomputes it: the Function, and the function around it."""

    TASK = ""

    def passes(self, line, factors=None, options=None, **args):
        """What came of a line computed by the student's code."""
        return SimpleNamespace(**passes(self.TASK, line, args, factors=factors, **(options or {})))

    def check(self, line, factors, *, hint="", lost="", suspects=None, options=None, args):
        """The same, its gradients compared with plain autograd's; `suspects` are a usual mistake's factors."""
        made = self.passes(line, factors, options, **args)
        why = lost or (hint if made.requires_grad else NO_WAY_BACK)
        wrong = {text: gradients(plainly(line), args, each) for text, each in (suspects or {}).items()}
        found = made.gradients[-1] if made.gradients else None
        assert_gradients(found, plainly(line), args, factors, names=INSIDE, suspects=wrong, hint=hint, lost=why)
        require(made.all_calls > made.calls, "fn does not run again: the forward pass kept what backward needs")
        return made

    def test_result_and_gradient(self, rng):
        x, factors = random(rng, 7, 5), [random(rng, 7, 5, grad=False)]
        made = self.passes("run(deep, x)", factors, x=x)
        assert_type("the result", made.results, torch.Tensor, "the tensor that fn returns")
        exact, plain = (numbers(deep(x.to(dtype))) for dtype in (torch.float64, torch.float32))
        assert_close("the result", made.results, exact, plain=plain, dtype=torch.float32)
        require(made.requires_grad, "the result does not require grad though the argument does")
        suspects = {"the gradient of the result is taken to be 1": [torch.ones(7, 5)]}
        lost = "no graph in the second run (torch.enable_grad), its gradient not returned, or detached arguments"
        hint = "fn runs again on the arguments given, detached"
        self.check("run(deep, x)", factors, args={"x": x}, suspects=suspects, hint=hint, lost=lost)

    def test_arguments_and_results_of_all_kinds(self, rng):
        args = {
            **{"a": random(rng, 5, 3), "power": 2, "b": random(rng, 3, 4), "names": ("x", "y")},
            **{"frozen": random(rng, 5, 4, grad=False), "rows": torch.tensor([4, 0, 0]), "flag": None},
        }
        factors = [random(rng, 5, 4, grad=False), random(rng, 3, grad=False)]
        none = [0 * factor for factor in factors]
        suspects = {
            "only the first result's gradient is used": [factors[0], none[1]],
            "only the last result's gradient is used": [none[0], factors[1]],
            "the gradients of the results are taken to be 1": [torch.ones(5, 4), torch.ones(3)],
        }
        line = "run(mixed, a, power, b, names, frozen, rows, flag)"
        hint = "one gradient for each argument, None for what is no tensor, in the arguments' order"
        made = self.check(line, factors, args=args, suspects=suspects, hint=hint)
        results = assert_tuple("the result", made.results, ("product", "sums", "positions"))
        exact, plain = mixed(**copies(args, torch.float64)), mixed(**args)
        for name, got, want, rounded in zip(("product", "sums"), results, exact, plain, strict=False):
            assert_close(name, got, numbers(want), plain=numbers(rounded), dtype=torch.float32)
        require(torch.equal(results[2], plain[2]), "the third result, of integers, is not what fn returns")
        require(made.gradients[-1][4] is None, "an argument that needs no gradient was given one")

    def test_result_that_the_loss_leaves_out(self, rng):
        line = "run(lambda a, b: (a * b, torch.sin(a) + b**2), a, b)"
        args, factor = {"a": random(rng, 4), "b": random(rng, 4)}, random(rng, 4, grad=False)
        made = self.passes(line, [None, factor], **args)
        hint = "the gradient given for a result may be zeros, or None; the other results count all the same"
        found = made.gradients[-1] if made.gradients else None
        assert_gradients(found, plainly(line), args, [torch.zeros(4), factor], hint=hint, lost=hint)

    def test_argument_in_the_middle_of_a_graph(self, rng):
        line = "(lambda hidden: run(lambda h, o: torch.sin(h) * o, hidden, other * 2) + hidden)(torch.exp(x))"
        args, hint = {"x": random(rng, 6), "other": random(rng, 6)}, "fn runs again on arguments that are not detached"
        try:
            self.check(line, [random(rng, 6, grad=False)], args=args, hint=f"{hint}, so that gradients flow past them")
        except RuntimeError as raised:
            if "second time" not in str(raised):
                raise
            told = "backward went on from the argument into the graph it came from, which is not its business"
            raise AssertionError(f"{told}\nUsual cause: {hint}") from None

    def test_one_tensor_given_twice(self, rng):
        hint = "each place of an argument has a gradient of its own; autograd adds them"
        line = "run(lambda a, b: a * torch.sin(b), x, x)"
        self.check(line, [random(rng, 5, grad=False)], args={"x": random(rng, 5)}, hint=hint)

    def test_parameters_inside(self, rng):
        args = {"x": random(rng, 6, 4), "weight": random(rng, 3, 4), "bias": random(rng, 3), "scale": random(rng, 3)}
        line = "run(lambda x: torch.tanh(F.linear(x, weight, bias)) * scale, x)"
        hint = "torch.autograd.grad(results, args) finds the arguments' gradients only, and not those of what is "
        hint += "inside fn; torch.autograd.backward finds all"
        self.check(line, [random(rng, 6, 3, grad=False)], args=args, hint=hint)

    def test_arguments_are_left_alone(self, rng):
        args = {"x": random(rng, 5), "data": random(rng, 5, grad=False)}
        with left_alone(args, args.values()):
            made = self.passes("run(lambda x, data: torch.sin(x) * data, x, data)", **args)
        for name, needs, needs_now in zip(args, (True, False), made.needs, strict=True):
            told = f"requires_grad of {name}, an argument, was changed to {not needs}"
            require(needs_now is needs, f"{told}\nThe caller's tensors stay as they are: work on a detached one")
        require(made.gradients, "the result does not require grad though the argument does")
        require(made.gradients[-1][1] is None, "data, an argument that requires no grad, has a .grad after backward")

    def test_fn_runs_once_in_each_pass(self, rng):
        made = self.passes("run(deep, x)", x=random(rng, 4, 4))
        assert_ran(made.calls, 1, "in the forward pass")
        assert_ran(made.all_calls, 2, "in both passes together")

    @pytest.mark.kind("small")
    @pytest.mark.parametrize("n_arguments", [1, 3])
    def test_keeps_its_arguments_only(self, rng, n_arguments):
        line = "run(lambda *args: deep(sum(torch.sin(arg) for arg in args)), *args)"
        size = 64 * 256 * 4
        kept_bytes, _ = kept(self.TASK, line, {"args": [random(rng, 64, 256) for _ in range(n_arguments)]})
        why = f"fn on its own keeps {8 + n_arguments} tensors of {size:,} bytes; here only the arguments may stay"
        if kept_bytes <= (n_arguments + 1) * size:
            why = "a copy of an argument costs as much as an activation: keep the tensors themselves"
        name = "what the forward pass keeps, besides arguments and result,"
        assert_at_most(name, kept_bytes, ROOM_FOR_STATE, hint=why)

    @pytest.mark.kind("small")
    def test_recomputed_activations_are_given_back(self, rng):
        args, size = {"x": random(rng, 64, 256)}, 64 * 256 * 4
        line = "run(deep, run(deep, run(deep, run(deep, run(deep, run(deep, x))))))"
        made = self.check(line, [torch.ones(64, 256)], args=args, options={"measured": True})
        hint = "six functions of 8 steps: the 6 results between them and the 8 activations of one function at a time\n"
        hint += "Usual cause: something holds on to what was recomputed (plain autograd keeps all 48)"
        peak = math.ceil(made.peak_bytes / size)
        assert_at_most("the peak of both passes", peak, with_room(6 + 8), unit="activations", hint=hint)

    @pytest.mark.kind("small")
    @pytest.mark.outside(mib=16)
    def test_step_seen_from_outside(self, outside):
        assert_right_within(outside, far_step, self.TASK)

    def test_no_arithmetic_for_gradients_nobody_needs(self, rng):
        args = {"x": random(rng, 32, 32), "frozen": random(rng, 32, 32, grad=False)}
        made = self.check("run(torch.matmul, x, frozen)", [torch.ones(32, 32)], args=args, options={"measured": True})
        require(made.flops, "no matrix product was seen, though fn is one")
        hint = "two forward, one for the gradient of x: that of `frozen`, which nobody needs, is computed as well"
        n_products = made.flops // (2 * 32**3)
        assert_at_most("the arithmetic of both passes of x @ frozen", n_products, 3, unit="products", hint=hint)

    def test_dropout_draws_the_same_mask_again(self, rng):
        x = above_one(rng, 40, 50).requires_grad_()
        line = "(torch.rand(2), run(lambda x: F.dropout(F.dropout(x, 0.5), 0.3), x), torch.rand(3))[1]"
        made = self.passes(line, options={"seed": draw_seed(rng)}, x=x)
        torch.set_rng_state(made.before[0])
        anew = F.dropout(F.dropout(torch.ones_like(x), 0.5), 0.3)
        hint = "the state of the generator is to be taken before fn runs, and set before it runs again"
        assert_mask("two dropouts", made, x, hint=hint, suspects={"backward draws a new mask": numbers(anew)})

    def test_generator_goes_on_as_if_nothing_was_recomputed(self, rng):
        x, seed = random(rng, 8, 8), draw_seed(rng)
        torch.manual_seed(seed)
        F.dropout(x, 0.5)
        after_plain = torch.get_rng_state()
        made = self.passes(ONE_DROPOUT, options={"seed": seed}, x=x)
        told = "after the forward pass the random generator is not where one run of fn leaves it"
        cause = "the state was put back, or set, in the forward pass"
        require(torch.equal(made.before[0], after_plain), f"{told}\nUsual cause: {cause}")
        made = self.passes(TWO_DROPOUTS, options={"seed": seed}, x=x)
        first, second = made.results
        require(not torch.equal(first, second), "two calls draw the same dropout mask: a fixed seed was set")
        told = "backward leaves the random generator changed: what draws next repeats, or skips, numbers"
        cause = "the state set for the second run is not put back"
        require(same_states(made.before, made.after), f"{told}\nUsual cause: {cause}")

    @pytest.mark.kind("robust")
    def test_generator_after_an_error(self, rng):
        error, same = asked("fails_when_run_again", self.TASK, random(rng, 8))
        require(error == "the second run", f"fn raised a KeyError when it was run again; what came out is {error}")
        hint = "put it back in every case: torch.random.fork_rng, or `try … finally`"
        require(same, f"fn raised when it was run again, and the random generator stays changed\nUsual cause: {hint}")

    def test_several_in_one_graph(self, rng):
        hint = "what one call keeps is overwritten by the next: it belongs into ctx"
        line = "run(torch.sin, x) * run(torch.exp, x)"
        self.check(line, [random(rng, 6, grad=False)], args={"x": random(rng, 6)}, hint=hint)

    def test_argument_handed_through(self, rng):
        args = {"x": random(rng, 4), "y": random(rng, 4)}
        factors = [random(rng, 4, grad=False), random(rng, 4, grad=False)]
        hint = "a result may be an argument as it came: without a grad_fn in the second run, it requires grad "
        hint += "all the same"
        self.check("run(lambda x, y: (x, x * y), x, y)", factors, args=args, hint=hint)

    def test_nested(self, rng):
        args, factors, seed = {"x": random(rng, 6)}, [random(rng, 6, grad=False)], draw_seed(rng)
        hint = "a checkpointed function calls checkpointed ones: nothing may be kept outside of ctx"
        self.check("run(lambda x: run(torch.sin, run(torch.exp, x)) * x, x)", factors, args=args, hint=hint)
        line = "run(lambda x: run(lambda h: F.dropout(torch.sin(h), 0.5), F.dropout(x, 0.3)) * x, x)"
        args, factors = {"x": random(rng, 60)}, [random(rng, 60, grad=False)]
        made = self.passes(line, factors, {"seed": seed}, **args)
        torch.manual_seed(seed)
        first, second = (F.dropout(torch.ones(60), p).double() for p in (0.3, 0.5))
        hint = "a dropout two levels down draws another mask: each level sets the generator's state, and puts it back"

        def masked(args):
            x = args["x"]
            return torch.sin(x * first.to(x)) * second.to(x) * x

        assert_gradients(made.gradients and made.gradients[-1], masked, args, factors, hint=hint, lost=hint)

    def test_backward_twice(self, rng):
        x = random(rng, 5)
        made = self.passes("run(deep, x)", [random(rng, 5, grad=False)], {"n_backward": 2}, x=x)
        require(made.calls, "fn was not run in the forward pass")
        for gradient in made.gradients or [[None]]:
            require(gradient[0] is not None, "the gradient of x is None in one of two backward passes")
        want, again = (numbers(gradient[0]) for gradient in made.gradients)
        hint = "the second backward starts from the saved arguments again, detached afresh"
        suspects = {"the first backward's gradient is added to it": 2 * want}
        assert_close("the gradient of x in a second backward", again, want, plain=want, suspects=suspects, hint=hint)

    def test_argument_changed_before_backward(self, rng):
        args = {"x": random(rng, 5), "data": random(rng, 5, grad=False)}
        line = "run(lambda x, data: x * data, x, data)"
        self.passes(line, **args)
        when = "when an argument was changed in place before backward, which would give a wrong gradient"
        try:
            assert_raises(RuntimeError, lambda: self.passes(f"({line}, data.add_(1))[0]", **args), when=when)
        except AssertionError as error:
            usual = "tensors kept as attributes of ctx. ctx.save_for_backward notices such changes"
            raise AssertionError(f"{error}\nUsual cause: {usual}") from None

    @pytest.mark.filterwarnings("ignore:Using backward")
    @pytest.mark.parametrize("by", ["grad", "backward"])
    def test_second_derivatives(self, rng, by):
        """Right, or an error: of y = w·x² and the penalty (∂y/∂x)²."""
        x, w = (float(value) for value in rng.uniform(1, 2, 2))
        gradient, want = asked("penalised", self.TASK, by, x, w), 2 * w * x + 8 * w**2 * x
        told = f"the gradient of y + (∂y/∂x)², y = w·x², is {gradient}, expected {want:.6g} or a RuntimeError"
        cause = "with create_graph=True, grad mode on, a backward that leaves no graph of its own must raise"
        if gradient is not None:
            require_at_most("a penalty's error", abs(gradient - want), 1e-3, f"{told}\nUsual cause: {cause}")

    def test_torch_autograd_grad(self, rng):
        """Right, or an error; in neither case has a parameter that was not asked for a gradient."""
        x, w = random(rng, 4), random(rng, 4)
        gradient, of_parameter = asked("asked_by_grad", self.TASK, x, w)
        told = "torch.autograd.grad(result, x) has filled the .grad of a parameter inside fn, which nobody asked for"
        cause = "backward cannot tell whom it works for; torch.autograd._is_checkpoint_valid() can: where it is False, "
        require(of_parameter is None, f"{told}\nUsual cause: {cause}raise a RuntimeError")
        if gradient is not None:
            assert_close("the gradient of x by torch.autograd.grad", gradient, numbers(w), plain=numbers(w))

    def test_autocast(self, rng):
        dtypes, gradient, want = asked("under_autocast", self.TASK, random(rng, 6, 5), random(rng, 5, 4, grad=False))
        hint = "take the autocast state before fn runs, and set it (torch.autocast) when fn runs again"
        assert_equal("the dtypes that fn computes in, in the two passes,", dtypes, ["torch.bfloat16"] * 2, hint=hint)
        assert_close("the gradient of x under autocast", gradient, numbers(want), plain=numbers(want), hint=hint)

    def test_no_grad(self, rng):
        x = random(rng, 64, 256)
        with torch.no_grad():
            kept_bytes, n_runs = kept(self.TASK, "run(deep, x)", {"x": x})
            made = self.passes("run(deep, x)", x=x)
        require(not made.requires_grad, "under torch.no_grad() the result requires grad")
        assert_ran(n_runs + made.all_calls, 2, "in two calls under torch.no_grad()")
        assert_at_most("what a call under torch.no_grad() keeps", kept_bytes, 0, hint="there will be no backward pass")

    @pytest.mark.gpu
    def test_dropout_on_cuda(self, rng):
        x = above_one(rng, 40, 50).cuda().requires_grad_()
        made = self.passes(TWO_DROPOUTS, options={"seed": draw_seed(rng)}, x=x)
        hint = "a GPU has a random generator of its own: torch.cuda.get_rng_state"
        assert_mask("two dropouts on CUDA", made, x, hint=hint)
        require(same_states(made.before, made.after), "backward leaves the GPU's generator changed")


class TestCheckpointFunction(Recomputation):
    """The autograd Function."""

    TASK = "Checkpoint"

    def test_is_a_function_of_its_own(self, rng):
        name, is_torchs, _ = node("torch.sin", [random(rng, 3)])
        told = f"the result's grad_fn is {name}, expected CheckpointBackward"
        require(name == "CheckpointBackward", f"{told}: the gradient is to come from Checkpoint's own backward")
        require(not is_torchs, "Checkpoint is PyTorch's own: write the two passes yourself")

    def test_saves_the_arguments_themselves(self, rng):
        x, data, rows = random(rng, 6, 3), random(rng, 3, grad=False), torch.tensor([2, 0])
        fn = "lambda x, n, rows, data: torch.sin(x)[rows] * data * n"
        _, _, saved = node(fn, [x, 2, rows, data])
        told = f"ctx.save_for_backward was given {len(saved)} tensors that are not the 3 tensor arguments"
        require(set(saved) == {0, 2, 3}, f"{told}\nExpected: the arguments themselves, and neither copies nor results")

    def test_no_argument_requires_grad(self, rng):
        x = random(rng, 4, grad=False)
        made = self.passes("run(lambda x, n: torch.sin(x) * n, x, 3)", x=x)
        assert_ran(made.calls, 1, "in the forward pass")
        want = numbers(torch.sin(x) * 3)
        assert_close("the result for arguments that require no grad", made.results, want, plain=want)


class TestCheckpoint(Recomputation):
    """The function around it."""

    TASK = "checkpoint"

    @pytest.mark.parametrize("given", ["data", "nothing", "a number", "token ids"])
    def test_parameters_when_no_argument_requires_grad(self, rng, given):
        ids = torch.tensor([3, 0, 0, 1, 2, 3])
        args = {"data": random(rng, 6, 4, grad=False), "weight": random(rng, 4, 3), "ids": ids}
        line = {
            "data": "run(lambda data: torch.tanh(data @ weight), data)",
            "nothing": "run(lambda: torch.tanh(data @ weight))",
            "a number": "run(lambda n: torch.tanh(data @ weight * n), 0.5)",
            "token ids": "run(lambda ids: torch.tanh(F.embedding(ids, weight)), ids)",
        }[given]
        hint = "no argument requires grad, so autograd never calls backward: hand it one that does"
        made = self.check(line, [random(rng, 6, 3, grad=False)], args=args, hint=hint, lost=hint)
        assert_ran(made.all_calls, 2, "in both passes together")
        untouched = made.gradients[-1][0] is None and not any(needs for needs in (made.needs[0], made.needs[2]))
        require(untouched, "data, which requires no grad, was made to require it")

    def test_no_arithmetic_for_data(self, rng):
        args = {"data": random(rng, 32, 32, grad=False), "weight": random(rng, 32, 32)}
        line = "run(lambda data: data @ weight, data)"
        made = self.check(line, [torch.ones(32, 32)], args=args, options={"measured": True})
        hint = "two forward, one for the gradient of the weight: data, which requires no grad, was made to require one"
        n_products = made.flops // (2 * 32**3)
        assert_at_most("the arithmetic of both passes of data @ weight", n_products, 3, unit="products", hint=hint)

    @pytest.mark.kind("small")
    def test_keeps_nothing_when_no_argument_requires_grad(self, rng):
        args = {"data": random(rng, 64, 256, grad=False), "weight": random(rng, 256)}
        kept_bytes, _ = kept(self.TASK, "run(lambda data: deep(data * weight), data)", args)
        hint = "is something added to an argument, so that it requires grad? The sum is a new tensor, and is kept"
        assert_at_most("what the forward pass keeps for a parameter inside fn", kept_bytes, ROOM_FOR_STATE, hint=hint)

    def test_nothing_requires_grad(self, rng):
        data, weight = random(rng, 5, grad=False), random(rng, 5)
        made = self.passes("run(lambda x, n: (torch.sin(x) * n, x > 0), data, 2)", [weight], data=data)
        assert_tuple("the result", made.results, ("sine", "positive"))
        want = numbers(torch.sin(data) * 2)
        require(made.of_factors[0] is not None, "the gradient of a weight behind a function without any is None")
        hint = "backward may find no result that requires grad, and has nothing to do then"
        name = "the gradient of a weight behind a function without any"
        assert_close(name, made.of_factors[0], want, plain=want, hint=hint)

    def test_several_results_when_no_argument_requires_grad(self, rng):
        args = {"data": random(rng, 5, grad=False), "weight": random(rng, 5)}
        factors = [random(rng, 5, grad=False), random(rng, 5, grad=False)]
        line = "run(lambda data: (data * weight, torch.sin(weight) + data), data)"
        assert_tuple("the result", self.passes(line, factors, **args).results, ("product", "sum"))
        suspects = {"only the first result's gradient is used": [factors[0], torch.zeros(5)]}
        self.check(line, factors, args=args, suspects=suspects)

    def test_is_not_borrowed(self, rng):
        x = random(rng, 3)
        called = asked("borrowed", self.TASK, x)
        require(not called, "torch.utils.checkpoint was called: write checkpoint with your own Function")
        self.check("run(torch.sin, x)", [torch.ones(3)], args={"x": x})


@probe
def sequence_passes(kind, parameters, segments, x, **options):
    """As `passes`, for `checkpoint_sequential`; moreover the functions' numbers in the order in which they ran."""
    ran = []
    functions, leaves = sequence(kind, parameters, ran)
    told = watch_passes(lambda: checkpoint_sequential(functions, segments, x), [x, *leaves], ran=ran, **options)
    return told | {"ran": ran}


@probe
def kept_by_sequence(kind, parameters, segments, x):
    """The bytes besides x and the result that the forward pass of `checkpoint_sequential` keeps."""
    functions, _ = sequence(kind, parameters, [])
    return kept_by_forward(checkpoint_sequential, functions, segments, x)


SPLITS = [(10, 4), (9, 4), (7, 3), (5, 5), (6, 1), (1, 1), (16, 4), (11, 6)]


class TestCheckpointSequential:
    """A chain, cut into segments."""

    @pytest.mark.parametrize(("n", "segments"), SPLITS)
    def test_result_and_gradients(self, rng, n, segments):
        chain, x, factors = Chain(sequence_passes, rng, n), random(rng, 5, 6), [random(rng, 5, 6, grad=False)]
        made, wrong = chain.passes(segments, x, factors), split_suspects(chain.shifts, segments)
        assert_close(
            f"the result of {n} functions in {segments} segments",
            made.results,
            numbers(chained(x.double(), *(shift.double() for shift in chain.shifts))),
            plain=numbers(chained(x, *chain.shifts)),
            dtype=torch.float32,
            suspects={cause: numbers(chained(x, *shifts)) for cause, shifts in wrong.items()},
        )
        hint = "each segment's functions are fixed when it is checkpointed. A lambda made in a loop sees the last ones"
        chain.assert_gradients(made, x, factors, hint=hint, lost="what one segment hands to the next was detached")

    @pytest.mark.parametrize(("n", "segments"), SPLITS)
    def test_every_function_runs_once_more(self, rng, n, segments):
        made = Chain(sequence_passes, rng, n).passes(segments, random(rng, 5, 6))
        forward = made.ran[: made.n_forward]
        assert_equal("the order in which the functions run in the forward pass", forward, list(range(n)))
        extra = sorted(made.ran[n:])
        missing = [i for i in range(n) if i not in extra]
        hint = ""
        if missing:
            span = f"{missing[0]} … {missing[-1]}" if len(missing) > 1 else str(missing[0])
            hint = f"functions {span} are not recomputed: their segment is not checkpointed"
        elif len(extra) > n:
            hint = "a function runs more than once more: is a segment checkpointed within a checkpointed one?"
        name = f"the functions that run again in the backward pass ({n} in {segments} segments)"
        assert_equal(name, extra, list(range(n)), hint=hint)

    @pytest.mark.parametrize(("n", "segments"), SPLITS)
    def test_segments_are_contiguous_and_equal(self, rng, n, segments):
        again = Chain(sequence_passes, rng, n).passes(segments, random(rng, 5, 6)).ran[n:]
        starts = [i for i in range(len(again)) if i == 0 or again[i] != again[i - 1] + 1]
        lengths = [stop - start for start, stop in itertools.pairwise([*starts, len(again)])]
        asked = f"{n} functions in {segments} segments"
        told = f"{asked}: the backward pass recomputes neighbours in runs of the lengths {lengths}"
        require(len(lengths) == segments, f"{told}\nUsual cause: {why_other_number(n, segments, lengths)}")
        told = f"{asked}: the lengths are {lengths}, which differ by more than 1"
        cause = "what the division leaves over all goes to one segment"
        require(max(lengths) - min(lengths) <= 1, f"{told}\nUsual cause: {cause}")

    def test_first_parameters_when_x_is_data(self, rng):
        chain, x = Chain(sequence_passes, rng, 6), random(rng, 5, 6, grad=False)
        factors = [random(rng, 5, 6, grad=False)]
        made = chain.passes(3, x, factors)
        told = "with x that requires no grad the result requires none, though the parameters do"
        cause = "Checkpoint.apply asks its arguments only: checkpoint handles that"
        require(made.requires_grad, f"{told}\nUsual cause: {cause}")
        hint = "x requires no grad, so the first segment's backward is never called: checkpoint handles that"
        chain.assert_gradients(made, x, factors, hint=hint, lost=hint)

    def test_dropout(self, rng):
        x = above_one(rng, 30, 20).requires_grad_()
        made = SimpleNamespace(**sequence_passes("dropout", [0.2] * 5, 2, x, seed=draw_seed(rng)))
        hint = "every segment draws its own masks again: keep the generator's state with each"
        assert_mask("five dropouts", made, x, hint=hint)
        require(same_states(made.before, made.after), "backward leaves the random generator changed")

    def test_a_module_is_a_sequence_too(self, rng):
        x, factors = random(rng, 5, 6), [random(rng, 5, 3, grad=False)]
        parameters = [random(rng, *shape) for shape in ((4, 6), (4,), (3, 4), (3,))]
        made = SimpleNamespace(**sequence_passes("module", parameters, 2, x, factors=factors))
        args = dict(zip(("x", "weight_0", "bias_0", "weight_2", "bias_2"), [x, *parameters], strict=True))
        plain = plainly("F.linear(torch.tanh(F.linear(x, weight_0, bias_0)), weight_2, bias_2)")
        assert_gradients(made.gradients and made.gradients[-1], plain, args, factors)

    @pytest.mark.kind("small")
    @pytest.mark.parametrize(("n", "segments"), [(64, 8), (48, 3), (36, 12), (16, 16)])
    def test_peak_is_the_model_s(self, rng, n, segments):
        chain, x = Chain(sequence_passes, rng, n, width=1), random(rng, 64, 256)
        made = chain.passes(segments, x, measured=True)
        chain.assert_gradients(made, x, [torch.ones(64, 256)])
        peak = math.ceil(made.peak_bytes / (64 * 256 * 4))
        hint = f"{segments} kept and ⌈{n} / {segments}⌉ recomputed, and room for gradients; without checkpoints {n}"
        name = f"the peak of {n} functions in {segments} segments"
        assert_at_most(name, peak, with_room(segments + -(-n // segments)), unit="activations", hint=hint)

    @pytest.mark.kind("small")
    def test_between_the_passes_only_segments_inputs(self, rng):
        kept_bytes = kept_by_sequence("chain", Chain(sequence_passes, rng, 12, width=1).shifts, 4, random(rng, 64, 256))
        limit = 4 * 64 * 256 * 4 + 4 * ROOM_FOR_STATE  # as much as one input more is left for bookkeeping
        hint = "x is the caller's, so three inputs of segments remain; plain autograd keeps twelve activations"
        assert_at_most("what 12 functions in 4 segments keep between the passes", kept_bytes, limit, hint=hint)

    @pytest.mark.kind("small")
    @pytest.mark.outside(mib=16)
    def test_step_seen_from_outside(self, outside):
        assert_right_within(outside, far_sequence, 48, 6)

    @pytest.mark.kind("refuses")
    @pytest.mark.parametrize(("n", "segments"), [(4, 0), (4, 5), (4, -1)])
    def test_impossible_segments(self, rng, n, segments):
        call = lambda: tuple(checkpoint_sequential([torch.tanh] * n, segments, random(rng, 5, 6)).shape)  # noqa: E731
        when = f"for {segments} segments of {n} functions"
        assert_raises(ValueError, call, when=when, mentions=(str(n), str(segments)))


class TestPlanSegments:
    """⌈√n⌉."""

    @pytest.mark.parametrize("layers", [23, 17, 16, 100, 1, 2, 3, 4, 5, 12, 24, 37, 96, 101, 1000, 9999, 10_001])
    def test_root_rounded_up(self, layers):
        want, suspects = roots_above(layers)[0], plan_suspects(layers)
        assert_equal(f"plan_segments({layers})", plan_segments(layers), want, suspects=suspects)

    def test_every_small_chain(self):
        for layers in range(1, 150):
            assert_equal(f"plan_segments({layers})", plan_segments(layers), roots_above(layers)[0])

    def test_layers_drawn_at_random(self, rng):
        for layers in map(int, rng.integers(400, 1_000_000, 20)):
            assert_equal(f"plan_segments({layers})", plan_segments(layers), roots_above(layers)[0])

    @pytest.mark.parametrize("layers", [5, 49])
    def test_is_a_whole_number(self, layers):
        got = plan_segments(layers)
        assert_type(f"plan_segments({layers})", got, int, "an int, to be used as a count")

    @pytest.mark.kind("refuses")
    @pytest.mark.parametrize("layers", [0, -4])
    def test_no_layers(self, layers):
        assert_raises(ValueError, lambda: plan_segments(layers), when=f"for {layers} layers", mentions=("layers",))


class TestCheckpointCost:
    """The model of memory and work."""

    PARTS = ("peak_activations", "extra_forwards")

    def cost(self, layers, segments):
        """What checkpoint_cost gives, two values."""
        return assert_tuple("checkpoint_cost's result", checkpoint_cost(layers, segments), self.PARTS)

    @pytest.mark.parametrize(
        ("layers", "segments"),
        [(96, 8), (100, 7), (100, 10), (16, 4), (17, 4), (12, 1), (12, 12), (1, 1), (50, 8), (9, 7)],
    )
    def test_peak_and_work(self, layers, segments):
        got, longest = self.cost(layers, segments), -(-layers // segments)
        peaks, extras = cost_suspects(layers, segments)
        call = f"checkpoint_cost({layers}, {segments})"
        if got == (layers, segments + longest) and layers != segments + longest:
            raise AssertionError(f"{call} gives the two numbers in the opposite order: peak_activations comes first")
        assert_equal(f"peak_activations of {call}", got[0], segments + longest, suspects=peaks)
        assert_equal(f"extra_forwards of {call}", got[1], layers, suspects=extras)

    def test_every_small_chain(self):
        for layers in range(1, 20):
            for segments in range(1, layers + 1):
                want = (segments + -(-layers // segments), layers)
                assert_equal(f"checkpoint_cost({layers}, {segments})", self.cost(layers, segments), want)

    def test_chains_drawn_at_random(self, rng):
        for layers in map(int, rng.integers(40, 10_000, 20)):
            segments = int(rng.integers(1, layers + 1))
            want = (segments + -(-layers // segments), layers)
            assert_equal(f"checkpoint_cost({layers}, {segments})", self.cost(layers, segments), want)

    def test_are_whole_numbers(self):
        for name, value in zip(self.PARTS, self.cost(20, 5), strict=True):
            assert_type(name, value, int, "an int: activations and layers are counted")

    @pytest.mark.kind("refuses")
    @pytest.mark.parametrize(("layers", "segments"), [(0, 0), (0, 1), (-3, 1), (5, 0), (5, 6), (5, -1)])
    def test_impossible(self, layers, segments):
        named = "layers" if layers < 1 else "segments"
        when = f"for {segments} segments of {layers} layers"
        assert_raises(ValueError, lambda: checkpoint_cost(layers, segments), when=when, mentions=(named,))
