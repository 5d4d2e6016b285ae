"""What every right checkpointing.py does, and no wrong one."""

import contextlib
import itertools
from functools import partial

import pytest
import torch
from checkpointing import Checkpoint, StrictCheckpoint, checkpoint, checkpoint_sequential
from torch.nn.functional import dropout

from labkit.meters.arrays import measure_arrays
from labkit.meters.products import ProductMeter
from labkit.meters.tensors import kept_by_forward, measure_peak

ACTIVATION = 4 * 64 * 256
STATE = 16 * 1024  # room for the random generator's state


def deep(*args):
    """Eight steps, each of which saves a tensor of its argument's size."""
    x = sum(arg.sin() for arg in args)
    for _ in range(7):
        x = x.tanh()
    return x


def mixed(a, power, b, names, frozen, rows, flag):
    assert (names, flag) == (("x", 2), None)
    product = a**power @ b
    return product * frozen, a[rows].sin().sum(-1) * b.sum(), product.argmax(-1)


# each of a way to call a function, and of x, w (which need gradients) and data (which does not)
FUNCTIONS = [
    lambda run, x, w, data: run(torch.sin, hidden := x.exp()) + hidden,
    lambda run, x, w, data: run(torch.sin, x) * run(torch.exp, x) * w,
    lambda run, x, w, data: run(lambda x: run(torch.sin, run(torch.exp, x)) * x, x) * w,
    lambda run, x, w, data: run(lambda x, w: (x, x * w), x, w),
    lambda run, x, w, data: run(lambda a, b: a * b.sin(), x, x),
    lambda run, x, w, data: run(lambda x: (x.exp(), x.sin()), x)[1] * w,
    lambda run, x, w, data: run(lambda x, w: (x * w, w.detach() * 2), x, w),
    lambda run, x, w, data: run(lambda x: ((x * w).tanh(),), x),
    lambda run, x, w, data: run(mixed, x, 2, w.T, ("x", 2), data @ data.T, torch.tensor([3, 0, 0]), None),
    lambda run, x, w, data: (torch.rand(2), run(lambda x: dropout(dropout(x), 0.3), x), torch.rand(3))[1],
    lambda run, x, w, data: run(lambda x: run(lambda h: dropout(h.sin()), dropout(x)) * x, x),
    lambda run, x, w, data: tuple(run(lambda x: dropout(x * w), x) for _ in range(2)),
    lambda run, x, w, data: run(lambda x, data: x @ data.T, x, data),
]


def no_gradient(run, x, w, data):
    return run(lambda data: (data.sin(), data > 0), data)[0] * w


WITHOUT_ARGUMENTS = [  # that need a gradient
    lambda run, x, w, data: run(lambda data: (data * w).tanh(), data),
    lambda run, x, w, data: run(lambda: (data * w).tanh()),
    lambda run, x, w, data: run(lambda n: ((data * w).tanh() * n, w * 2), 0.5),
    lambda run, x, w, data: run(lambda ids: w[ids].tanh(), torch.tensor([3, 0, 0])),
    no_gradient,
]


def followed(run, function):
    """The results, the states of the random generator, the gradients of two backward passes, and the products."""
    torch.manual_seed(11)
    draw = torch.Generator().manual_seed(1)
    x, w, data = (torch.randn(4, 6, generator=draw, dtype=torch.float64) for _ in range(3))
    x.requires_grad_(), w.requires_grad_()
    with ProductMeter() as products:
        results = function(run, x, w, data)
        every = results if isinstance(results, tuple) else (results,)
        loss = sum((each * torch.arange(1.0, 1 + each.numel()).view(each.shape)).sum() for each in every)
        states = [torch.get_rng_state()]
        for _ in range(2):
            loss.backward(retain_graph=True)
        states.append(torch.get_rng_state())
    assert data.grad is None and not data.requires_grad
    return results, states, (x.grad, w.grad), products.flops


def check(run, functions):
    calls = []

    def counted(fn, *args):
        calls.append([])
        here = calls[-1]
        return run(lambda *args: here.append(torch.is_grad_enabled()) or fn(*args), *args)

    for function in functions:
        calls.clear()
        (got, states, *gradients, flops), (want, plain_states, *plain, plain_flops) = (
            followed(each, function) for each in (counted, lambda fn, *args: fn(*args))
        )
        assert isinstance(got, tuple) == isinstance(want, tuple)
        torch.testing.assert_close([got, *gradients], [want, *plain], rtol=1e-12, atol=1e-12)
        assert all(map(torch.equal, states, plain_states))
        if len(calls) == 1:
            assert flops <= 2 * plain_flops
            assert calls[0][1:] == [True, True] or function is no_gradient
            assert run is checkpoint or not calls[0][0]
    x = torch.randn(64, 256, requires_grad=True)
    for once in (lambda x: run(deep, x, x + 1, x - 1), lambda x: run(deep, x).sum(), lambda x: run(deep, x * 2)):
        assert kept_by_forward(once, x) <= 2 * ACTIVATION * (once(x).dim() > 0) + STATE
    assert kept_by_forward(lambda x: run(deep, x), x) <= STATE

    def whole(y):
        for _ in range(6):
            y = run(deep, y)
        y.sum().backward()

    assert measure_peak(whole, x).peak_bytes <= 18 * ACTIVATION
    assert measure_arrays(whole, x).peak_bytes <= 2 * ACTIVATION
    half = x[:64].bfloat16().detach().requires_grad_()
    assert measure_peak(whole, half).peak_bytes <= 24 * half.nbytes
    for changed in (x * 1, torch.tensor(3)):
        y = run(torch.mul, x, changed)
        changed.add_(1)
        with pytest.raises(RuntimeError):
            y.sum().backward()


