"""Summarizes the results of one lab's submissions, as lines for a terminal and as a table."""

from __future__ import annotations

import csv
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from labkit.labs.catalog import solution_file
from labkit.labs.manifest import Lab, Task
from labstaff.authoring.mistakes import mistakes_of
from labstaff.derive.build import derive_stub
from labstaff.grader.plain_text import cell, one_line
from labstaff.grader.results import GradedSubmission
from labstaff.grader.source import read_source
from labstaff.grading.parallel import Outcome
from labstaff.grading.report import earned, finding_line, total
from labstaff.grading.similar import similar_groups

N_BINS = 5
MAX_CAUSES = 8
MAX_TESTS = 5
MAX_FINDINGS = 3
COLUMNS = ("student", "lab", "task", "points", "max_points", "passed", "tests", "status", "flags")
MODEL = "the model solution"
OR = "; or when "
"""Between several causes that one message names."""


def summary_lines(lab: Lab, outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Scores, tasks, causes and tests of most failures; then whom to look at, and whose code is nearly the same."""
    graded = [(one_line(outcome.submitted.student), outcome.result) for outcome in outcomes if outcome.result]
    yield f"{lab.label} · {lab.title}: {len(graded)} submissions graded"
    results = [result for _, result in graded]
    if results:
        yield _distribution(lab, [total(result, lab) for result in results])
    width = max(len(task.name) for task in lab.tasks)
    for task in lab.tasks:
        passed = sum(result.shares.get(task.name, 0.0) >= 1.0 for result in results)
        mean = sum(earned(result, task.name, task.points) for result in results) / max(len(results), 1)
        yield (
            f"  {task.name:<{width}}  {passed:>4} of {len(results)} pass all tests · "
            f"mean {mean:.1f} of {task.points:g} points"
        )
    begun = [result for result in results if "passed" in result.tests.values()]
    yield from _frequent("most frequent causes:", frequent_causes(lab, begun), MAX_CAUSES)
    yield from _frequent("most failed tests:", Counter(t for r in begun for t in _failed_tests(r)), MAX_TESTS)
    for student, result in graded:
        if result.status != "graded":
            yield f"not graded: {student}: {one_line(result.reason)}"
    for student, result in graded:
        for flag in result.flags:
            yield f"look at: {student}: {one_line(flag)}"
        if result.findings:
            yield f"look at: {student}: {finding_line(result, MAX_FINDINGS)}"
    for outcome in outcomes:
        if outcome.result is None:
            yield f"FAILED: {one_line(outcome.submitted.student)}: {one_line(outcome.problem)}"
    yield from _similar_lines(lab, graded)


def frequent_causes(lab: Lab, results: Sequence[GradedSubmission]) -> Counter[str]:
    """How many submissions were given each cause by a failed test, once each; a known mistake's command is added.

    A message may name several causes: of a task's causes those count that explain its messages with the fewest.
    """
    mistakes, counts = mistakes_of(lab), Counter[str]()
    for result in results:
        causes: dict[str, list[set[str]]] = {}
        for test, cause in result.causes.items():
            if task := lab.task_of(test.split("::")[0]):
                parts = " ".join(cause.split()).split(OR)
                causes.setdefault(task.name, []).append({part.partition("; ")[0] for part in parts})
        for task_name, messages in causes.items():
            while messages:
                shared = Counter(cause for message in messages for cause in sorted(message))
                cause = shared.most_common(1)[0][0]
                messages = [message for message in messages if cause not in message]
                names = [each.name for each in mistakes if each.task == task_name and each.says and each.says in cause]
                command = f" (lab mistake {lab.number} {names[0]})" if len(names) == 1 else ""
                counts[f"{task_name}: {one_line(cause)}{command}"] += 1
    return counts


def write_table(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Write a CSV file with a row for each submission and task, sorted by student, lab and task."""
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(COLUMNS)
        for outcome in sorted(outcomes, key=lambda each: (each.submitted.student, each.submitted.lab.number)):
            for task in outcome.submitted.lab.tasks:
                table.writerow(_row(outcome, task))


def _row(outcome: Outcome, task: Task) -> list[object]:
    student, lab, result = cell(outcome.submitted.student), outcome.submitted.lab, outcome.result
    if result is None:
        return [student, lab.folder.name, task.name, 0.0, task.points, 0, 0, cell(outcome.problem), 0]
    states = [state for name, state in result.tests.items() if name.split("::")[0] == task.tests]
    points = [earned(result, task.name, task.points), task.points]
    n_flags = len(result.flags) + len(result.findings)
    return [student, lab.folder.name, task.name, *points, states.count("passed"), len(states), result.status, n_flags]


def _distribution(lab: Lab, points: Sequence[float]) -> str:
    """How many submissions have so many points, in equal steps, and the median."""
    step = lab.points / N_BINS
    counts = Counter(min(int(each / step), N_BINS - 1) for each in points)
    bins = " · ".join(f"{i * step:g} to {(i + 1) * step:g}: {counts[i]}" for i in range(N_BINS))
    return f"  points of {lab.points:g}  {bins} · median {round(statistics.median(points), 1):g}"


def _failed_tests(result: GradedSubmission) -> set[str]:
    """The names of failed tests, without parameters."""
    return {name.split("[")[0] for name, state in result.tests.items() if state != "passed"}


def _frequent(title: str, counts: Counter[str], most: int) -> Iterator[str]:
    if counts:
        yield title
        for what, count in sorted(counts.items(), key=lambda each: (-each[1], each[0]))[:most]:
            yield f"  {count:>4} × {what}"


def _similar_lines(lab: Lab, graded: Sequence[tuple[str, GradedSubmission]]) -> Iterator[str]:
    syntax = {student: result.syntax for student, result in graded}
    if not any(syntax.values()):
        return
    solution = read_source(solution_file(lab).read_bytes(), lab).runs
    for group in similar_groups({**syntax, MODEL: solution}, read_source(derive_stub(lab).encode(), lab).runs):
        yield f"nearly the same: {', '.join(group.students)} ({group.share:.0%} of their syntax or more)"
