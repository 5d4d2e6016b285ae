"""Grades a review: the student's tests on every version of the lab's module, in a sandbox of their own."""

from __future__ import annotations

import functools
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

import labkit
from labkit.labs.catalog import find_labs
from labkit.labs.manifest import MANIFEST_NAME, Lab, Task
from labkit.review.versions import Version
from labstaff.grader.plain_text import one_line
from labstaff.grader.results import GradedSubmission
from labstaff.grader.review_inside import Outcome, ReviewJob
from labstaff.grader.sandbox import SCRATCH, TEMPORARY, bubblewrap, environment, new_user
from labstaff.grader.source import Source
from labstaff.grader.submission import Submission
from labstaff.review.versions import versions_of

MAX_SECONDS = 600.0
"""By the clock, for one review."""
FULL_SHARE = 0.9
"""The share of the wrong versions that are asked from which on a task has all its points."""


ONE_AT_A_TIME = threading.Lock()


class GradingFailed(Exception):
    """Grading gave no result, through no fault of the submission: try again."""


def grade_review(lab: Lab, submission: Submission, seed: int, source: Source, unsafe: bool) -> GradedSubmission:
    """The result of a review of `lab`: pass or fail for each version of each task.

    A task earns nothing while a right version is refused, otherwise the share of the wrong versions that are found of
    those that are asked, and all from `FULL_SHARE`.

    Raises:
        GradingFailed: the sandbox gave no result.
    """
    asked = _asked(lab)
    outcomes, flags = _outcomes(ReviewJob(lab.label, source.text.decode("utf-8", "replace"), seed, asked), unsafe), []
    if outcomes.problem:
        flags = [f"no test could run: {one_line(outcomes.problem)}"]
    tests: dict[str, Literal["passed", "failed"]] = {}
    messages: dict[str, str] = {}
    shares: dict[str, float] = {}
    for task in lab.tasks:
        failed = outcomes.failed.get(task.name, {})
        of_task = [version for version in asked if task.name in version.tasks]
        shares[task.name] = task_share(of_task, failed)
        for version in of_task:
            test = f"{task.tests}::{version.name}"
            message = _message(task, version, failed)
            tests[test] = "failed" if message else "passed"
            messages |= {test: message} if message else {}
    findings = [str(finding) for finding in source.findings]
    return GradedSubmission(
        submission.lab.folder.name,
        submission.key,
        "graded",
        flags=flags,
        tests=tests,
        messages=messages,
        shares=shares,
        findings=findings,
    )


def _asked(lab: Lab) -> list[Version]:
    """The versions that a review is graded by, made once for all submissions.

    In Python 3.11 `ast.parse` in two threads at once can raise a SystemError (cpython issue 106905).
    """
    with ONE_AT_A_TIME:
        return _made(lab)


@functools.cache
def _made(lab: Lab) -> list[Version]:
    return [version for version in versions_of(lab) if version.is_right or version.is_asked]


def task_share(versions: list[Version], failed: Mapping[str, str]) -> float:
    """The share of a task's points; `failed` has for each version that was run the test that fails, "" for none."""
    right = [version for version in versions if version.is_right]
    wrong = [version for version in versions if not version.is_right]
    if any(failed.get(version.name, "not run") for version in right) or not wrong:
        return 0.0
    share = sum(bool(failed.get(version.name)) for version in wrong) / len(wrong)
    return 1.0 if share >= FULL_SHARE else share


def _message(task: Task, version: Version, failed: Mapping[str, str]) -> str:
    """What a student reads of a version; "" where the review is right about it. A mistake's sentence is left out."""
    test = failed.get(version.name)
    if test is None:
        return f"not run: {task.name} has no tests, or a right version is refused, or the time was over"
    if version.is_right and test:
        return f"a right version is refused by {one_line(test)}"
    return "" if version.is_right or test else f"not found: a mistake of the kind “{version.kind}”"


def _outcomes(job: ReviewJob, unsafe: bool) -> Outcome:
    """What the process inside reports of a review."""
    home = Path(labkit.__file__).parents[1]
    manifests = [f"labs/{lab.folder.name}/{MANIFEST_NAME}" for lab in find_labs()]
    inside = ("labkit", "labstaff", "pyproject.toml", *manifests)
    with tempfile.TemporaryDirectory(prefix=TEMPORARY) as folder:
        scratch, course = (folder, str(home)) if unsafe else (SCRATCH, "/course")
        start = f"import sys; sys.path.insert(0, {course!r}); from labstaff.grader.review_inside import main"
        command = [sys.executable, "-P", "-c", f"{start}; main(*sys.argv[1:])", scratch, "" if unsafe else new_user()]
        with subprocess.Popen(
            [*([] if unsafe else bubblewrap(inside)), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(scratch),
            start_new_session=True,
        ) as process:
            try:
                written, errors = process.communicate(msgspec.json.encode(job), timeout=MAX_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                return Outcome(problem=f"it did not end within {MAX_SECONDS:g} s")
    try:
        return msgspec.json.decode(written, type=Outcome)
    except msgspec.DecodeError:
        last = errors.decode(errors="replace").strip().splitlines()[-1:]
        raise GradingFailed(f"the sandbox gave no result of the review: {''.join(last)}") from None
