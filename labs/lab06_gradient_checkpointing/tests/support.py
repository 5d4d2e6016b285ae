"""Lab 06's inputs, plain autograd as the reference, and comparisons of what recomputation must give."""

import math

import numpy as np
import torch

from labkit.testing.compare import assert_at_most, assert_close, assert_equal, require

NO_WAY_BACK = "no graph leads from the result to it: is Checkpoint.apply given one that requires grad, grad mode on?"


def random(rng, *shape, grad=True, dtype=torch.float32):
    """Standard-normal numbers, a leaf that requires grad or not."""
    return torch.from_numpy(rng.standard_normal(shape)).to(dtype).requires_grad_(grad)


def above_one(rng, *shape):
    """Numbers by which a dropout's result can be divided to see its mask."""
    return torch.from_numpy(rng.uniform(1, 2, shape)).float()


def draw_seed(rng):
    return int(rng.integers(2**31))


def numbers(tensor):
    """The tensor as a NumPy array; of bfloat16, which NumPy lacks, in float32."""
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy()


def copies(args, dtype):
    """New leaves with the same numbers, those of a floating-point dtype in `dtype`; `args` are by name."""
    return {
        name: x.detach().to(dtype if x.is_floating_point() else x.dtype).clone().requires_grad_(x.requires_grad)
        if isinstance(x, torch.Tensor)
        else x
        for name, x in args.items()
    }


def gradients(fn, args, factors, dtype=torch.float64):
    """The gradients of `fn(args)` by plain autograd, in `dtype`; None where an argument has none.

    The loss is the sum of the floating-point results, each times its factor.
    """
    leaves = copies(args, dtype)
    results = fn(leaves)
    every = [x for x in (results if isinstance(results, tuple) else (results,)) if x.is_floating_point()]
    sum((x * factor.to(x)).sum() for x, factor in zip(every, factors, strict=False)).backward()
    return {name: leaf.grad if isinstance(leaf, torch.Tensor) else None for name, leaf in leaves.items()}


def assert_gradients(got, fn, args, factors, *, mistakes=None, hint="", lost=""):
    """Compare `got`, a gradient for each of `args`, with plain autograd's; `got` is None where there was no graph.

    `mistakes` are gradients that usual mistakes lead to, `lost` is why a gradient may be missing.
    """
    own = next(x.dtype for x in args.values() if isinstance(x, torch.Tensor) and x.is_floating_point())
    exact, baseline = (gradients(fn, args, factors, dtype) for dtype in (torch.float64, own))
    for i, (name, want) in enumerate(exact.items()):
        if want is None:
            continue
        called, found = f"the gradient of {name.replace('_', ' ')}", got[i] if got else None
        require(found is not None, f"{called} is None\nUsual cause: {lost or hint}")
        known = {text: numbers(each[name]) for text, each in (mistakes or {}).items() if each[name] is not None}
        rounded = numbers(baseline[name])
        assert_close(called, found, numbers(want), baseline=rounded, dtype=args[name].dtype, mistakes=known, hint=hint)


def assert_mask(name, made, x, **options):
    """Compare the gradient of dropouts with what they multiplied `x` by."""
    want = sum(map(numbers, made.results)) if isinstance(made.results, tuple) else numbers(made.results)
    require(0 in np.asarray(want), f"nothing is dropped by {name}: fn was not run")
    require(made.gradients, f"the gradient of x is None\nUsual cause: {NO_WAY_BACK}")
    name = f"the gradient of {name}, which is the mask,"
    assert_close(name, made.gradients[-1][0], want / numbers(x), baseline=want / numbers(x), **options)


def same_states(some, others):
    return all(torch.equal(one, other) for one, other in zip(some, others, strict=True))


def assert_ran(calls, times, when):
    hint = "fn is called an extra time, to look at its results"
    if calls < times:
        hint = "the forward pass kept what backward needs, instead of running fn again"
    assert_equal(f"the number of times fn has run {when}", calls, times, hint=hint)


def assert_three_products(name, flops, *, hint):
    """Fail where both passes of a product of two 32 × 32 matrices take more arithmetic than three such products."""
    require(flops, "no matrix product was seen, though fn is one")
    n_products = flops // (2 * 32**3)
    assert_at_most(f"the arithmetic of both passes of {name}", n_products, 3, unit="products", hint=hint)


def with_room(activations):
    """How many activations may be alive where that many must be: half as many more, and three for gradients."""
    return activations + activations // 2 + 3


def in_activations(n_bytes, x):
    """How many tensors of x's size that is, rounded up."""
    return math.ceil(n_bytes / x.nbytes)


def assert_right_within(memory_limit, step, *args):
    """Within the memory bound of the test's mark, a step of 48 tanh in all has the right result and gradient."""
    x = torch.linspace(-1, 1, 2**17).reshape(256, 512)
    step(*args, torch.zeros(1))  # imports at first use are not the step's memory
    got = memory_limit(step, *args, x)
    y, gradient = x.double(), torch.ones(256, 512, dtype=torch.float64)
    for _ in range(48):
        y = torch.tanh(y)
        gradient *= 1 - y**2
    close = all(torch.allclose(a.double(), b, 1e-3, 1e-6) for a, b in zip(got, (y, gradient), strict=True))
    require(close, "memory stayed within the bound, but the result or the gradient of 48 steps on 0.5 MiB is wrong")
