"""Messages for students: what one failed test means, and the lines of a whole run."""

from __future__ import annotations

import ast
import contextlib
import linecache
import re
import signal
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from labkit.labs.manifest import Lab
from labkit.suite.finder import TaskMissing, Unusable
from labkit.suite.limits import TookTooLong
from labkit.suite.results import MAX_SHARE, Kind, State, TaskResult, TestResult, add_up, lab_points

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
    "torch.return_types.m": "max and min along a dim return (values, indices): take .values, or call amax or amin",
    "incorrect number of gradients": "a value is missing in what backward returns, or one too many: one belongs to "
    "each argument of forward after ctx, None where there is no gradient",
    "modified by an inplace operation": "a tensor that autograd has saved for backward is written into afterwards "
    "(+=, x[...] = …): make a new one",
    "Block pointers have been removed": "Triton 3.9 has no tl.make_block_ptr and no tl.advance any more: load from "
    "pointers, or by tl.make_tensor_descriptor",
    "save_for_backward can only save": "ctx.save_for_backward is given what is no tensor: keep that as an attribute "
    "of ctx",
}
"""What an error's text holds → its usual cause."""

SIGNALS = {"SIGSEGV": "memory that is not its own", "SIGABRT": "a library gave up", "SIGKILL": "killed"}
WHY_CAPPED = {
    Kind.EXACT: "a result on ordinary inputs is wrong",
    Kind.ROBUST: "a result on extreme inputs is wrong",
    Kind.COST: "memory or work exceeds its bound",
}
WholeSuite = Mapping[str, Collection[str]]
"""The names of all tests of each task."""


class ProcessEnded(Exception):
    """The code under test ended its process; the message describes how."""


# One test


def explain(error: BaseException, source_files: Sequence[Path]) -> tuple[State, tuple[str, ...]]:
    """Explains an exception in a test to the student, whose code is in `source_files`, in at most a dozen lines."""
    if isinstance(error, Unusable):
        return State.MISSING if isinstance(error, TaskMissing) else State.UNUSABLE, _clip(str(error))
    if isinstance(error, ProcessEnded):
        return State.CRASHED, _clip(str(error))
    entries = _traceback(error)
    own_files = {str(file) for file in source_files}
    own = [entry for entry in entries if entry.file in own_files]
    if own and isinstance(error, NotImplementedError) and entries[-1].file in own_files:
        return State.NOT_STARTED, (f"{own[-1].location} still raises NotImplementedError",)
    if isinstance(error, TookTooLong):
        if own:
            what = f"{own[0].function} was {error}, last seen at {own[-1].location}: {own[-1].code}"
        else:
            what = f"the code was {error}"
        return State.TOO_SLOW, _clip(f"{what}\n{_why_too_long(error)}")
    text = str(error).strip()
    kind = "MemoryError" if isinstance(error, MemoryError) else type(error).__name__  # NumPy has one of its own
    if own:
        notes = list(getattr(error, "__notes__", []))
        raised = f"{own[0].function} raised {kind}" + (f": {text}" if text else "")
        where = f"at {own[-1].location}: {own[-1].code}"
        return State.CRASHED, _clip("\n".join([raised, where, *notes, *_usual_cause(text, own[-1].code)]))
    if isinstance(error, AssertionError):
        return State.WRONG, _clip(text or f"not true: {entries[-1].code}")
    tests = [entry for entry in entries if Path(entry.file).name.startswith("test_")]
    code = (tests or entries)[-1].code
    lines = [f"what came back could not be used: {kind}: {text}", f"the test did: {code}", *_usual_cause(text, code)]
    return State.WRONG, _clip("\n".join(lines))


def how_it_ended(status: int) -> str:
    """The exit status of a process in words; signals are negative numbers."""
    if status >= 0:
        return f"it left with status {status}"
    name = signal.Signals(-status).name
    return f"{name} ({SIGNALS[name]})" if name in SIGNALS else name


class _Entry(NamedTuple):
    """One entry of a traceback."""

    file: str
    line_number: int
    function: str

    @property
    def location(self) -> str:
        """File and line, as an editor jumps to it."""
        return f"{Path(self.file).name}:{self.line_number}"

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
    in_worker = getattr(error, "far_places", ())  # where the code runs in a worker
    return [*entries, *(_Entry(*place) for place in in_worker)]


