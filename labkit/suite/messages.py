"""Messages for students: what one failed test means, and the lines of a whole run."""

from __future__ import annotations

import ast
import contextlib
import linecache
import os
import re
import signal
import textwrap
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from labkit.labs.manifest import Lab, Task
from labkit.suite.finder import TaskMissing, Unusable
from labkit.suite.limits import Exceeded, Limit, NotBegun, TookTooLong
from labkit.suite.results import (
    Ended,
    Failure,
    How,
    Kind,
    Place,
    State,
    TaskResult,
    TestResult,
    add_up,
    lab_points,
    max_share,
)
from labkit.suite.source_text import read_source

LONGEST_LINE = 160
"""Characters of a line of a message; what is longer is cut."""
MAX_LINES = 12
"""Lines of a message."""
SHOWN_IN_FULL = 3
"""Tests of a task whose messages are shown; the others are listed by name."""
NOT_BROADCAST = re.compile(r"could not be broadcast together with shapes \(([\d,]+)\) \(([\d,]+)\)")
USUAL_CAUSES = {
    "zero-size array to reduction operation": "there is nothing to reduce, as in an empty block: max takes "
    "initial=-np.inf",
    "need at least one array to concatenate": "there is no block; or a generator is gone through a second time, when "
    "it gives nothing more",
    "truth value of an array with more than one element": "an `if` takes one answer, and an array has one for each "
    "row: np.where chooses row by row",
    "torch.return_types.m": "max and min along a dim return (values, indices): take .values, or call amax or amin",
    "incorrect number of gradients": "a value is missing in what backward returns, or one too many: one belongs to "
    "each argument of forward after ctx, None where there is no gradient",
    "modified by an inplace operation": "a tensor that autograd has saved for backward is written into afterwards "
    "(+=, x[...] = …): make a new one",
    "Block pointers have been removed": "Triton 3.9 has no tl.make_block_ptr and no tl.advance any more: load from "
    "pointers, or by tl.make_tensor_descriptor",
    "floating point dtype can require gradients": "a tensor of integers is made to require grad, as token ids are: "
    "detach what requires grad already, and leave the rest as it is",
    "save_for_backward can only save": "ctx.save_for_backward is given what is no tensor: keep that as an attribute "
    "of ctx",
}
"""What an error's text holds → its usual cause."""

SIGNALS = {"SIGSEGV": "memory that is not its own", "SIGABRT": "a library gave up", "SIGKILL": "killed"}
WHY_CAPPED = {
    Kind.EXACT: "a test of ordinary inputs fails",
    Kind.ROBUST: "a test of extreme cases fails",
    Kind.COST: "a test of memory or work fails",
    Kind.MEMORY: "it needs more memory than it may",
    Kind.UNCHANGED: "an argument is changed",
}
"""What limits a task's points, true however the test has failed: by a wrong value, an exception or its time."""
STATED_CAUSE = re.compile(r"(?:That is exactly what comes out when|Usual cause:) (.+)", re.DOTALL)
"""How the comparisons of all suites name the cause of a failure, the last thing that they say."""
WholeSuite = Mapping[str, Collection[str]]
"""The names of all tests of each task."""


class ProcessEnded(Exception):
    """The code under test ended its process, whose exit status is `status`; None where that is not known."""

    def __init__(self, status: int | None) -> None:
        super().__init__(f"its process ended: {how_it_ended(status)}")
        self.status = status


class Line(str):
    """A line of text with its style, in the words that rich and pytest share."""

    style: str

    def __new__(cls, text: str, style: str = "") -> Line:
        """A line; without a style it has the terminal's own."""
        line = super().__new__(cls, text)
        line.style = style
        return line


# One test


