"""Functions for the report notebooks: import the student's module, and run the tests of one task."""

from __future__ import annotations

import importlib
from types import ModuleType

from labkit.labs.catalog import find_lab, find_task
from labkit.suite.finder import LabFinder, student_source
from labkit.suite.forked import run_forked
from labkit.suite.messages import run_lines


def student_module(lab: str) -> ModuleType:
    """The student's module of `lab` (as `find_lab` names it), read from its file again on each call.

    A file that cannot be imported raises nothing here: its functions raise the reason when they are called.
    """
    found = find_lab(lab)
    finder = LabFinder([student_source(found)])
    finder.install()
    try:
        return importlib.import_module(found.module)
    finally:
        finder.remove()


def check(lab: str, task: str) -> None:
    """Run the tests of one task of `lab` on the student's file, and print the results."""
    found = find_lab(lab)
    run = run_forked(found, tests=(find_task(found, task).tests,))
    more = f"uv run lab check {found.number} -v"
    print(run.problem or "\n".join(run_lines(found, run.results, whole_suite=run.collected, more=more)))
