"""Assertions that name the quantity, say how far off it is and where, and recognise the usual mistakes."""

from __future__ import annotations

import contextlib
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from labkit.testing.wording import are, compared, got_and_expected, none_hint, place, share, show, type_name

Mistakes = Mapping[str, Any] | Callable[[], Mapping[str, Any]]
"""What a usual mistake is called → the value it leads to, or a function without arguments that returns it.

Where many are to be made, the whole may be a function without arguments, called where something is off.
"""

NAN_HINT = (
    "−inf − (−inf) or 0/0, from a row or a block whose keys are all masked; inf/inf, from an exp that overflowed; "
    "or memory of `empty` that was never written"
)
NAN_FROM_EMPTY = "`empty` hands out what lay in memory before: write every element of it, or start from zeros"
NOT_WRITTEN = "nothing is written there, and what `empty` found in memory stays; or a loop ends too early"
margin_recorder: Callable[[str, str, float], None] | None = None
"""Called with what was compared, the unit of its limit, and the share of the limit that was used; 1 is the limit."""
NEAR = 8
"""A result is attributed to a mistake if it is within this many tolerances of that mistake's value."""
NEAR_SHARE = 0.1
"""A mistake is named when it lies within this share of the error: an error just over the tolerance fits many."""
RIVALS = 4
"""Two mistakes are both named if the distance of one is at most this many times that of the other."""
MAX_CAUSES = 2
"""Of causes that lead to the same values so many are named, the first ones."""

Mentions = Sequence[str] | Mapping[str, Any]
"""Texts of which each must be in an error's message, or arguments by name: of each the name or the value."""


@dataclass(frozen=True)
class Tolerance:
    """The largest error allowed against a float64 reference; the defaults are those of every suite.

    It is `slack` times the error of the baseline, a plain computation in the precision under test, plus `roundings`
    units of rounding of the largest value, plus `atol`. FlashAttention's own tests (Dao et al. 2022) allow twice the
    baseline's error, in far larger arrays: here a few elements decide about the largest error, and twice refused three
    of 28 right runs of Lab 05. `labstaff.calibrate` shows how much is used.

    Attributes:
        slack: how often the error of the baseline is allowed.
        roundings: a baseline of few numbers may be exact by luck.
        largest: a value to count as the largest where the reference has none as large: of terms that cancel.
        atol: an error allowed in any case, where the reference is only so exact or the handout says so.
    """

    slack: float = 4
    roundings: float = 8
    largest: float = 0.0
    atol: float = 0.0

    def times(self, factor: float) -> Tolerance:
        """As much as `factor` times this tolerance."""
        return replace(self, slack=self.slack * factor, roundings=self.roundings * factor, atol=self.atol * factor)

    def for_scores(self, scores: npt.ArrayLike) -> Tolerance:
        """For results of attention: two roundings more for each unit of the largest finite score.

        A score s, a sum, is off by about 2 |s| units, here and in the reference, and its power by as many.
        """
        values = np.asarray(scores, dtype=np.float64)
        largest = float(np.abs(values[np.isfinite(values)]).max(initial=0))
        return replace(self, roundings=self.roundings + 2 * largest)

    def limit(self, want: npt.ArrayLike, baseline: npt.ArrayLike | Sequence[npt.ArrayLike]) -> Limit:
        """The largest error allowed. Of several baselines the one that allows the most counts."""
        if isinstance(baseline, list | tuple):
            return max(self.limit(want, each) for each in baseline)
        reference, computed = np.asarray(want, dtype=np.float64), np.asarray(baseline)
        finite = np.isfinite(reference)
        if not finite.any():
            return Limit(self.atol, f"{self.atol:g}, with no finite number to compare")
        lost = float(np.abs(computed.astype(np.float64)[finite] - reference[finite]).max())
        unit = float(np.finfo(computed.dtype).eps)
        largest = max(self.largest, float(np.abs(reference[finite]).max()))
        terms = [f"{self.slack:g} × {lost:.2g} (error of the baseline)"]
        terms += [f"{self.roundings:.3g} × {unit:.2g} × {largest:.3g} (roundings × unit of {computed.dtype} × largest)"]
        terms += [f"{self.atol:g}"] if self.atol else []
        return Limit(self.slack * lost + self.roundings * unit * largest + self.atol, " + ".join(terms))


class Limit(NamedTuple):
    """The largest error allowed, and its terms as text."""

    allowed: float
    terms: str


TOLERANCE = Tolerance()