def explain(error: BaseException, source_files: Sequence[Path]) -> tuple[State, Failure]:
    """Explains an exception in a test of the student's code, as data: all that is in the folders of `source_files`."""
    if isinstance(error, NotBegun):
        return State.NOT_RUN, Failure(exceeded=error.exceeded)
    if isinstance(error, Unusable):
        return State.MISSING if isinstance(error, TaskMissing) else State.UNUSABLE, Failure(str(error))
    if isinstance(error, ProcessEnded):
        return State.CRASHED, Failure(str(error))
    entries = _traceback(error)
    folders = tuple({f"{file.parent}{os.sep}" for file in source_files})
    own = [entry for entry in entries if entry.file.startswith(folders)]
    place = own[-1].place(own[0].function) if own else None
    if own and isinstance(error, NotImplementedError) and entries[-1] is own[-1]:
        return State.NOT_STARTED, Failure(place=place)
    if isinstance(error, TookTooLong):
        return State.TOO_SLOW, Failure(str(error), place=place, exceeded=error.exceeded)
    text = str(error).strip()
    kind = "MemoryError" if isinstance(error, MemoryError) else type(error).__name__  # NumPy has one of its own
    if own:
        notes = tuple(getattr(error, "__notes__", ()))
        cause = _usual_cause(text, own[-1].code) or stated_cause("\n".join([text, *notes]))
        return State.CRASHED, Failure(text, cause, notes=notes, place=place, error=kind)
    tests = [entry for entry in entries if Path(entry.file).name.startswith("test_")]
    if isinstance(error, AssertionError):
        code = "" if text else entries[-1].code
        lines = [f"{each.place(each.function)}: {each.code}" for each in tests[-1:]]
        details = (*lines, *getattr(error, "__notes__", ()))
        recognised, excluded = getattr(error, "recognised", ""), getattr(error, "excluded", ())
        exceeded = _exceeded_memory(error)
        cause = stated_cause(text)
        return State.WRONG, Failure(text, cause, recognised, excluded, code=code, exceeded=exceeded, details=details)
    code = (tests or entries)[-1].code
    return State.WRONG, Failure(text, _usual_cause(text, code) or stated_cause(text), error=kind, code=code)


def failure_lines(state: State, failure: Failure, caller: str = "the test") -> tuple[str, ...]:
    """What a student reads of a failed test, in at most a dozen lines; `caller` is what called the code."""
    text, place = failure.message, failure.place
    if state is State.NOT_RUN:
        lines = [_why_not_run(failure)]
    elif state is State.NOT_STARTED:
        lines = [f"{place} still raises NotImplementedError"]
    elif state is State.TOO_SLOW:
        lines = [
            f"{place.function} was {text}, last seen at {place}: {place.code}" if place else f"the code was {text}"
        ]
        lines += [_why_too_long(failure.exceeded)] if failure.exceeded else []
    elif place:
        raised = f"{place.function} raised {failure.error}" + (f": {text}" if text else "")
        lines = [raised, f"at {place}: {place.code}", *failure.notes]
    elif failure.error:
        lines = [f"what came back could not be used: {failure.error}: {text}", f"{caller} did: {failure.code}"]
    else:
        lines = [text or f"not true: {failure.code}"]
    if failure.cause and failure.cause not in "\n".join(lines):
        lines.append(f"Usual cause: {failure.cause}")
    return _clip("\n".join(lines))


def result_lines(result: TestResult) -> tuple[str, ...]:
    """What a student reads of a test that failed; see `failure_lines`."""
    return failure_lines(result.state, result.failure)


def stated_cause(text: str) -> str:
    """The cause that a comparison's message ends with, in the form that all suites use; "" where it names none."""
    found = STATED_CAUSE.search(text)
    return found[1] if found else ""


def how_it_ended(status: int | None) -> str:
    """The exit status of a process in words; signals are negative numbers."""
    if status is None:
        return "it has ended"
    if status >= 0:
        return f"it left with status {status}"
    name = signal.Signals(-status).name
    return f"{name} ({SIGNALS[name]})" if name in SIGNALS else name


