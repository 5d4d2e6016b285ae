"""What a failed test means for the student, in a few lines: the room that turns an exception into a sentence."""

from __future__ import annotations

import linecache
import re
import signal
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from labkit.suite.finder import AnswerMissing, TaskMissing
from labkit.suite.limits import TookTooLong

LONGEST_LINE = 160
MOST_LINES = 12
NOT_BROADCAST = re.compile(r"could not be broadcast together with shapes \(([\d,]+)\) \(([\d,]+)\)")
OBJECT_OF_THE_TEST = re.compile(r"^ *self=<.*>,\n", re.MULTILINE)
"""In the call that Hypothesis quotes: says nothing to a student, and has another address in each run."""


class State(StrEnum):
    """How one test of a task went: `UNUSABLE` is a file of which nothing can be run, `MISSING` one without the task."""

    PASSED = "passed"
    NOT_STARTED = "not started"
    UNUSABLE = "unusable"
    MISSING = "missing"
    CRASHED = "crashed"
    TOO_SLOW = "too slow"
    WRONG = "wrong"


class Kind(StrEnum):
    """What a test asks of an answer; `labkit.suite.results.task_points` says what it means for a task's points.

    A suite marks its tests, `@pytest.mark.kind("robust")`; one without a mark is `EXACT`.
    """

    EXACT = "exact"
    """The right result for ordinary inputs."""
    ROBUST = "robust"
    """The right result at the edges: large logits, rows without a key, half precision, nothing at all."""
    SMALL = "small"
    """Memory, traffic or work within its bound."""
    REFUSES = "refuses"
    """An error that says what is wrong with the arguments."""
    OWN = "own"
    """The work is the answer's own. No test is marked so: one becomes it where it finds that a library did the work."""


@dataclass(frozen=True)
class Verdict:
    """The outcome of one test: which of a task's tests, how it went, and what to tell the student.

    `drawn` says whether the test's inputs are drawn at random, so that another seed gives others.
    `n_printed` is how many lines the answer printed that were not shown. `outside` says whether memory is measured
    from outside: see `labkit.testing.outside`. `counts` is what a test that passed has recorded for the lab's board:
    numbers by name.
    """

    test: str
    task: str
    state: State
    lines: tuple[str, ...] = field(default=())
    drawn: bool = False
    kind: Kind = Kind.EXACT
    n_printed: int = 0
    outside: bool = False
    counts: dict[str, int] = field(default_factory=dict, hash=False)

    @property
    def passed(self) -> bool:
        """Whether the test passed."""
        return self.state is State.PASSED


def verdict_from(told: dict[str, Any]) -> Verdict:
    """A verdict that has travelled as plain data."""
    more = {"state": State(told["state"]), "lines": tuple(told["lines"]), "kind": Kind(told["kind"])}
    return Verdict(**{**told, **more})


class Place(NamedTuple):
    """A line of code that an exception passed through."""

    file: str
    line_number: int
    function: str

    @property
    def spot(self) -> str:
        """File and line, as an editor jumps to it."""
        return f"{Path(self.file).name}:{self.line_number}"

    @property
    def code(self) -> str:
        """The line itself."""
        return linecache.getline(self.file, self.line_number).strip()


class ProcessEnded(Exception):
    """The answer has taken the process along in which a test ran; the message says how it ended."""


def how_it_ended(status: int) -> str:
    """The exit status of a process in words: a signal's number is negative."""
    if status >= 0:
        return f"it left with status {status}"
    name = signal.Signals(-status).name
    meaning = {"SIGSEGV": "memory that is not its own", "SIGABRT": "a library gave up", "SIGKILL": "killed"}
    return f"{name} ({meaning[name]})" if name in meaning else name


def explain(error: BaseException, answer_files: Sequence[Path]) -> tuple[State, tuple[str, ...]]:
    """What happened, seen from the student's file, in at most a dozen lines."""
    if isinstance(error, AnswerMissing):
        return State.MISSING if isinstance(error, TaskMissing) else State.UNUSABLE, _clip(str(error))
    if isinstance(error, ProcessEnded):
        return State.CRASHED, _clip(str(error))
    places = _places(error)
    own = {str(file) for file in answer_files}
    mine = [place for place in places if place.file in own]
    if mine and isinstance(error, NotImplementedError) and places[-1].file in own:
        return State.NOT_STARTED, (f"{mine[-1].spot} still raises NotImplementedError",)
    if isinstance(error, TookTooLong):
        name, where = (
            (mine[0].function, f", last seen at {mine[-1].spot}: {mine[-1].code}") if mine else ("the code", "")
        )
        return State.TOO_SLOW, _clip(f"{name} was {error}{where}\n{_why_too_long(error)}")
    said = str(error).strip()
    kind = type(error).__name__
    if mine:
        hints = [OBJECT_OF_THE_TEST.sub("", note) for note in getattr(error, "__notes__", [])] + _numpy_hints(said)
        return State.CRASHED, _clip(
            "\n".join(
                (
                    f"{mine[0].function} raised {kind}{': ' + said if said else ''}",
                    f"at {mine[-1].spot}: {mine[-1].code}",
                    *hints,
                )
            )
        )
    if isinstance(error, AssertionError):
        return State.WRONG, _clip(said or f"not true: {places[-1].code}")
    tests = [place for place in places if Path(place.file).name.startswith("test_")]
    code = (tests or places)[-1].code
    return State.WRONG, _clip(f"what came back could not be used: {kind}: {said}\nthe test did: {code}")


def _numpy_hints(said: str) -> list[str]:
    """What usually causes NumPy's error, where it is one of two that say little."""
    if said.startswith("zero-size array to reduction operation"):
        return ["Usual cause: there is nothing to reduce, as in an empty block: max takes initial=-np.inf"]
    if shapes := NOT_BROADCAST.search(said):
        rows, one_a_row = (each.rstrip(",") for each in shapes.groups())
        if rows.rpartition(",")[0] == one_a_row:
            shape = shapes.group(2)
            return [
                f"Usual cause: keepdims=True is missing in max or sum: a number a row, ({shape}), meets the rows, "
                f"({rows}); [..., None] gives it the axis back"
            ]
    return []


def _why_too_long(error: TookTooLong) -> str:
    """What can be known: nobody can tell slow code from an endless loop by watching it."""
    if error.is_idle:
        return "It used little CPU time: it waits for something that does not come"
    share = error.why_less or "The limit is ten times what the slowest right answer of this lab needs for a test"
    return f"{share}: it is slow, or it never ends"


def _places(error: BaseException) -> list[Place]:
    """From the test to where the exception was raised. The traceback module reads every source on the way: too slow."""
    places: list[Place] = []
    entry = error.__traceback__
    while entry is not None:
        code = entry.tb_frame.f_code
        places.append(Place(code.co_filename, entry.tb_lineno, code.co_name))
        entry = entry.tb_next
    return [*places, *(Place(*place) for place in getattr(error, "far_places", ()))]


def _clip(text: str) -> tuple[str, ...]:
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    if len(lines) > MOST_LINES:
        lines = [*lines[: MOST_LINES - 1], f"… and {len(lines) - MOST_LINES + 1} more lines"]
    return tuple(part for line in lines for part in _folded(line))


def _folded(line: str) -> list[str]:
    """A line that is too long, on two: NumPy says at the end which sizes differ."""
    if len(line) <= LONGEST_LINE:
        return [line]
    return textwrap.wrap(line, LONGEST_LINE, subsequent_indent="  ", max_lines=2, placeholder=" …")
