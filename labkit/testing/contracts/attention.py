"""The contract of attention: shapes, numbers and memory that any implementation must handle.

A lab's test class inherits the parts that apply, the first one last (pytest collects base classes first):

    class TestFlashForward(Refusals, Memory, Numbers, Shapes): ...

and defines what they call:

- `case(rng, **sizes)`: the inputs Q, K, V (and dO where there is a backward pass) with their reference; `sizes` are
  `n` (both lengths) or `n_queries` and `n_keys`, `d`, `d_v`, `batch`, `dtype` (by its name), `logit_scale`, and what
  a variant holds.
- `worked_case()`: the handout's worked example.
- `check(case, hint="", nan_hint="")`: calls the function and compares every result with the reference.
- `check_on_nan(case, hint="", nan_hint="")`: the same where uninitialised memory holds NaN.
- `arguments(case)`: the tensors that are handed over, by the names of the handout.
- `call(*tensors, **options)`: the function itself.

Class attributes are the tables of cases. Every test runs once for each of `variants`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import pytest

from labkit.testing.compare import NAN_FROM_EMPTY, assert_raises
from labkit.testing.unchanged import left_alone

OVERFLOW = "exp overflows: no score may enter exp without the row's maximum, or L, taken from it"
SHORT_SUMS = "the sums over tiles are kept in half precision: keep them in float32 and convert once, at the end"
FAR_BELOW = "the maximum must be the row's own, and it may be far below 0: start m at −inf, not at 0"
STRIDED = "a (batch, N, heads, d) tensor seen as (batch, heads, N, d): its rows are not adjacent"

robust, refuses = (pytest.mark.kind(kind) for kind in ("robust", "refuses"))


TABLES = {
    "n": ("lengths", "N"),
    "lengths": ("unequal_lengths", "N"),
    "batch": ("batches", "B"),
    "logit_scale": ("logit_scales", "scale"),
    "dtype": ("dtypes", ""),
    "long_sum": ("long_sums", "N"),
}
"""A parameter of a test → the class attribute with its values, and what they begin with in the test's name."""


def label(value: Any) -> str:
    """A value as a test's name shows it: 63, 5x129, 2x3."""
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


