"""Derives each lab's stub and report from `solutions/`, and its review's stub and its outcomes from the manifest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from labkit.labs.catalog import reviewed_lab, solution_file, solution_folder
from labkit.labs.manifest import Lab
from labstaff.derive.markers import MarkerError, clear_solution
from labstaff.derive.notebooks import derive_report
from labstaff.derive.outcomes import handout

LINE_LENGTH = 120
REVIEW = '''"""Your tests for Lab {number}: every right {module}.py passes them, and every wrong one fails.

A test belongs to the task whose name follows `test_`; a task may have several, like test_TASK_large_inputs.
Run them with: uv run lab review {number}; how to write them: docs/reviewing.md
"""

{imported}
'''
REVIEW_TEST = '''def test_{name}():
    """Tests {what}."""
    # YOUR CODE HERE
    raise NotImplementedError()
'''


def derived_files(lab: Lab) -> Iterator[tuple[Path, str]]:
    """Every derived file of the lab and its text.

    Raises:
        MarkerError, ReportError: a source from which nothing can be derived safely.
        ValueError: the handout has no region for the outcomes.
    """
    yield lab.student_file, derive_stub(lab)
    yield lab.review_file, derive_review(lab)
    yield lab.folder / "README.md", handout(lab)
    if (source := solution_folder(lab) / "report.py").exists():
        yield lab.folder / "report.ipynb", derive_report(lab, source)


def derive_stub(lab: Lab) -> str:
    """The solution without the text between its markers; of a review, the tests to be written.

    Raises:
        MarkerError: the markers are wrong, or nothing is left out.
    """
    if reviewed := reviewed_lab(lab):
        return derive_review(reviewed)
    source = solution_file(lab)
    solution = source.read_text(encoding="utf-8")
    stub = clear_solution(solution, name=f"solutions/{lab.folder.name}/src/{source.name}")
    if stub.count("raise NotImplementedError()") < len(lab.tasks):
        raise MarkerError(f"{source.name}: fewer solution regions than tasks: a solution would be released")
    return stub


def derive_review(lab: Lab) -> str:
    """The file of the student's own tests, with a test still to be written for each task."""
    names = sorted((task.name for task in lab.tasks), key=lambda name: (not name[0].isupper(), name))
    imported = f"from {lab.module} import {', '.join(names)}  # noqa: F401"
    if len(imported) > LINE_LENGTH:
        lines = "".join(f"    {name},\n" for name in names)
        imported = f"from {lab.module} import (  # noqa: F401\n{lines})"
    parts = [REVIEW.format(number=lab.number, module=lab.module, imported=imported)]
    for task in lab.tasks:
        is_long = len(task.signature) > LINE_LENGTH - len('    """Tests ."""')
        parts.append(REVIEW_TEST.format(name=task.name, what=task.name if is_long else task.signature))
    return "\n\n".join(parts)


def build(lab: Lab) -> list[Path]:
    """Write the lab's derived files; returns those that changed."""
    changed = []
    for path, text in derived_files(lab):
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            changed.append(path)
    return changed
