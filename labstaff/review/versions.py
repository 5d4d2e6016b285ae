"""Makes the versions of a review from `solutions/`: the solution, alternative solutions, and every mistake."""

from __future__ import annotations

import ast
import re

import msgspec

from labkit.labs.catalog import solution_file, solution_folder
from labkit.labs.manifest import Lab
from labkit.review.versions import Kind, Version
from labstaff.authoring.alternatives import alternative_solutions, variant_text
from labstaff.authoring.mistakes import Mistake, mistakes_of
from labstaff.authoring.record import affected_classes
from labstaff.authoring.show import diff_lines

NOT_FOUND = "review.json"
"""Next to the model answer: the names of the mistakes that it does not find, which are not asked of students."""
FOUND_BY = "review_found.json"
"""Next to it: the names of the others, and the test that finds each."""
OF_MARKS = {"robust": Kind.EXTREMES, "refuses": Kind.REFUSALS}
COST = "cost"
BYTES = re.compile(r"\d [KMG]?i?B\b|bytes|memory|saved|alive|kept|largest tensor|elements", re.IGNORECASE)
"""What the message of a test of memory says, and that of a test of work does not."""


def versions_of(lab: Lab) -> tuple[Version, ...]:
    """The right versions, then the wrong ones, task by task.

    Raises:
        MistakeError: a mistake is malformed.
    """
    marks = marks_of(lab)
    unasked = not_found(lab)
    every_task = tuple(task.name for task in lab.tasks)
    found = [Version("solution", every_task, solution_file(lab).read_text(encoding="utf-8"))]
    for file in alternative_solutions(lab):
        text = variant_text(lab, file)
        classes = affected_classes(lab, text)
        tasks = tuple(task.name for task in lab.tasks if not classes or task.tests in classes)
        found.append(Version(file.stem, tasks, text))
    for mistake in mistakes_of(lab):
        about = (mistake.what, kind_of(mistake, marks), tuple(diff_lines(mistake)), mistake.name not in unasked)
        found.append(Version(mistake.name, (mistake.task,), mistake.source(), *about))
    return tuple(found)


def kind_of(mistake: Mistake, marks: dict[str, set[str]]) -> Kind:
    """What kind of test finds a mistake: of those of its task that fail, the most common kind."""
    record = mistake.record
    if record is None:
        return Kind.RESULTS
    tests = next(task.tests for task in mistake.lab.tasks if task.name == mistake.task)
    failing = [test for test in record.failing if test.startswith(f"{tests}::")] or [record.found_by]
    kinds = {_kind(marks.get(test, set()), record.message) for test in failing}
    return next(kind for kind in Kind if kind in kinds)


def _kind(marks: set[str], message: list[str]) -> Kind:
    if COST in marks:
        return Kind.MEMORY if BYTES.search("\n".join(message)) else Kind.WORK
    return next((kind for mark, kind in OF_MARKS.items() if mark in marks), Kind.RESULTS)


def marks_of(lab: Lab) -> dict[str, set[str]]:
    """The marks of the suite's tests and of their classes, by `TestClass::test_name`, read without running anything."""
    classes = {
        node.name: node
        for node in ast.parse(lab.suite_file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    }
    return {
        f"{name}::{test}": marks | _marks(node)
        for name, node in classes.items()
        for test, marks in _tests(node, classes).items()
    }


def _tests(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> dict[str, set[str]]:
    """The marks of a class's tests, those of its base classes first."""
    found: dict[str, set[str]] = {}
    for base in node.bases:
        if isinstance(base, ast.Name) and base.id in classes:
            found |= {
                name: marks | _marks(classes[base.id]) for name, marks in _tests(classes[base.id], classes).items()
            }
    return found | {each.name: _marks(each) for each in node.body if isinstance(each, ast.FunctionDef)}


def _marks(node: ast.FunctionDef | ast.ClassDef) -> set[str]:
    """The names of `@pytest.mark.…` above a function or a class."""
    names = set()
    for decorator in node.decorator_list:
        mark = decorator.func if isinstance(decorator, ast.Call) else decorator
        if isinstance(mark, ast.Attribute):
            names.add(mark.attr)
    return names


def not_found(lab: Lab) -> set[str]:
    """The names of the mistakes that the model answer does not find, as `python -m labstaff.review` wrote them."""
    file = solution_folder(lab) / NOT_FOUND
    return set(msgspec.json.decode(file.read_bytes(), type=list[str])) if file.exists() else set()


def found_by(lab: Lab) -> dict[str, str]:
    """By the name of a mistake, the test of the model answer that finds it, as far as these are written down."""
    file = solution_folder(lab) / FOUND_BY
    return msgspec.json.decode(file.read_bytes(), type=dict[str, str]) if file.exists() else {}


def write_found(lab: Lab, missed: list[str], tests: dict[str, str]) -> None:
    """Write the names of the mistakes that the model answer does not find, and the tests that find the others."""
    for name, known in ((NOT_FOUND, sorted(missed)), (FOUND_BY, dict(sorted(tests.items())))):
        (solution_folder(lab) / name).write_bytes(msgspec.json.format(msgspec.json.encode(known)) + b"\n")
