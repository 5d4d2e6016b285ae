"""What an instructor wants to know of all submissions of a lab together, as lines and as a table."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from labkit.labs.manifest import Lab
from labstaff.grading.many import Outcome
from labstaff.grading.similar import similar_pairs
from labstaff.judge.submission import read_submission

MOST_HARD = 5
MOST_PAIRS = 20


def summary_lines(lab: Lab, outcomes: Sequence[Outcome]) -> Iterator[str]:
    """By task how many passed and where most fail; who was flagged and why; who hands in nearly the same."""
    judged = [(outcome.handed_in.student, outcome.judged) for outcome in outcomes if outcome.judged]
    yield f"{lab.label} · {lab.title}: {len(judged)} submissions judged"
    width = max(len(task.name) for task in lab.tasks)
    for task in lab.tasks:
        whole = sum(result.tasks.get(task.name, 0.0) >= task.points for _, result in judged)
        mean = sum(result.tasks.get(task.name, 0.0) for _, result in judged) / max(len(judged), 1)
        passed = f"{whole:>4} of {len(judged)} pass all tests"
        yield f"  {task.name:<{width}}  {passed} · mean {mean:.1f} of {task.points:g} points"
    failures = Counter(
        test.split("[")[0]
        for _, result in judged
        if result.status == "judged" and any(state == "passed" for state in result.tests.values())
        for test in dict.fromkeys(name.split("[")[0] for name, state in result.tests.items() if state != "passed")
    )
    if failures:
        yield "where most fail, of those who wrote something that passes:"
        for test, count in failures.most_common(MOST_HARD):
            yield f"  {count:>4} × {test}"
    for student, result in judged:
        if result.status != "judged":
            yield f"not judged: {student}: {result.reason}"
    for student, result in judged:
        for flag in result.flags:
            yield f"look at: {student}: {flag}"
    for outcome in outcomes:
        if outcome.judged is None:
            yield f"FAILED: {outcome.handed_in.student}: {outcome.problem}"
    sources = {each.handed_in.student: read_submission(lab, each.handed_in.place).source for each in outcomes}
    pairs = similar_pairs(sources, lab.answer_file.read_bytes())
    for pair in pairs[:MOST_PAIRS]:
        yield f"nearly the same: {pair.first} and {pair.second} ({pair.share:.0%} of their syntax)"
    if len(pairs) > MOST_PAIRS:
        yield f"nearly the same: and {len(pairs) - MOST_PAIRS} more pairs"


def write_table(path: Path, outcomes: Sequence[Outcome]) -> None:
    """A CSV file with a line for each submission and task."""
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["student", "lab", "task", "points", "max_points", "passed", "tests", "status", "flags"])
        for outcome in outcomes:
            result, lab = outcome.judged, outcome.handed_in.lab
            for task in lab.tasks:
                mine = [s for name, s in (result.tests if result else {}).items() if name.split("::")[0] == task.tests]
                points = result.tasks.get(task.name, 0.0) if result else 0.0
                status = result.status if result else outcome.problem
                row = [points, task.points, mine.count("passed"), len(mine), status, len(result.flags) if result else 0]
                table.writerow([_harmless(outcome.handed_in.student), lab.folder.name, task.name, *row])


def _harmless(text: str) -> str:
    """A cell that no spreadsheet takes for a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text