class _Entry(NamedTuple):
    """One entry of a traceback."""

    file: str
    line_number: int
    function: str

    def place(self, function: str) -> Place:
        """It as a place, where `function` was called first."""
        return Place(Path(self.file).name, self.line_number, self.code, function)

    @property
    def code(self) -> str:
        """The line itself."""
        return linecache.getline(self.file, self.line_number).strip()


def _traceback(error: BaseException) -> list[_Entry]:
    """From the test to where the exception was raised."""
    entries: list[_Entry] = []
    entry = error.__traceback__
    while entry is not None:  # the traceback module reads every source on the way, which is too slow
        code = entry.tb_frame.f_code
        entries.append(_Entry(code.co_filename, entry.tb_lineno, code.co_name))
        entry = entry.tb_next
    in_worker = getattr(error, "worker_frames", ())  # where the code runs in a worker
    return [*entries, *(_Entry(*place) for place in in_worker)]


def _usual_cause(text: str, code: str) -> str:
    """The usual cause of an error of NumPy, torch or Python that says little, raised by the line `code`."""
    for said, cause in USUAL_CAUSES.items():
        if said in text:
            return cause
    if "too many values to unpack" in text and ".shape" in code:
        return "there may be leading axes, for a batch and heads: x.shape[-2:] gives the last two"
    if "'function' object is not subscriptable" in text and "](" in code:
        return "`@triton.jit` is missing above the kernel: kernel[grid](…) launches what it makes"
    if shapes := NOT_BROADCAST.search(text):
        rows, one_a_row = (each.rstrip(",") for each in shapes.groups())
        if rows.rpartition(",")[0] == one_a_row:
            return (
                f"one number a row, ({shapes.group(2)}), meets the rows, ({rows}): [..., None] gives it the last axis "
                "back; max and sum keep it with keepdims=True"
            )
    return ""


def _exceeded_memory(error: AssertionError) -> Exceeded | None:
    from labkit.testing.memory_limit import NeedsMoreMemory

    if not isinstance(error, NeedsMoreMemory):
        return None
    return Exceeded(Limit.MEMORY, error.allowed_mib, error.used_mib)


def _why_too_long(exceeded: Exceeded) -> str:
    """Why a test may have taken too long: slow code and an endless loop look the same from outside."""
    if exceeded.limit is Limit.CLOCK:
        return (
            f"It used only {exceeded.used:.1f} s of CPU time: it waits for something that never comes, or other "
            "programs keep this machine busy"
        )
    return (
        "The limit is ten times what the slowest correct solution of this lab needs for a test: it is slow, or it "
        "never ends"
    )


def _why_not_run(failure: Failure) -> str:
    if failure.exceeded is None:
        return f"not reached: {failure.message}"
    if failure.exceeded.limit is Limit.SLOW_TESTS:
        return "not run: three tests before it took too long"
    return f"not run: its process ended {failure.exceeded.allowed:g} times"


def _clip(text: str) -> tuple[str, ...]:
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    if len(lines) > MAX_LINES:
        lines = [*lines[: MAX_LINES - 1], f"… and {len(lines) - MAX_LINES + 1} more lines"]
    return tuple(part for line in lines for part in _folded(line))


def _folded(line: str) -> list[str]:
    """A long line split in two, since NumPy names the sizes that differ at the end."""
    if len(line) <= LONGEST_LINE:
        return [line]
    return textwrap.wrap(line, LONGEST_LINE, subsequent_indent="  ", max_lines=2, placeholder=" …")


# A run