def assert_close(
    name: str,
    got: Any,
    want: npt.ArrayLike,
    *,
    baseline: npt.ArrayLike | Sequence[npt.ArrayLike],
    tolerance: Tolerance = TOLERANCE,
    reference: Callable[..., Any] | None = None,
    dtype: Any = None,
    mistakes: Mistakes | None = None,
    hint: str = "",
    nan_hint: str = NAN_HINT,
) -> None:
    """Fail unless `got` is as near to `want` as a computation in its own precision can be expected to be.

    −inf and NaN must be where they are in `want`. An author reads in the failure's notes what was compared with what,
    and how the limit was computed.

    Args:
        name: what the quantity is called in the handout.
        want: the float64 reference.
        baseline: the same computed plainly in the precision under test: an array, or several: see `Tolerance`.
        tolerance: the error allowed.
        reference: the function that computed `want`, for the notes.
        dtype: the dtype `got` must have; None leaves it free.
        mistakes: usual mistakes and the value each leads to; one that matches is named as the cause.
        hint: what usually causes an error here, for when no mistake matches.
        nan_hint: what usually causes NaN here.

    Raises:
        AssertionError: with a message for the student.
    """
    limit = tolerance.limit(want, baseline)
    try:
        _assert_close(name, got, want, limit.allowed, tolerance.largest, dtype, mistakes, hint, nan_hint)
    except AssertionError as error:
        if reference is not None:
            error.add_note(f"compared with {dotted_name(reference)}")
        error.add_note(f"allowed {limit.allowed:.3g} = {limit.terms}")
        raise


def _assert_close(
    name: str,
    got: Any,
    want: npt.ArrayLike,
    allowed: float,
    largest: float,
    dtype: Any,
    mistakes: Mistakes | None,
    hint: str,
    nan_hint: str,
) -> None:
    if nan_hint == NAN_FROM_EMPTY:
        mistakes = None  # numbers that were made from poisoned memory are no mistake's
    value = as_array(name, got)
    reference = np.asarray(want, dtype=np.float64)
    _assert_shape(name, value, reference.shape)
    if dtype is not None:
        assert_dtype(name, got, dtype)
    computed = value.astype(np.float64)
    _assert_finite_alike(
        name,
        computed,
        reference,
        lambda: _not_a_number(computed, reference, allowed, mistakes),
        nan_hint,
    )
    finite = np.isfinite(reference)
    error = np.zeros_like(reference)
    np.subtract(computed, reference, out=error, where=finite)
    error = np.abs(error)
    worst = float(error.max(initial=0.0))
    record_margin(name, worst, allowed, "tolerance")
    if worst <= allowed:
        return
    at = np.unravel_index(int(error.argmax()), error.shape)
    wrong = error > allowed
    rows = _whole_rows(wrong)
    lines = [
        f"{name} is off by {worst:.3g}{place(at)}; rounding explains {allowed:.2g}",
        f"{got_and_expected(computed[at], reference[at])}; {share(int(wrong.sum()), error.size)} off{rows}",
    ]
    cause, excluded = _fitting(computed, reference, allowed, worst, as_mapping(mistakes))
    rows_are_off = bool(rows) or (error.ndim > 0 and bool(wrong.all()))
    unwritten = rows_are_off and _looks_unwritten(computed[wrong], reference, largest)
    _fail_with(lines, cause, hint, NOT_WRITTEN if unwritten else "", excluded=excluded)


def assert_equal(name: str, got: Any, want: Any, *, mistakes: Mistakes | None = None, hint: str = "") -> None:
    """Fail unless `got == want` exactly: for counts, bytes, shapes and names.

    `mistakes` and `hint` as in `assert_close`. Arrays are compared whole, numbers by value, so that NumPy's integers
    equal Python's; True is not 1.
    """
    if _same(got, want):
        return
    cause = _either([text for text, value in as_mapping(mistakes).items() if _same(got, _value(value))])
    lines = [f"{name} {are(name)} {show(got)}, expected {show(want)}"]
    numbers = isinstance(got, int | float | np.number) and isinstance(want, int | float) and not isinstance(got, bool)
    if numbers and want and math.isfinite(got):
        much = compared(float(got), want)
        lines[0] += f" ({much})" if much else ""
    _fail_with(lines, cause, hint)