class Contract:
    """Turns the tables of a test class into parameters of its tests."""

    case: Callable[..., Any]
    worked_case: Callable[[], Any]
    check: Callable[..., Any]
    check_on_nan: Callable[..., Any]
    arguments: Callable[[Any], dict[str, Any]]
    call: Callable[..., Any]

    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {"full": {}, "causal": {"causal": True}}

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Repeat a test for each variant, and for each value of the tables that its parameters name."""
        own = {name for mark in metafunc.definition.iter_markers("parametrize") for name in _names(mark.args[0])}
        for name, (table, sign) in TABLES.items():
            if name in metafunc.fixturenames and name not in own:
                metafunc.parametrize(
                    name, getattr(self, table), ids=[sign + label(row) for row in getattr(self, table)]
                )
        if "variant" in metafunc.fixturenames:
            metafunc.parametrize("variant", self.variants.values(), ids=self.variants)


class Shapes(Contract):
    """Lengths, widths and leading axes of every kind."""

    causal_hint: ClassVar[str] = "query i sees the keys j ≤ i, whatever the lengths"
    lengths: ClassVar[tuple[int, ...]] = (2, 63, 129)
    unequal_lengths: ClassVar[tuple[tuple[int, int], ...]] = ((5, 129), (129, 7), (20, 65), (65, 20))
    batches: ClassVar[tuple[tuple[int, ...], ...]] = ((3,), (2, 3), (2, 1, 2))

    def test_worked_example(self):
        self.check(self.worked_case(), hint="compare each step with the handout's numbers")

    def test_odd_lengths(self, rng, n, variant):
        self.check(self.case(rng, n=n, d=17, **variant))

    def test_unequal_lengths(self, rng, lengths, variant):
        hint = "N_q is taken for N_k somewhere"
        if variant.get("causal"):
            hint = self.causal_hint
        self.check(self.case(rng, n_queries=lengths[0], n_keys=lengths[1], d=8, **variant), hint=hint)

    def test_random_sizes(self, rng, variant):
        for _ in range(3):
            n_queries, n_keys, d, d_v = (int(size) for size in rng.integers(2, 40, 4))
            self.check(self.case(rng, n_queries=n_queries, n_keys=n_keys, d=d, d_v=d_v, **variant))

    def test_values_of_another_width(self, rng):
        self.check(self.case(rng, n=70, d=24, d_v=5), hint="d is taken for d_v somewhere")

    def test_batch(self, rng, batch, variant):
        """Each entry of the last leading axis has logits ten times as large as the one before."""
        case = self.case(rng, n_queries=33, n_keys=40, d=8, batch=batch, **variant)
        for entry in range(batch[-1]):
            case.Q[..., entry, :, :] *= 10.0**entry
        self.check(case, hint="every batch entry is an attention of its own, with sums of its own")

    def test_every_axis_as_long(self, rng):
        case = self.case(rng, n=16, d=16, batch=(16,))
        self.check(case, hint="here every axis has 16 elements: an operation along a wrong one does not crash")


class Numbers(Contract):
    """Logits and precisions of every kind."""

    logit_scales: ClassVar[tuple[float, ...]] = (30, 300, 10_000)
    dtypes: ClassVar[tuple[str, ...]] = ("float16", "bfloat16", "float32", "float64")
    long_sums: ClassVar[tuple[tuple[int, int], ...]] = ((8, 2000), (2000, 8))
    half: ClassVar[str] = "bfloat16"

    @robust
    def test_large_logits(self, rng, logit_scale, variant):
        case = self.case(rng, n=70, d=16, logit_scale=logit_scale, **variant)
        self.check(case, hint=OVERFLOW, nan_hint=OVERFLOW)

    @robust
    def test_very_negative_logits(self, rng):
        case = self.case(rng, n=40, d=16)
        case.Q, case.K = abs(case.Q) * 300, -abs(case.K) - 1
        self.check(case, hint=FAR_BELOW, nan_hint=FAR_BELOW)

    @robust
    def test_precisions(self, rng, dtype, variant):
        """Results are as exact as the inputs' dtype allows, and are in that dtype."""
        case = self.case(rng, n=40, d=8, dtype=dtype, **variant)
        hint = (
            "a step is done in float32, or a small number was added to the sums" if dtype == "float64" else SHORT_SUMS
        )
        self.check(case, hint=hint)

    @robust
    def test_long_sums_in_half_precision(self, rng, long_sum):
        """Sums of positive numbers that first grow and then shrink: what is lost on the way stays lost."""
        n_queries, n_keys = long_sum
        case = self.case(rng, n_queries=n_queries, n_keys=n_keys, d=8, dtype=self.half)
        for name in ("Q", "K", "V", "dO"):
            if hasattr(case, name):
                setattr(case, name, abs(getattr(case, name)) + 1)
        case.Q /= 8
        case.V[: n_keys // 2] += 4
        self.check(case, hint=SHORT_SUMS)


class Memory(Contract):
    """What lies in memory before and after the call."""

    @robust
    def test_inputs_need_not_be_contiguous(self, rng):
        case = self.case(rng, n=20, d=8, batch=(2, 3))
        for name in ("Q", "K", "V", "dO"):
            if hasattr(case, name):
                setattr(case, name, strided(getattr(case, name)))
        self.check(case, hint=STRIDED)

    @robust
    def test_arguments_are_left_alone(self, rng):
        given = self.arguments(self.case(rng, n=20, d=8))
        with left_alone(given, given.values()):
            self.call(*given.values())

    @robust
    def test_uninitialised_memory_is_written_over(self, rng, variant):
        case = self.case(rng, n_queries=37, n_keys=21, d=8, d_v=5, batch=(2,), **variant)
        self.check_on_nan(case, nan_hint=NAN_FROM_EMPTY)


class Refusals(Contract):
    """Arguments that do not fit are refused with a message that names them."""

    @refuses
    def test_shapes_that_do_not_fit(self, rng):
        Q, K, V, *rest = self.arguments(self.case(rng, n_queries=6, n_keys=5, d=8)).values()
        narrow, short = K[..., :7], V[..., :4, :]
        for inputs, when, differ in (
            ((Q, narrow, V), "when Q and K differ in d", (Q, narrow)),
            ((Q, K, short), "when K and V differ in N_k", (K, short)),
        ):
            shapes = [str(tuple(x.shape)) for x in differ]
            assert_raises(ValueError, functools.partial(self.call, *inputs, *rest), when=when, mentions=shapes)


def _names(parameters: str | Sequence[str]) -> Sequence[str]:
    return parameters.replace(" ", "").split(",") if isinstance(parameters, str) else parameters


def strided(x: Any) -> Any:
    """The same numbers, laid out as a (batch, N, heads, d) array that is seen as (batch, heads, N, d)."""
    swapped = x.swapaxes(-3, -2)
    swapped = swapped.contiguous() if hasattr(swapped, "contiguous") else swapped.copy(order="C")
    return swapped.swapaxes(-3, -2)