def run_lines(
    lab: Lab,
    results: Sequence[TestResult],
    *,
    everything: bool = False,
    details: bool = False,
    whole_suite: WholeSuite | None = None,
    more: str = "-v",
) -> list[Line]:
    """The lines of a run: one per task, what failed and why, the points, and what to do next.

    Args:
        everything: show every failed test in full, not only the first few that say something new; and its details.
        details: show the details of failed tests.
        whole_suite: the names of all tests of each task, where not all of them may have been run.
        more: the option that shows everything, where the lines are shown.
    """
    tasks = add_up(lab, results)
    if (problem := _same_problem(results)) and len(tasks) > 1:
        return unusable_lines(lab, problem, tasks)
    parts = _parts(results, whole_suite or {})
    following = _following(lab, tasks)
    lines = task_lines(lab, results, everything=everything, details=details, whole_suite=whole_suite, more=more)
    hint = f"{following.name} — a hint: uv run lab hint {lab.number} {following.name}" if following else ""
    if not parts:
        return [*lines, *_closing(lab, tasks, hint)]
    whole = {name: task_result for name, task_result in tasks.items() if name not in parts}
    lines += _closing(lab, whole, "") if whole else [Line("")]
    lines.append(Line(f"{lab.label}: a task has points when every test of it was run"))
    if hint:
        lines.append(Line(f"next: {hint}", "bold"))
    return lines


def task_lines(
    lab: Lab,
    results: Sequence[TestResult],
    *,
    everything: bool = False,
    details: bool = False,
    whole_suite: WholeSuite | None = None,
    more: str = "-v",
) -> list[Line]:
    """The lines of the tasks alone, without the points and what to do next; arguments as in `run_lines`."""
    tasks = add_up(lab, results)
    if (problem := _same_problem(results)) and len(tasks) > 1:
        return [Line(f"{lab.label} · {problem}")]
    parts = _parts(results, whole_suite or {})
    following = _following(lab, tasks)
    lines: list[Line] = []
    called = tasks_called_by(lab)
    for name, task_result in tasks.items():
        own = [result for result in results if result.task == name]
        if problem := _same_problem(own):
            lines.append(Line(f"{lab.label} · {name} · {problem}"))
            continue
        if name in parts and task_result.started:
            lines.append(
                Line(f"{lab.label} · {name} · {parts[name]} tests were run, {task_result.passed} of them pass")
            )
        else:
            is_next = following is not None and following.name == name
            lines.append(task_line(lab, task_result, start_here=is_next))
            lines += map(Line, _capped(lab, task_result, own))
        lines += map(Line, _follows(called.get(name, []), tasks, task_result))
        lines += _failures([result for result in own if not result.passed], everything, details or everything, more)
    return lines


def ending_text(ended: Ended) -> str:
    """Why a run did not come to its end; "" where it did."""
    match ended.how:
        case How.FINISHED:
            return ""
        case How.OUT_OF_TIME if ended.exceeded:
            return f"the run did not end within {ended.exceeded.allowed:g} {ended.exceeded.limit}"
        case How.INTERRUPTED:
            return f"interrupted {interrupted_text(ended)}"
        case How.DIED | How.OUT_OF_TIME:
            what = (
                f"importing {ended.imported} ends the process" if ended.imported else "the run ended without a result"
            )
            return f"{what}: {how_it_ended(ended.status)}"
    return ended.detail


def interrupted_text(ended: Ended) -> str:
    """Where Ctrl-C came."""
    if ended.place is None:
        return "outside your code"
    return f"at {ended.place}" + (f": {ended.place.code}" if ended.place.code else "")


def unusable_lines(lab: Lab, problem: str, tasks: Mapping[str, TaskResult] | None = None) -> list[Line]:
    """The lines of a run in which the file could not be used at all; `tasks` are the requested ones."""
    if tasks is None:
        tasks = {task.name: TaskResult(task.name, 0, 0, started=True) for task in lab.tasks}
    return [Line(f"{lab.label} · {problem}"), *_closing(lab, tasks, "fix this first: no test can run before")]