def _usual_cause(text: str, code: str) -> list[str]:
    """The usual cause of an error of NumPy, torch or Python that says little, raised by the line `code`."""
    for said, cause in USUAL_CAUSES.items():
        if said in text:
            return [f"Usual cause: {cause}"]
    if "too many values to unpack" in text and ".shape" in code:
        return ["Usual cause: there may be leading axes, for a batch and heads: x.shape[-2:] gives the last two"]
    if "'function' object is not subscriptable" in text and "](" in code:
        return ["Usual cause: `@triton.jit` is missing above the kernel: kernel[grid](…) launches what it makes"]
    if shapes := NOT_BROADCAST.search(text):
        rows, one_a_row = (each.rstrip(",") for each in shapes.groups())
        if rows.rpartition(",")[0] == one_a_row:
            return [
                f"Usual cause: one number a row, ({shapes.group(2)}), meets the rows, ({rows}): [..., None] gives it "
                "the last axis back; max and sum keep it with keepdims=True"
            ]
    return []


def _why_too_long(error: TookTooLong) -> str:
    """Why a test may have taken too long: slow code and an endless loop look the same from outside."""
    if error.cpu_seconds is not None:
        return (
            f"It used only {error.cpu_seconds:.1f} s of CPU time: it waits for something that never comes, or other "
            "programs keep this machine busy"
        )
    share = error.why_less or "The limit is ten times what the slowest correct solution of this lab needs for a test"
    return f"{share}: it is slow, or it never ends"


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
    whole_suite: WholeSuite | None = None,
    more: str = "-v",
) -> list[str]:
    """The lines of a run: one per task, what failed and why, the points, and what to do next.

    Args:
        everything: show every failed test in full, not only the first few that say something new.
        whole_suite: the names of all tests of each task, where not all of them may have been run.
        more: the option that shows everything, where the lines are shown.
    """
    tasks = add_up(lab, results)
    parts = _parts(results, whole_suite or {})
    following = next((task for task in lab.tasks if task.name in tasks and not tasks[task.name].done), None)
    if (problem := _same_problem(results)) and len(tasks) > 1:
        return unusable_lines(lab, problem, tasks)
    lines: list[str] = []
    called = tasks_called_by(lab)
    for name, task_result in tasks.items():
        own = [result for result in results if result.task == name]
        if problem := _same_problem(own):
            lines.append(f"{lab.label} · {name} · {problem}")
            continue
        if name in parts and task_result.started:
            lines.append(f"{lab.label} · {name} · {parts[name]} tests were run, {task_result.passed} of them pass")
        else:
            is_next = following is not None and following.name == name
            lines.append(task_line(lab, task_result, start_here=is_next))
            lines += _capped(lab, task_result, own)
        lines += _follows(called.get(name, []), tasks, task_result)
        lines += _failures([result for result in own if not result.passed], everything, more)
    hint = f"{following.name} — a hint: uv run lab hint {lab.number} {following.name}" if following else ""
    if not parts:
        return [*lines, *_closing(lab, tasks, hint)]
    whole = {name: task_result for name, task_result in tasks.items() if name not in parts}
    lines += _closing(lab, whole, "") if whole else [""]
    lines.append(f"{lab.label}: a task has points when every test of it was run")
    if hint:
        lines.append(f"next: {hint}")
    return lines


def unusable_lines(lab: Lab, problem: str, tasks: Mapping[str, TaskResult] | None = None) -> list[str]:
    """The lines of a run in which the file could not be used at all; `tasks` are the requested ones."""
    if tasks is None:
        tasks = {task.name: TaskResult(task.name, 0, 0, started=True) for task in lab.tasks}
    return [f"{lab.label} · {problem}", *_closing(lab, tasks, "fix this first: no test can run before")]


def task_line(lab: Lab, result: TaskResult, start_here: bool = False) -> str:
    """One task in one line."""
    head = f"{lab.label} · {result.task}"
    if result.done:
        return f"{head} · done ({result.total} tests)"
    if not result.started:
        return f"{head} · not implemented yet" + (f" — start here: {_place_of(lab, result.task)}" if start_here else "")
    return f"{head} · {result.passed} of {result.total} tests pass"


def _place_of(lab: Lab, task: str) -> str:
    """The student's file, from the repository's root, and the line of the task, as editors and terminals open it."""
    file = str(lab.student_file.relative_to(lab.folder.parent.parent))
    with contextlib.suppress(OSError, ValueError):
        for number, line in enumerate(lab.student_file.read_text(encoding="utf-8-sig").splitlines(), 1):
            if re.match(rf"(def|class) {task}\b", line):
                return f"{file}:{number}"
    return file