def assert_at_most(
    name: str, got: float, limit: float, *, hint: str = "", unit: str = "bytes", required: float = 0
) -> None:
    """Fail unless `got <= limit`; the message gives both and their ratio, or how many too many.

    What calibration records is `(got - required) / (limit - required)`; `required` is what the handout asks for.
    """
    record_margin(name, got - required, limit - required, unit or "count")
    if got <= limit:
        return
    more = ""
    if limit > 0:
        more = compared(got, limit) if got >= 1.05 * limit else ""
        more = f", {more or f'{show(round(got - limit, 6))} too many'}"
    shown_unit = "" if unit in name.split() else unit
    line = f"{name} {are(name)} {got:,} {shown_unit}".rstrip() + f", at most {limit:,} are allowed{more}"
    _fail("\n".join([line, *([hint] if hint else [])]))


def assert_keys(name: str, got: Any, keys: Iterable[Any]) -> dict[Any, Any]:
    """Fail unless `got` is a dict with exactly `keys`; returns it."""
    expected = list(keys)
    if not isinstance(got, dict):
        _fail(
            f"{name} is {type_name(got)}, expected a dict with the keys {', '.join(map(str, expected))}{none_hint(got)}"
        )
    missing = [str(key) for key in expected if key not in got]
    extra = [str(key) for key in got if key not in expected]
    if missing or extra:
        parts = [f"lacks {', '.join(missing)}"] if missing else []
        parts += [f"has {', '.join(extra)}, which the handout does not name"] if extra else []
        _fail(f"{name} {' and '.join(parts)}")
    return got


def assert_tuple(name: str, got: Any, parts: Iterable[str]) -> tuple[Any, ...]:
    """Fail unless `got` is a tuple of as many values as `parts` names; returns it."""
    names = list(parts)
    if not isinstance(got, tuple) or len(got) != len(names):
        found = f"a tuple of {len(got)}" if isinstance(got, tuple) else type_name(got)
        _fail(f"{name} is {found}, expected the tuple ({', '.join(names)}){none_hint(got)}")
    return got


def assert_type(name: str, got: Any, kinds: type | tuple[type, ...], description: str) -> None:
    """Fail unless `got` is an instance of `kinds`; True and False are no numbers here."""
    if not isinstance(got, kinds) or (isinstance(got, bool) and bool not in _each(kinds)):
        _fail(f"{name} is {type_name(got)}, expected {description}{none_hint(got)}")


def assert_dtype(name: str, got: Any, dtype: Any, *, because: str = "the dtype of the input") -> None:
    """Fail unless `got.dtype` is `dtype` (NumPy's or torch's), which is what `because` says."""
    found, expected = str(got.dtype).removeprefix("torch."), str(_dtype(dtype)).removeprefix("torch.")
    if found == expected:
        return
    why = ""
    if found == "float64" and isinstance(got, np.ndarray | np.generic):
        why = (
            "\nUsual cause: a float64 scalar met the array (NumPy 2 promotes: np.sqrt(int) is a float64), "
            "or an array was made without dtype="
        )
    elif found == "float64":
        why = "\nUsual cause: something was made or added up in float64, and not brought back"
    _fail(f"{name} is {found}, expected {expected}, {because}{why}")


class WrongValue(AssertionError):
    """A value is off; or it is NaN, `is_nan`, where it must not be.

    `own_hint` is the line of the message with what the test itself takes for the usual cause. Where a task's
    tests marked `basic` fail too, it is not shown: the cause is more general than what this test looks for.
    `recognised` is the known mistake whose values these are; `excluded` are those whose values these are not.
    """

    def __init__(
        self,
        message: str,
        own_hint: str = "",
        *,
        is_nan: bool = False,
        recognised: str = "",
        excluded: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message)
        self.own_hint, self.is_nan, self.recognised, self.excluded = own_hint, is_nan, recognised, excluded


@contextlib.contextmanager
def noted(text: Callable[[], str]) -> Iterator[None]:
    """Add `text()` to the notes of a comparison that fails in the block: what an author reads of it."""
    try:
        yield
    except AssertionError as error:
        error.add_note(text())
        raise


def compare_each(names: Iterable[str], check: Callable[[str], None]) -> None:
    """Fail as `check` does for the first of `names` that it refuses, and say which others are right."""
    errors: dict[str, AssertionError] = {}
    right = []
    for name in names:
        try:
            check(name)
            right.append(name)
        except AssertionError as error:
            errors[name] = error
    if not errors:
        return
    first = next(iter(errors.values()))
    if right:
        head, *more = str(first).splitlines()
        first.args = ("\n".join([head, f"{_listed(right)} right, only {_listed(errors)} off", *more]),)
    raise first


