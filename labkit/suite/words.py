"""The words of a run: the lines that pytest, `lab check`, `lab watch` and a report's check cells show."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from labkit.labs.manifest import Lab
from labkit.suite.dependencies import tasks_run_by
from labkit.suite.results import MOST_SHARE, TaskResult, add_up, lab_points
from labkit.suite.verdict import Kind, State, Verdict

SHOWN_IN_FULL = 3
WholeSuite = Mapping[str, Collection[str]]
WHY_CAPPED = {
    Kind.EXACT: "a result on ordinary inputs is wrong",
    Kind.ROBUST: "a result on extreme inputs is wrong",
    Kind.SMALL: "memory or work exceeds its bound",
}


def run_lines(
    lab: Lab,
    verdicts: Sequence[Verdict],
    *,
    everything: bool = False,
    whole_suite: WholeSuite | None = None,
    more: str = "-v",
) -> list[str]:
    """A run of one lab: a line for each task judged, what failed and why, the points, what is next.

    Args:
        everything: tell every failed test in full, not only the first few that say something new.
        whole_suite: the names of all tests of each task, where not all of them may have been run.
        more: the switch that tells everything, where the lines are shown.
    """
    results = add_up(lab, verdicts)
    parts = _parts(verdicts, whole_suite or {})
    following = next((task for task in lab.tasks if task.name in results and not results[task.name].done), None)
    if (problem := _same_problem(verdicts)) and len(results) > 1:
        return unusable_lines(lab, problem, results)
    lines: list[str] = []
    runs = tasks_run_by(lab)
    for name, result in results.items():
        judged = [verdict for verdict in verdicts if verdict.task == name]
        if problem := _same_problem(judged):
            lines.append(f"{lab.label} · {name} · {problem}")
            continue
        if name in parts and result.started:
            lines.append(f"{lab.label} · {name} · {parts[name]} tests were run, {result.passed} of them pass")
        else:
            lines.append(task_line(lab, result, start_here=following is not None and following.name == name))
            lines += _capped(lab, result, judged)
        lines += _follows(runs.get(name, []), results, result)
        lines += _failures([verdict for verdict in judged if not verdict.passed], everything, more)
    hint = f"{following.name} — a hint: uv run lab hint {lab.number} {following.name}" if following else ""
    if not parts:
        return [*lines, *_closing(lab, results, hint)]
    whole = {name: result for name, result in results.items() if name not in parts}
    lines += _closing(lab, whole, "") if whole else [""]
    lines.append(f"{lab.label}: a task has points when every test of it was run")
    return [*lines, *([f"next: {hint}"] if hint else [])]


def unusable_lines(lab: Lab, problem: str, results: Mapping[str, TaskResult] | None = None) -> list[str]:
    """A run in which nothing could be judged, since the file cannot be used; `results` are of the tasks asked for."""
    if results is None:
        results = {task.name: TaskResult(task.name, 0, 0, started=True) for task in lab.tasks}
    return [f"{lab.label} · {problem}", *_closing(lab, results, "mend this first: nothing can be judged before")]


def task_line(lab: Lab, result: TaskResult, start_here: bool = False) -> str:
    """One task in one line."""
    head = f"{lab.label} · {result.task}"
    if result.done:
        return f"{head} · done ({result.total} tests)"
    if not result.started:
        return f"{head} · not implemented yet" + (" — start here" if start_here else "")
    return f"{head} · {result.passed} of {result.total} tests pass"


def change_lines(lab: Lab, before: Mapping[str, TaskResult], after: Mapping[str, TaskResult]) -> list[str]:
    """What a run changed against the one before, a line a task."""
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


def _same_problem(verdicts: Sequence[Verdict]) -> str:
    """What keeps all of these tests from using the file, if it is one and the same thing."""
    problems = {verdict.lines for verdict in verdicts}
    unusable = all(verdict.state in (State.UNUSABLE, State.MISSING) for verdict in verdicts)
    return " ".join(problems.pop()) if unusable and len(problems) == 1 else ""


def _closing(lab: Lab, results: Mapping[str, TaskResult], following: str) -> list[str]:
    done = sum(result.done for result in results.values())
    total = sum(task.points for task in lab.tasks if task.name in results)
    earned = points_text(lab_points(lab, results))
    lines = ["", f"{lab.label}: {done} of {len(results)} tasks done, {earned} of {points_text(total)} points"]
    if following:
        lines.append(f"next: {following}")
    return [*lines, *(_celebration(lab, results) if done == len(lab.tasks) else [])]


def _celebration(lab: Lab, results: Mapping[str, TaskResult]) -> list[str]:
    n_tests = sum(result.total for result in results.values())
    report = points_text(sum(question.points for question in lab.questions))
    where = lab.folder.relative_to(lab.folder.parent.parent) / "report.ipynb"
    return [
        f"★ Lab {lab.number}, {lab.title}, is done: all of its {n_tests} tests pass.",
        f"  The report is left, {report} points: {where}",
    ]


def _parts(verdicts: Sequence[Verdict], whole_suite: WholeSuite) -> dict[str, str]:
    """How many tests were run, `4 of its 26`, of each task of which not all were."""
    run: dict[str, set[str]] = {}
    for verdict in verdicts:
        run.setdefault(verdict.task, set()).add(verdict.test)
    return {
        task: f"{len(tests)} of its {len(whole_suite[task])}"
        for task, tests in run.items()
        if task in whole_suite and not set(whole_suite[task]) <= tests
    }


def _capped(lab: Lab, result: TaskResult, judged: Sequence[Verdict]) -> Iterable[str]:
    """Why a task earns less than the share of its tests that pass, if it does."""
    task = next(task for task in lab.tasks if task.name == result.task)
    if result.passed and any(verdict.kind is Kind.OWN for verdict in judged):
        yield "  no points: a library does the work that is yours to write"
    elif result.passed and not result.most_share:
        yield "  no points yet: no result on inputs drawn at random is right"
    elif result.passed / result.total > result.most_share:
        most = f"{points_text(task.points * result.most_share)} of its {points_text(task.points)} points"
        failed = {verdict.kind for verdict in judged if not verdict.passed}
        why = [text for kind, text in WHY_CAPPED.items() if kind in failed and MOST_SHARE[kind] == result.most_share]
        yield f"  at most {most} while {' and '.join(why)}"


def _follows(runs: Sequence[str], results: Mapping[str, TaskResult], result: TaskResult) -> Iterable[str]:
    """That a task fails for another one's sake, where its code runs one that is not done."""
    if result.started and not result.done:
        undone = [name for name in runs if name in results and not results[name].done]
        if undone:
            yield f"  your code for it runs {undone[0]}, which is not right yet: mend {undone[0]} first"


