"""What a report's cells call: the student's module, and the suite's word on one task in a process of its own."""

from __future__ import annotations

import importlib
from types import ModuleType

from labkit.labs.catalog import find_lab, find_task
from labkit.suite.apart import run_apart
from labkit.suite.finder import AnswerFinder, student_answer
from labkit.suite.words import run_lines


def student_module(lab: str) -> ModuleType:
    """The student's module of `lab` (as `find_lab` names it), read from its file anew on each call.

    A file that cannot be imported raises nothing here: its functions then say what is wrong when they are called.
    """
    found = find_lab(lab)
    finder = AnswerFinder([student_answer(found)])
    finder.install()
    try:
        return importlib.import_module(found.module)
    finally:
        finder.remove()


def check(lab: str, task: str) -> None:
    """Run the tests of one task of `lab` on the student's file and print what they say."""
    found = find_lab(lab)
    run = run_apart(found, tests=(find_task(found, task).tests,))
    more = f"uv run lab check {found.number} -v"
    print(run.problem or "\n".join(run_lines(found, run.verdicts, whole_suite=run.collected, more=more)))