def _listed(names: Iterable[str]) -> str:
    each = list(names)
    return f"{' and '.join([', '.join(each[:-1]), each[-1]])} are" if len(each) > 1 else f"{each[0]} is"


class ChangedArgument(AssertionError):
    """An argument was changed in place."""


def assert_unchanged(name: str, now: npt.ArrayLike, before: npt.ArrayLike) -> None:
    """Fail unless the argument `name` still holds what it held before the call."""
    if not np.array_equal(np.asarray(_in_numpy(now)), np.asarray(_in_numpy(before)), equal_nan=True):
        message = f"{name}, an argument, was changed in place\nThe caller still needs it: work on a copy"
        raise ChangedArgument(message)


def assert_raises(
    kinds: type[Exception] | tuple[type[Exception], ...],
    call: Callable[[], Any],
    *,
    when: str,
    mentions: Mentions,
) -> None:
    """Fail unless `call()` raises one of `kinds` with a message that mentions every text of `mentions`, as whole words.

    Where `mentions` is a dict of arguments, the name of each or its value is enough.

    Other exceptions pass on, with a note of what was expected. So does NotImplementedError, a subclass of RuntimeError:
    it says that the task is not written yet.

    Raises:
        TypeError: `mentions` is one text, whose letters would be looked for.
    """
    if isinstance(mentions, str):
        raise TypeError(f"mentions={mentions!r}: expected a list of texts or a dict of arguments")
    names = " or ".join(each.__name__ for each in _each(kinds))
    arguments = mentions.items() if isinstance(mentions, Mapping) else ((text,) for text in mentions)
    wanted = [tuple(map(str, each)) for each in arguments]
    try:
        result = call()
    except NotImplementedError:
        raise
    except kinds as error:
        absent = [texts for texts in wanted if not any(is_mentioned(text, str(error)) for text in texts)]
        if absent:
            _fail(f"the {type(error).__name__} {when} does not mention {_any_of(absent)}; it says: {error}")
        return
    except Exception as error:
        named = f" that mentions {_any_of(wanted)}" if wanted else ""
        error.add_note(f"Expected {when}: a {names}{named}")
        raise
    _fail(f"no {names} {when}; it returned {show(result)}")


def is_mentioned(text: str, message: str) -> bool:
    """Whether a message has a text that is no part of a longer word, name or number.

    A shape may be written as a tuple, a list, a torch.Size or with × between.
    """
    if re.fullmatch(r"\([\d, ]+\)", text):
        numbers = re.findall(r"\d+", text)
        between = r"[^\d()]{1,3}".join(numbers)
        return re.search(rf"(?<!\d){between}(?!\d)", message) is not None
    before = r"(?<!\w)(?<!\d\.)" if text[:1].isalnum() or text[:1] == "_" else ""
    after = r"(?!\w)(?!\.\d)" if text[-1:].isalnum() or text[-1:] == "_" else ""
    pattern = before + re.escape(text.replace("−", "-")) + after
    return re.search(pattern, message.replace("−", "-")) is not None


def _any_of(wanted: Iterable[tuple[str, ...]]) -> str:
    return ", ".join(" or ".join(texts) for texts in wanted)


def assert_refused(function: Callable[..., Any], table: Iterable[tuple[Iterable[Any], str, Mentions]]) -> None:
    """Fail unless `function` raises a ValueError for each row: arguments, when that is, what the message mentions."""
    for arguments, when, mentions in table:
        assert_raises(ValueError, partial(function, *arguments), when=when, mentions=mentions)


def require(condition: object, message: str) -> None:
    """Fail with `message` and nothing else unless `condition` holds: what `assert` adds of its own helps no student."""
    __tracebackhide__ = True
    if not condition:
        _fail(message)


class BorrowedWork(AssertionError):
    """A library did the work of the task: the task earns nothing."""


def require_own_work(condition: object, message: str) -> None:
    """As `require`, for the condition that the student's own code does the work."""
    __tracebackhide__ = True
    if not condition:
        raise BorrowedWork(message)


def require_at_most(name: str, got: float, limit: float, message: str, *, unit: str = "times", hint: str = "") -> None:
    """As `require(got <= limit, message)`, for a number and its limit: NaN fails, and `margin_recorder` hears of both.

    `hint` as in `assert_close`.
    """
    record_margin(name, got, limit, unit)
    if not got <= limit:
        _fail_with([message], hint=hint)


