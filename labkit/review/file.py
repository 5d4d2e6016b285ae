"""Reads `review.py`: which test belongs to which task, and which tasks are not begun."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from labkit.labs.manifest import Lab
from labkit.suite.finder import file_problem

PREFIX = "test_"
STUB = "raise NotImplementedError()"


class ReviewProblem(Exception):
    """`review.py` cannot be used; the message is one line."""


@dataclass
class Review:
    """A file of tests.

    Attributes:
        file: the file.
        tests: the names of the tests by task.
        stray: the names of tests that belong to no task.
        stubs: the tasks with a test that is still to be written.
        fingerprints: by task, a hash of the file without the tests of other tasks, and without comments.
    """

    file: Path
    tests: dict[str, list[str]] = field(default_factory=dict)
    stray: list[str] = field(default_factory=list)
    stubs: set[str] = field(default_factory=set)
    fingerprints: dict[str, str] = field(default_factory=dict)

    @property
    def begun(self) -> list[str]:
        """The tasks that have tests, none of them still a stub."""
        return [task for task, tests in self.tests.items() if tests and task not in self.stubs]


def task_of(tasks: list[str], test: str) -> str:
    """The task that a test belongs to by its name, `test_TASK…`: the longest name that fits; "" for none."""
    fitting = [task for task in tasks if test.startswith(f"{PREFIX}{task}")]
    return max(fitting, key=len, default="")


def read_review(lab: Lab, file: Path | None = None) -> Review:
    """Read the lab's `review.py`, or another such file, without running it.

    Raises:
        ReviewProblem: there is none, or Python cannot read it.
    """
    file = file or lab.review_file
    if problem := file_problem(file):
        raise ReviewProblem(problem)
    tree = ast.parse(file.read_text(encoding="utf-8-sig"))
    names = [task.name for task in lab.tasks]
    review = Review(file, {name: [] for name in names})
    for node in _tests(tree):
        task = task_of(names, node.name)
        if not task:
            review.stray.append(node.name)
            continue
        review.tests[task].append(node.name)
        if ast.unparse(node.body[-1]) == STUB:
            review.stubs.add(task)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    for task in names:
        own = [each for each in tree.body if _belongs(each, task, names, used)]
        text = ast.dump(ast.Module(own, []))
        review.fingerprints[task] = hashlib.sha256(text.encode()).hexdigest()[:16]
    return review


def _tests(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    """The test functions at the top of the file and in its classes."""
    for node in tree.body:
        for each in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(each, ast.FunctionDef) and each.name.startswith(PREFIX):
                yield each


def _belongs(node: ast.stmt, task: str, names: list[str], used: set[str]) -> bool:
    """Whether a change of a statement may change what the tests of `task` find; `used` are the names in the file."""
    return not isinstance(node, ast.FunctionDef) or node.name in used or task_of(names, node.name) in ("", task)