def _failures(failed: list[Verdict], everything: bool, more: str) -> Iterable[str]:
    """The first failures that differ in full, the others by name; first what takes all points away."""
    alike: dict[tuple[str, ...], list[Verdict]] = {}
    for verdict in sorted(failed, key=lambda verdict: verdict.kind is not Kind.OWN):
        if verdict.state is not State.NOT_STARTED:
            alike.setdefault(verdict.lines, []).append(verdict)
    groups = list(alike.values())
    n_shown = len(groups) if everything else SHOWN_IN_FULL
    for first, *others in groups[:n_shown]:
        yield f"  ✗ {first.test}"
        yield from (f"      {line}" for line in first.lines)
        if first.n_printed:
            lines = "1 line" if first.n_printed == 1 else f"{first.n_printed:,} lines"
            yield f"      (your code printed {lines}: {more.replace('-v', '-s')} shows them)"
        if others:
            tests = "1 more test" if len(others) == 1 else f"{len(others)} more tests"
            yield f"      and {tests}: the same ({_names(others)})"
    if rest := [verdict for group in groups[n_shown:] for verdict in group]:
        yield f"  ✗ and {len(rest)} more of {_names(rest)} ({more} shows all)"


def _names(verdicts: Iterable[Verdict]) -> str:
    names = sorted({verdict.test.split("[")[0] for verdict in verdicts})
    return ", ".join(names[:4]) + (" …" if len(names) > 4 else "")