def record_margin(what: str, used: float, limit: float, unit: str) -> None:
    """Tell `margin_recorder` the share of a limit that was used; a limit of 0 leaves nothing to say.

    `unit` is "tolerance", or the unit of what is counted.
    """
    if margin_recorder is not None and limit > 0:
        margin_recorder(what, unit, float(used) / float(limit))


def require_at_least(name: str, got: float, least: float, message: str, *, unit: str = "times") -> None:
    """The same for a number that must not be less: what it uses of its limit is how often `least` is all of it."""
    record_margin(name, least, got, unit)
    require(got >= least, message)


def as_array(name: str, got: Any) -> npt.NDArray:
    """`got` as a NumPy array of real numbers; fails where it is none."""
    got = _in_numpy(got)
    if not isinstance(got, np.ndarray | np.floating | np.integer | int | float) or isinstance(got, bool):
        _fail(f"{name} is {type_name(got)}, expected an array{none_hint(got)}")
    value = np.asarray(got)
    if value.dtype.kind not in "fiu":
        _fail(f"{name} is an array of {value.dtype}, expected real numbers")
    return value


def _in_numpy(got: Any) -> Any:
    """A tensor as an array, in a dtype that NumPy has; anything else as it is."""
    if type(got).__module__.split(".")[0] != "torch":
        return got
    got = got.detach().to("cpu")
    return (got.float() if str(got.dtype) == "torch.bfloat16" else got).numpy()


def _assert_shape(name: str, value: npt.NDArray, shape: tuple[int, ...]) -> None:
    if value.shape != shape:
        _fail(f"{name} has shape {value.shape}, expected {shape}")


def _assert_finite_alike(
    name: str, computed: npt.NDArray, reference: npt.NDArray, nan_cause: Callable[[], str], nan_hint: str
) -> None:
    for what, test in (("NaN", np.isnan), ("−inf", np.isneginf), ("+inf", np.isposinf)):
        wrong = test(computed) & ~test(reference)
        if wrong.any():
            at = np.unravel_index(int(wrong.argmax()), wrong.shape)
            lines = [
                f"{name} is {what}{place(at)}, expected {reference[at]:.6g}; "
                f"{share(int(wrong.sum()), wrong.size)} {what}{_whole_rows(wrong)}"
            ]
            if what == "NaN":
                _fail_with(lines, nan_cause(), "" if nan_hint == NAN_HINT else nan_hint, NAN_HINT, is_nan=True)
            _fail_with(lines)
        absent = test(reference) & ~test(computed)
        if absent.any():
            at = np.unravel_index(int(absent.argmax()), absent.shape)
            _fail(f"{name} is {computed[at]:.6g}{place(at)}, expected {what}")


def _whole_rows(wrong: npt.NDArray[np.bool_]) -> str:
    """Where some rows, of all entries of a batch, are wrong throughout and no other is: which, in words."""
    if wrong.ndim < 2 or not wrong.size:
        return ""
    by_row = np.moveaxis(wrong, -2, 0).reshape(wrong.shape[-2], -1)
    found = np.flatnonzero(by_row.any(axis=1))
    if not by_row[found].all() or len(found) in (0, len(by_row)) or found[-1] - found[0] != len(found) - 1:
        return ""
    return f": row {found[0]}, and nothing else" if len(found) == 1 else f": rows {found[0]} to {found[-1]}, no others"


def _looks_unwritten(values: npt.NDArray, reference: npt.NDArray, largest: float) -> bool:
    """Whether most values are 0, close to 0 or huge, as in uninitialised memory; wrong sums seldom are.

    Where terms as large as `largest` cancel, as in dQ of a single key, what is left of them is small, and no measure.
    """
    largest = max(largest, np.abs(reference[np.isfinite(reference)]).max(initial=0))
    return bool(np.mean((np.abs(values) < 1e-30) | (np.abs(values) > 1e3 * largest)) > 0.5)