def change_lines(lab: Lab, before: Mapping[str, TaskResult], after: Mapping[str, TaskResult]) -> list[str]:
    """What changed since the previous run, one line per task."""
    lines = []
    for name, now in after.items():
        was = before.get(name)
        if was is None or (was.passed, was.total) == (now.passed, now.total):
            continue
        arrow = "▲" if now.passed > was.passed else "▼"
        lines.append(f"{arrow} {lab.label} · {name} · {was.passed} → {now.passed} of {now.total}")
    return lines


def line_style(line: str) -> str:
    """How a line is coloured, in the words that rich and pytest share."""
    text = line.strip()
    if text.startswith(("✗", "▼")):
        return "red"
    if text.startswith(("▲", "★")) or "· done" in text:
        return "green"
    if "start here" in text or text.startswith("next:"):
        return "bold"
    return ""


def points_text(points: float) -> str:
    """Points without needless decimals."""
    return f"{points:.1f}".removesuffix(".0")


def tasks_called_by(lab: Lab) -> dict[str, list[str]]:
    """For each task, the earlier tasks that its code in the student's file calls, directly or through helpers."""
    try:
        tree = ast.parse(lab.student_file.read_text(encoding="utf-8-sig"))
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
    problems = {result.lines for result in results}
    unusable = all(result.state in (State.UNUSABLE, State.MISSING) for result in results)
    return " ".join(problems.pop()) if unusable and len(problems) == 1 else ""


def _closing(lab: Lab, tasks: Mapping[str, TaskResult], following: str) -> list[str]:
    done = sum(result.done for result in tasks.values())
    total = sum(task.points for task in lab.tasks if task.name in tasks)
    earned = points_text(lab_points(lab, tasks))
    lines = ["", f"{lab.label}: {done} of {len(tasks)} tasks done, {earned} of {points_text(total)} points"]
    if following:
        lines.append(f"next: {following}")
    if done == len(lab.tasks):
        n_tests = sum(result.total for result in tasks.values())
        report = lab.folder.relative_to(lab.folder.parent.parent) / "report.ipynb"
        report_points = points_text(lab.report_points)
        lines.append(f"★ Lab {lab.number}, {lab.title}, is done: all its {n_tests} tests pass.")
        lines.append(f"  Left to do: the report, {report_points} points: {report}")
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
    if task_result.passed and any(result.kind is Kind.BORROWED for result in results):
        yield "  no points: a library does the work that is yours to write"
    elif task_result.passed and not task_result.most_share:
        yield "  no points yet: no result on inputs drawn at random is right"
    elif task_result.passed / task_result.total > task_result.most_share:
        most = f"{points_text(task.points * task_result.most_share)} of its {points_text(task.points)} points"
        failed = {result.kind for result in results if not result.passed}
        share = task_result.most_share
        why = [text for kind, text in WHY_CAPPED.items() if kind in failed and MAX_SHARE[kind] == share]
        yield f"  at most {most} while {' and '.join(why)}"


def _follows(called: Sequence[str], tasks: Mapping[str, TaskResult], task_result: TaskResult) -> Iterable[str]:
    """Explains that a task may fail because its code calls another unfinished task: one mistake, not two."""
    if task_result.started and not task_result.done:
        undone = [name for name in called if name in tasks and not tasks[name].done]
        if undone:
            yield f"  your code for it calls {undone[0]}, which is not right yet: fix {undone[0]} first"


def _failures(failed: list[TestResult], everything: bool, more: str) -> Iterable[str]:
    """The first distinct failures in full, the others by name; those that cost all points come first."""
    alike: dict[tuple[str, ...], list[TestResult]] = {}
    for result in sorted(failed, key=lambda result: result.kind is not Kind.BORROWED):
        if result.state is not State.NOT_STARTED:
            alike.setdefault(result.lines, []).append(result)
    groups = list(alike.values())
    n_shown = len(groups) if everything else SHOWN_IN_FULL
    for first, *others in groups[:n_shown]:
        yield f"  ✗ {first.test}"
        yield from (f"      {line}" for line in first.lines)
        if first.n_printed:
            lines = "1 line" if first.n_printed == 1 else f"{first.n_printed:,} lines"
            yield f"      (your code printed {lines}; to see it: {more.replace('-v', '-s')})"
        if others:
            tests = "1 more test" if len(others) == 1 else f"{len(others)} more tests"
            yield f"      and {tests}: the same ({_names(others)})"
    if rest := [result for group in groups[n_shown:] for result in group]:
        yield f"  ✗ and {len(rest)} more of {_names(rest)} ({more} shows all)"


def _names(results: Iterable[TestResult]) -> str:
    names = sorted({result.test.split("[")[0] for result in results})
    return ", ".join(names[:4]) + (" …" if len(names) > 4 else "")
