"""What Lab 06's suite draws, and the words for what its answers usually get wrong."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from labkit.testing.attention.gradients import assert_gradients, numbers
from labkit.testing.compare import assert_close, assert_equal, require

NO_WAY_BACK = "no graph leads from the result to it: is Checkpoint.apply given the arguments themselves, grad mode on?"


class Chain:
    """The parameters of functions that note their numbers when they run; each saves one activation of x's size.

    `run` gives what came of a chain, its kind and its parameters first.
    """

    def __init__(self, run: Callable[..., dict[str, Any]], rng: np.random.Generator, n: int, width: int = 6) -> None:
        self._run = run
        self.shifts = [random(rng, width) for _ in range(n)]

    def passes(
        self, segments: int, x: torch.Tensor, factors: Sequence[torch.Tensor] | None = None, **options: Any
    ) -> SimpleNamespace:
        """What came out of the student's checkpoint_sequential."""
        return SimpleNamespace(**self._run("chain", self.shifts, segments, x, factors=factors, **options))

    def assert_gradients(
        self, made: SimpleNamespace, x: torch.Tensor, factors: Sequence[torch.Tensor], *, hint: str = "", lost: str = ""
    ) -> None:
        """Compare the gradients of x and of all parameters with plain autograd's."""
        n = len(self.shifts)
        shifts = {f"the parameter of function {i} (of 0 … {n - 1})": shift for i, shift in enumerate(self.shifts)}
        found = made.gradients[-1] if made.gradients else None
        assert_gradients(found, lambda args: chained(*args.values()), {"x": x, **shifts}, factors, hint=hint, lost=lost)


def random(rng: np.random.Generator, *shape: int, grad: bool = True) -> torch.Tensor:
    """Standard-normal numbers, a leaf that requires grad unless told otherwise."""
    return torch.from_numpy(rng.standard_normal(shape)).float().requires_grad_(grad)


def above_one(rng: np.random.Generator, *shape: int) -> torch.Tensor:
    """Numbers that a mask can be divided out of."""
    return torch.from_numpy(rng.uniform(1, 2, shape)).float()


def draw_seed(rng: np.random.Generator) -> int:
    """A seed for torch's generator."""
    return int(rng.integers(2**31))


def assert_ran(calls: int, times: int, when: str) -> None:
    """Fail unless the functions ran as often as that."""
    usual = "keep the arguments, not the results, and run fn once in each pass"
    if calls < times:
        usual = "the forward pass kept what backward needs, in place of having fn run again"
    assert_equal(f"the number of times fn has run {when}", calls, times, hint=usual)


def same_states(some: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    """Whether the random generators stood alike."""
    return all(torch.equal(one, other) for one, other in zip(some, others, strict=True))


def with_room(activations: int) -> int:
    """How many may be alive where that many must be: half as many more, and three for gradients."""
    return activations + activations // 2 + 3


def chained(x: torch.Tensor, *shifts: torch.Tensor) -> torch.Tensor:
    """The functions of a chain, one for each of `shifts`, one after the other: those that change the width are bare."""
    for shift in shifts:
        x = torch.tanh(x + shift) if x.shape[-1] == shift.shape[-1] else torch.tanh(x)
    return x


def why_other_number(n: int, segments: int, lengths: Sequence[int]) -> str:
    """What usually leads to runs of these lengths, which are not as many as `segments` of `n` functions."""
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


def assert_mask(name: str, made: Any, x: torch.Tensor, **options: Any) -> None:
    """Compare the gradient of dropouts with what they multiplied `x` by."""
    want = sum(map(numbers, made.results)) if isinstance(made.results, tuple) else numbers(made.results)
    require(0 in np.asarray(want), f"nothing is dropped by {name}: fn was not run")
    require(made.gradients, f"the gradient of x is None\nUsual cause: {NO_WAY_BACK}")
    name = f"the gradient of {name}, which is the mask,"
    assert_close(name, made.gradients[-1][0], want / numbers(x), plain=want / numbers(x), **options)


def roots_above(*numbers: int) -> list[int]:
    """⌈√n⌉ of each, by counting."""
    return [next(k for k in itertools.count(1) if k * k >= n) for n in numbers]


def plan_suspects(layers: int) -> dict[str, int]:
    """Usual mistakes in a number of segments → the number that each leads to."""
    return {
        "√layers is rounded to the nearest": round(math.sqrt(layers)),
        "√layers is rounded down": math.isqrt(layers),
        "⌊√layers⌋ + 1 is taken, also for squares": math.isqrt(layers) + 1,
        "the logarithm is taken": math.ceil(math.log2(layers)),
        "half of the layers are taken": layers // 2,
        "the number of segments is that of the layers": layers,
    }


def cost_suspects(layers: int, segments: int) -> tuple[dict[str, int], dict[str, int]]:
    """Usual mistakes in a peak, and in the work → the number that each leads to."""
    longest, shortest = -(-layers // segments), layers // segments
    (best,) = roots_above(layers)
    peaks = {
        "layers / segments is rounded down": segments + shortest,
        "the longest segment is left out": segments,
        "what the segments keep is left out": longest,
        "the last segment's input is not counted": segments - 1 + longest,
        "the two are multiplied": segments * longest,
        "the best number of segments is used in place of the one given": best + -(-layers // best),
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
    return peaks, extras


def split_suspects(shifts: Sequence[torch.Tensor], segments: int) -> dict[str, list[torch.Tensor]]:
    """Usual mistakes in a chain cut into segments → the functions that are applied then."""
    n, shifts = len(shifts), list(shifts)
    wrong = {"the functions are applied in the opposite order": shifts[::-1]}
    wrong |= {f"the last {left_out} of the functions are left out": shifts[:-left_out] for left_out in range(1, n)}
    for k in {segments, -(-n // segments)}:
        every_kth = [shift for start in range(k) for shift in shifts[start::k]]
        wrong[f"a segment takes every function of {k}, not neighbours"] = every_kth
    return wrong
