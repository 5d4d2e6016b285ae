"""What an instructor wants to know of all submissions of a lab together, as lines and as a table."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from labkit.labs.manifest import Lab
from labstaff.grader.plain_text import cell, one_line
from labstaff.grader.source import read_source
from labstaff.grading.many import Outcome
from labstaff.grading.similar import similar_groups
from labstaff.grading.told import finding_line, withheld_line

MOST_HARD = 5
MOST_GROUPS = 20
MOST_NAMES = 12
MOST_FINDINGS = 3
COLUMNS = ("student", "lab", "task", "points", "max_points", "withheld", "passed", "tests", "status", "flags")
SLOW_SECONDS = 60.0


def summary_lines(lab: Lab, outcomes: Sequence[Outcome]) -> Iterator[str]:
    """By task how many passed and where most fail; who was flagged and why; who hands in nearly the same."""
    judged = [(one_line(outcome.handed_in.student), outcome.judged) for outcome in outcomes if outcome.judged]
    yield f"{lab.label} · {lab.title}: {len(judged)} submissions judged"
    width = max(len(task.name) for task in lab.tasks)
    for task in lab.tasks:
        earned = [result.tasks.get(task.name, 0.0) + result.withheld.get(task.name, 0.0) for _, result in judged]
        whole = sum(points >= task.points for points in earned)
        mean = sum(result.tasks.get(task.name, 0.0) for _, result in judged) / max(len(judged), 1)
        passed = f"{whole:>4} of {len(judged)} pass all tests"
        yield f"  {task.name:<{width}}  {passed} · mean {mean:.1f} of {task.points:g} points"
    failures = Counter(
        test
        for _, result in judged
        if result.status == "judged" and any(state == "passed" for state in result.tests.values())
        for test in dict.fromkeys(name.split("[")[0] for name, state in result.tests.items() if state != "passed")
    )
    if failures:
        yield "where most fail, of those who wrote something that passes:"
        for test, count in failures.most_common(MOST_HARD):
            yield f"  {count:>4} × {test}"
    for outcome in sorted(outcomes, key=lambda outcome: -outcome.seconds):
        if outcome.seconds >= SLOW_SECONDS:
            yield f"slow: {one_line(outcome.handed_in.student)}: {outcome.seconds:.0f} s"
    for student, result in judged:
        if result.status != "judged":
            yield f"not judged: {student}: {one_line(result.reason)}"
    for student, result in judged:
        for flag in result.flags:
            yield f"look at: {student}: {one_line(flag)}"
        if result.findings:
            withheld = f" ({withheld_line(result)} {student})" if result.withheld else ""
            yield f"look at: {student}: {finding_line(result, MOST_FINDINGS)}{withheld}"
    for outcome in outcomes:
        if outcome.judged is None:
            yield f"FAILED: {one_line(outcome.handed_in.student)}: {one_line(outcome.problem)}"
    yield from _similar_lines(lab, outcomes)


def _similar_lines(lab: Lab, outcomes: Sequence[Outcome]) -> Iterator[str]:
    syntax = {one_line(each.handed_in.student): each.judged.syntax for each in outcomes if each.judged}
    if not any(syntax.values()):
        return
    groups = similar_groups(syntax, read_source(lab.answer_file.read_bytes(), lab).runs)
    for group in groups[:MOST_GROUPS]:
        names, n_more = group.students[:MOST_NAMES], len(group.students) - MOST_NAMES
        more = f" and {n_more} more" if n_more > 0 else ""
        yield f"nearly the same: {', '.join(names)}{more} ({group.share:.0%} of their syntax or more)"
    if len(groups) > MOST_GROUPS:
        yield f"nearly the same: and {len(groups) - MOST_GROUPS} more groups"


def write_table(path: Path, outcomes: Sequence[Outcome]) -> None:
    """A CSV file with a line for each submission and task."""
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(COLUMNS)
        for outcome in outcomes:
            result, lab = outcome.judged, outcome.handed_in.lab
            for task in lab.tasks:
                mine = [s for name, s in (result.tests if result else {}).items() if name.split("::")[0] == task.tests]
                points = result.tasks.get(task.name, 0.0) if result else 0.0
                status = result.status if result else cell(outcome.problem)
                withheld = result.withheld.get(task.name, 0.0) if result else 0.0
                n_flags = len(result.flags) + len(result.findings) if result else 0
                row = [points, task.points, withheld, mine.count("passed"), len(mine), status, n_flags]
                table.writerow([cell(outcome.handed_in.student), lab.folder.name, task.name, *row])