def test_Checkpoint():
    check(Checkpoint.apply, FUNCTIONS)


def test_checkpoint():
    check(checkpoint, FUNCTIONS + WITHOUT_ARGUMENTS)
    x, data, w = (torch.randn(64, 256, requires_grad=needs) for needs in (True, False, True))
    assert kept_by_forward(lambda data: checkpoint(lambda data: deep(data * w), data), data) <= STATE
    with torch.no_grad():
        assert not checkpoint(deep, x).requires_grad and kept_by_forward(lambda x: checkpoint(deep, x), x) == 0
    data, w = data[:64, :64].clone(), w[:, :64]
    with ProductMeter() as products:
        checkpoint(lambda data: data @ w, data).sum().backward()
    assert products.flops == 3 * 2 * 64**3


def numbered(ran, i, layer, x):
    ran.append(i)
    return layer(x).tanh()


def test_checkpoint_sequential():
    sizes = [*itertools.product([1, 5, 10, 12], [1, 4, 5, 7, None]), (100, None)]
    for (n, segments), needs in itertools.product(sizes, [True, False]):
        x, ran = torch.randn(64, 256, requires_grad=needs), []
        layers = [torch.nn.Linear(256, 256, bias=False) for _ in range(n)]
        functions = [partial(numbered, ran, i, layer) for i, layer in enumerate(layers)]
        if segments and segments > n:
            with pytest.raises(ValueError, match=rf"{n}\D*{segments}|{segments}\D*{n}"):
                checkpoint_sequential(functions, segments, x)
            continue
        y, want = checkpoint_sequential(tuple(functions), segments, x), x
        assert ran == [*range(n)]
        y.sum().backward()
        again = ran[n:]
        starts = [0] + [i for i in range(1, n) if again[i] < again[i - 1]]  # a segment begins
        lengths = [stop - start for start, stop in itertools.pairwise([*starts, n])]
        assert sorted(again) == [*range(n)] and max(lengths) - min(lengths) <= 1
        k = len(lengths)
        assert k == segments or (segments is None and k - (-n // k) == min(i - (-n // i) for i in range(1, n + 1)))
        for layer in layers:
            want = layer(want).tanh()
        leaves = [layer.weight for layer in layers] + [x] * needs
        torch.testing.assert_close(y, want)
        torch.testing.assert_close([leaf.grad for leaf in leaves], list(torch.autograd.grad(want.sum(), leaves)))
    chain = torch.nn.Sequential(*(torch.nn.Tanh() for _ in range(16)))
    x = torch.randn(64, 256, requires_grad=True)

    def step():
        checkpoint_sequential(chain, 4, x).sum().backward()

    assert torch.equal(checkpoint_sequential(chain, 4, x), chain(x))
    assert measure_peak(step).peak_bytes <= 12 * ACTIVATION + 5 * STATE
    assert measure_arrays(step).peak_bytes <= ACTIVATION
    x = x.detach().bfloat16().requires_grad_()
    assert measure_peak(step).peak_bytes <= 15 * x.nbytes
    with pytest.raises(ValueError, match="16"):
        checkpoint_sequential(chain, 0, x)


def squared(dtypes, x):
    product = x @ x.T
    dtypes.append(product.dtype)
    return product.sin()


@pytest.mark.filterwarnings("ignore")  # create_graph=True makes a cycle
def test_StrictCheckpoint():
    run = StrictCheckpoint.apply
    x = torch.randn(64, 256, requires_grad=True)
    assert kept_by_forward(lambda x: run(deep, x), x) <= STATE
    for dtype, first, second in itertools.product([torch.bfloat16, torch.float16], [True, False], [True, False]):
        gradients = []
        for each in (run, lambda fn, *args: fn(*args)):
            dtypes, x.grad = [], None
            with torch.autocast("cpu", dtype=dtype) if first else contextlib.nullcontext():
                y = each(partial(squared, dtypes), x)
            with torch.autocast("cpu", dtype=dtype) if second else contextlib.nullcontext():
                y.sum().backward()
            assert set(dtypes) == {dtype if first else torch.float32}
            gradients.append(x.grad)
        assert torch.equal(*gradients)
    x, w, calls = torch.tensor(2.0, requires_grad=True), torch.tensor(3.0, requires_grad=True), []

    def fails(x):
        calls.append(1)
        return dropout(x) if len(calls) == 1 else 1 / (dropout(x) * 0).item()

    y = run(fails, x)
    state = torch.rand(3) is not None and torch.get_rng_state()
    with pytest.raises(ZeroDivisionError):
        y.backward()
    assert torch.equal(torch.get_rng_state(), state)
    y = run(lambda x: w * x**2, x)
    with contextlib.suppress(RuntimeError):  # an error is right, and so are right gradients
        assert torch.autograd.grad(y, x, retain_graph=True) == (12,) and w.grad is None
    for by_grad in (True, False):
        x.grad = w.grad = None
        y = run(lambda x: w * x**2, x)
        with contextlib.suppress(RuntimeError):
            slope = torch.autograd.grad(y, x, create_graph=True)[0] if by_grad else y.backward(create_graph=True)
            slope, x.grad = x.grad if slope is None else slope, None
            (y + slope**2).backward()
            assert x.grad == 156
        x.grad = w.grad = None