def task_line(lab: Lab, result: TaskResult, start_here: bool = False) -> Line:
    """One task in one line."""
    head = f"{lab.label} · {result.task}"
    if result.done:
        return Line(f"{head} · done ({result.total} tests)", "green")
    if result.started:
        return Line(f"{head} · {result.passed} of {result.total} tests pass")
    if start_here:
        return Line(f"{head} · not implemented yet — start here: {_place_of(lab, result.task)}", "bold")
    return Line(f"{head} · not implemented yet")


def _place_of(lab: Lab, task: str) -> str:
    """The student's file, from the repository's root, and the line of the task, as editors and terminals open it."""
    file = str(lab.student_file.relative_to(lab.folder.parent.parent))
    with contextlib.suppress(OSError, ValueError):
        for number, line in enumerate(read_source(lab.student_file).splitlines(), 1):
            if re.match(rf"(def|class) {task}\b", line):
                return f"{file}:{number}"
    return file


def change_lines(lab: Lab, before: Mapping[str, TaskResult], after: Mapping[str, TaskResult]) -> list[Line]:
    """What changed since the previous run, one line per task."""
    lines = []
    for name, now in after.items():
        was = before.get(name)
        if was is None or (was.passed == now.passed and was.total in (0, now.total)):  # of 0: it was not begun
            continue
        arrow, style = ("▲", "green") if now.passed > was.passed else ("▼", "red")
        lines.append(Line(f"{arrow} {lab.label} · {name} · {was.passed} → {now.passed} of {now.total}", style))
    return lines


def points_text(points: float) -> str:
    """Points without needless decimals."""
    return f"{points:.1f}".removesuffix(".0")


def tasks_called_by(lab: Lab) -> dict[str, list[str]]:
    """For each task, the earlier tasks that its code in the student's file calls, directly or through helpers."""
    try:
        tree = ast.parse(read_source(lab.student_file))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return {}
    defined = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    names_in = {
        name: {each.id for each in ast.walk(node) if isinstance(each, ast.Name)} & defined.keys()
        for name, node in defined.items()
    }
    tasks = [task.name for task in lab.tasks]
    found: dict[str, list[str]] = {}
    for number, name in enumerate(tasks):
        reached, left = {name}, [name]
        while left:
            new = names_in.get(left.pop(), set()) - reached
            reached |= new
            left += new
        found[name] = [earlier for earlier in tasks[:number] if earlier in reached]
    return found


def _same_problem(results: Sequence[TestResult]) -> str:
    """Why none of these tests can use the file, if the reason is the same for all."""
    problems = {(result.state, result.failure) for result in results}
    unusable = all(result.state in (State.UNUSABLE, State.MISSING) for result in results)
    return " ".join(failure_lines(*problems.pop())) if unusable and len(problems) == 1 else ""


def _following(lab: Lab, tasks: Mapping[str, TaskResult]) -> Task | None:
    """The first task of those that are not done."""
    return next((task for task in lab.tasks if task.name in tasks and not tasks[task.name].done), None)


def _closing(lab: Lab, tasks: Mapping[str, TaskResult], following: str) -> list[Line]:
    done = sum(result.done for result in tasks.values())
    total = sum(task.points for task in lab.tasks if task.name in tasks)
    earned = points_text(lab_points(lab, tasks))
    lines = [Line(""), Line(f"{lab.label}: {done} of {len(tasks)} tasks done, {earned} of {points_text(total)} points")]
    if following:
        lines.append(Line(f"next: {following}", "bold"))
    if done == len(lab.tasks):
        n_tests = sum(result.total for result in tasks.values())
        report = lab.folder.relative_to(lab.folder.parent.parent) / "report.ipynb"
        report_points = points_text(lab.report_points)
        lines.append(Line(f"★ Lab {lab.number}, {lab.title}, is done: all its {n_tests} tests pass.", "green"))
        lines.append(Line(f"  Left to do: the report, {report_points} points: {report}"))
    return lines


