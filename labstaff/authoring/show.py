"""Shows a lab's mistakes as a list, or one as a diff with the message that a student reads."""

from __future__ import annotations

import difflib
import sys

from rich.console import Console
from rich.text import Text

from labkit.labs.catalog import solution_file
from labkit.labs.manifest import Lab
from labkit.suite.messages import Line, task_lines
from labkit.suite.results import TestResult
from labstaff.authoring.algorithms import replacements
from labstaff.authoring.mistakes import ALGORITHMS, Mistake, mistakes_of

CONTEXT_LINES = 2
MARKER = "###"
"""Begins the lines around what a stub leaves out: they tell nothing of a mistake."""
DIFF_STYLES = {"-": "red", "+": "green", "@": "cyan"}


def show_list(lab: Lab) -> None:
    """Print the lab's mistakes under their tasks, one line each."""
    console = _console()
    mistakes = mistakes_of(lab)
    width = max(len(mistake.name) for mistake in mistakes)
    for task in lab.tasks:
        console.print(Text(f"{lab.label} · {task.name}", style="bold"))
        for mistake in mistakes:
            if mistake.task == task.name:
                console.print(Text(f"  {mistake.name:{width}}  {mistake.what}"))


def show_mistake(mistake: Mistake) -> None:
    """Print the mistake as a diff with the recorded message."""
    console = _console()
    console.print(Text(f"{mistake.lab.label} · {mistake.task} · {mistake.name}", style="bold"))
    console.print(Text(mistake.what))
    console.print()
    for line in diff_lines(mistake):
        console.print(Text(line, style=DIFF_STYLES.get(line[:1], "")))
    console.print()
    for line in message(mistake):
        console.print(Text(line))


def diff_lines(mistake: Mistake) -> list[str]:
    """The mistake's changes as lines of a diff; of a function that is replaced entirely, the new one."""
    solution, source = solution_file(mistake.lab).read_text(encoding="utf-8"), mistake.source()
    if mistake.edit:
        _, _, *lines = difflib.unified_diff(solution.split("\n"), source.split("\n"), n=CONTEXT_LINES, lineterm="")
        return [line for line in lines if not line.strip().startswith(MARKER)]
    algorithms = mistake.file.with_name(ALGORITHMS).read_text(encoding="utf-8")
    lines = []
    for name, text in replacements(solution, algorithms, mistake.replace).items():
        lines += [f"@@ {name} is replaced entirely", *(f"+ {line}".rstrip() for line in text.split("\n"))]
    return lines


def message(mistake: Mistake) -> list[str]:
    """What a student with this mistake reads, as recorded, or how to record it."""
    if mistake.record:
        return mistake.record.message
    return [f"not run yet: uv run python -m labstaff.authoring.record {mistake.lab.number} {mistake.name}"]


def student_lines(mistake: Mistake, results: list[TestResult]) -> list[Line]:
    """The lines that a student with this mistake reads, without points and what to do next."""
    return task_lines(mistake.lab, results)


def _console() -> Console:
    return Console(soft_wrap=True, highlight=False, width=None if sys.stdout.isatty() else 200)