def _not_a_number(computed: npt.NDArray, reference: npt.NDArray, allowed: float, mistakes: Mistakes | None) -> str:
    """The mistakes with NaN at the same places and the same numbers at all others.

    Where every element is NaN, nothing tells one cause from another. Where the numbers are wrong, and all are those of
    a mistake, it is named even if it does not explain the NaN: a row without keys has 0 there, or −inf, where 0/0 is as
    usual, and a block without keys may give NaN.
    """
    is_nan = np.isnan(computed)
    if is_nan.all():
        return ""
    worst = float(np.abs(computed - reference)[np.isfinite(computed) & np.isfinite(reference)].max(initial=0))
    found, apart = [], []
    for text, value in as_mapping(mistakes).items():
        with np.errstate(all="ignore"):
            mistake = np.broadcast_to(np.asarray(_value(value), dtype=np.float64), computed.shape)
        if _apart(computed, mistake) <= NEAR * allowed:
            found.append(text)
        elif NEAR * allowed <= NEAR_SHARE * worst:
            without_keys = is_nan & ((mistake == 0) | np.isneginf(mistake))
            if _apart(computed, np.where(without_keys, np.nan, mistake)) <= NEAR * allowed:
                found.append(f"{text}; a row that is left without keys is 0/0")
            elif _apart(computed[~is_nan], mistake[~is_nan]) <= NEAR * allowed:
                apart.append(f"{text}; NaN apart")
    return _either(found or apart)


def _fitting(
    computed: npt.NDArray, reference: npt.NDArray, allowed: float, worst: float, mistakes: Mapping[str, Any]
) -> tuple[str, tuple[str, ...]]:
    """The known mistakes that fit: near compared with the error, and no other one with other values as near.

    And, where none does, those whose values were compared and differ.
    """
    near = min(max(NEAR * allowed, 1e-3 * worst), NEAR_SHARE * worst)
    made: list[tuple[float, str, npt.NDArray]] = []
    for text, value in mistakes.items():
        with np.errstate(all="ignore"):
            mistake = np.broadcast_to(np.asarray(_value(value), dtype=np.float64), reference.shape)
        if _apart(mistake, reference) > allowed:
            made.append((_apart(computed, mistake), text, mistake))
    nearest, cause, found = min(made, key=lambda each: each[0], default=(np.inf, "", reference))
    if nearest > near:
        return "", tuple(text for _, text, _ in made)
    rivals = {text: mistake for distance, text, mistake in made if distance <= RIVALS * nearest}
    alike = all(_apart(mistake, found) <= 2 * allowed for mistake in rivals.values())
    return _either([cause, *(text for text in rivals if text != cause)]) if alike else "", ()


def _either(causes: Sequence[str]) -> str:
    """The first causes of those that lead to the same values."""
    return "; or when ".join(causes[:MAX_CAUSES])


def dotted_name(function: Callable[..., Any]) -> str:
    """A function's module and name: `labkit.testing.attention.reference.attention`."""
    return f"{function.__module__}.{function.__qualname__}"


def _apart(first: npt.NDArray, second: npt.NDArray) -> float:
    """The largest difference of two arrays; infinite where one is NaN or infinite and the other is not."""
    with np.errstate(invalid="ignore"):
        differences = np.abs(first - second)
    alike = (first == second) | (np.isnan(first) & np.isnan(second))
    return float(np.where(alike, 0.0, np.where(np.isnan(differences), np.inf, differences)).max(initial=0.0))


def as_mapping(mistakes: Mistakes | None) -> Mapping[str, Any]:
    """All mistakes by their names."""
    return mistakes() if callable(mistakes) else mistakes or {}


def _value(mistake: Any) -> Any:
    return mistake() if callable(mistake) else mistake


def _same(got: Any, want: Any) -> bool:
    if isinstance(got, bool | np.bool_) != isinstance(want, bool | np.bool_):
        return False
    if isinstance(got, np.ndarray) or isinstance(want, np.ndarray):
        return np.array_equal(np.asarray(got), np.asarray(want))
    return bool(got == want)


def _dtype(dtype: Any) -> Any:
    return dtype if "torch" in sys.modules and str(dtype).startswith("torch.") else np.dtype(dtype)


def _each(kinds: type | tuple[type, ...]) -> tuple[type, ...]:
    return kinds if isinstance(kinds, tuple) else (kinds,)


def _fail_with(
    lines: Sequence[str],
    cause: str = "",
    hint: str = "",
    usual: str = "",
    *,
    is_nan: bool = False,
    excluded: tuple[str, ...] = (),
) -> NoReturn:
    """Fail with `lines` and the known mistake that fits, or else the test's own hint, or else what is usual."""
    __tracebackhide__ = True
    if cause:
        message = "\n".join([*lines, f"That is exactly what comes out when {cause}"])
        raise WrongValue(message, is_nan=is_nan, recognised=cause)
    hints = [f"Usual cause: {text}" for text in (hint or usual,) if text]
    raise WrongValue("\n".join([*lines, *hints]), hints[0] if hint else "", is_nan=is_nan, excluded=excluded)


def _fail(message: str) -> Any:
    __tracebackhide__ = True
    raise AssertionError(message)