def _parts(results: Sequence[TestResult], whole_suite: WholeSuite) -> dict[str, str]:
    """How many tests were run, `4 of its 26`, for each task whose tests were not all run."""
    run: dict[str, set[str]] = {}
    for result in results:
        run.setdefault(result.task, set()).add(result.test)
    return {
        task: f"{len(tests)} of its {len(whole_suite[task])}"
        for task, tests in run.items()
        if task in whole_suite and not set(whole_suite[task]) <= tests
    }


def _capped(lab: Lab, task_result: TaskResult, results: Sequence[TestResult]) -> Iterable[str]:
    """Why a task earns less than the share of its tests that pass, if it does."""
    task = next(task for task in lab.tasks if task.name == task_result.task)
    if any(result.kind is Kind.BORROWED for result in results):
        yield "  no points: a library does the work that is yours to write"
    elif task_result.passed and not task_result.most_share:
        yield "  no points yet: no result on inputs drawn at random is right"
    elif task_result.passed / task_result.total > task_result.most_share:
        most = f"{points_text(task.points * task_result.most_share)} of its {points_text(task.points)} points"
        failed = {result.kind for result in results if not result.passed}
        share = task_result.most_share
        why = [text for kind, text in WHY_CAPPED.items() if kind in failed and max_share(task, kind) == share]
        yield f"  at most {most} while {' and '.join(why)}"


def _follows(called: Sequence[str], tasks: Mapping[str, TaskResult], task_result: TaskResult) -> Iterable[str]:
    """Explains that a task may fail because its code calls another unfinished task: one mistake, not two."""
    if task_result.started and not task_result.done:
        undone = [name for name in called if name in tasks and not tasks[name].done]
        if undone:
            yield f"  your code for it calls {undone[0]}, which is not right yet: fix {undone[0]} first"


def _failures(failed: list[TestResult], everything: bool, details: bool, more: str) -> Iterable[Line]:
    """The first distinct failures in full, the others by name; those that cost all points come first."""
    alike: dict[tuple[State, Failure], list[TestResult]] = {}
    for result in sorted(failed, key=lambda result: result.kind is not Kind.BORROWED):
        if result.state is not State.NOT_STARTED:
            alike.setdefault((result.state, result.failure), []).append(result)
    groups = list(alike.values())
    n_shown = len(groups) if everything else SHOWN_IN_FULL
    for number, (first, *others) in enumerate(groups[:n_shown]):
        yield Line(f"  ✗ {first.test}", "red")
        yield from (Line(f"      {line}") for line in result_lines(first))
        if number == 0 and not first.failure.recognised:
            yield from _recognised_later(failed)
        if details:
            yield from (Line(f"        {line}") for line in first.failure.details)
        if first.n_printed:
            lines = "1 line" if first.n_printed == 1 else f"{first.n_printed:,} lines"
            yield Line(f"      (your code printed {lines}; to see it: {more.replace('-v', '-s')})")
        if others:
            tests = "1 more test" if len(others) == 1 else f"{len(others)} more tests"
            yield Line(f"      and {tests}: the same ({_names(others)})")
    if rest := [result for group in groups[n_shown:] for result in group]:
        yield Line(f"  ✗ and {len(rest)} more of {_names(rest)} ({more} shows all)", "red")


def _recognised_later(failed: Sequence[TestResult]) -> Iterable[Line]:
    """The first cause that a later test recognised, for below a failure that has none: it is most often the same.

    Numbers can agree by chance at one size: a cause that more than three in four tests looked for
    and did not find is none.
    """
    excluded = Counter(text for result in failed for text in result.failure.excluded)
    recognised = Counter(result.failure.recognised for result in failed)
    for result in failed:
        if (cause := result.failure.recognised) and 3 * recognised[cause] >= excluded[cause]:
            yield Line(f"      {result.test} recognises a cause: {cause}")
            return


def _names(results: Iterable[TestResult]) -> str:
    names = sorted({result.test.split("[")[0] for result in results})
    return ", ".join(names[:4]) + (" …" if len(names) > 4 else "")
