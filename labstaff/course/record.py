"""Has nbgrader record each result that it has not recorded yet.

A recorded notebook says in its metadata what it was made from, and nbgrader writes it last: where that is missing or
out of date, `nbgrader autograde` runs again. The settings in `nbgrader_config.py` are no part of it: late penalties are
computed in `labstaff.course.penalties`.
"""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from labkit.labs.manifest import Lab
from labstaff.course.accept import MAX_NOTEBOOK_BYTES, accept_all
from labstaff.course.nbgrader import nbgrader, opened_gradebook
from labstaff.course.paths import NOTEBOOK, SUBMITTED, TIMESTAMP, SubmissionPaths
from labstaff.grader.course_state import course_secret, seed_of
from labstaff.grader.grade import kept_at, with_flags_of
from labstaff.grader.plain_text import one_line
from labstaff.grader.results import GradedSubmission, load
from labstaff.grader.submission import read_regular, read_submission
from labstaff.grading.parallel import Outcome
from labstaff.grading.run import RESULTS
from labstaff.grading.submitted import find_submissions

RECORDED = "attention_labs_recorded"
"""The entry of a recorded notebook's metadata that holds what it was made from: `fingerprint`."""


@dataclass
class Recorder:
    """Runs `nbgrader autograde` for each submission with a result that is not recorded as it is now.

    Args:
        course: the course's folder.
        force: record again what is recorded already.

    Counts what it has done; `problems` says why a submission is not recorded, by student and assignment, and
    `pages_removed` whose feedback showed something else, by assignment.
    """

    course: Path
    force: bool = False
    n_recorded: int = 0
    n_unchanged: int = 0
    problems: dict[tuple[str, str], str] = field(default_factory=dict)
    pages_removed: dict[str, list[str]] = field(default_factory=dict)

    def record(self, outcome: Outcome) -> None:
        """Record a submission; nothing where it could not be graded."""
        submitted = outcome.submitted
        paths = SubmissionPaths(self.course, submitted.student, submitted.lab.folder.name)
        if outcome.result is None:
            return
        before, now = recorded_as(paths), fingerprint(paths)
        if not self.force and before == now:
            self.n_unchanged += 1
            return
        if paths.feedback.exists() and any(before.get(part) != now[part] for part in ("files", "result")):
            shutil.rmtree(paths.feedback, ignore_errors=True)
            self.pages_removed.setdefault(paths.assignment, []).append(one_line(paths.student))
        ended = self._commands.autograde(paths.assignment, paths.student)
        if ended["success"]:
            self.n_recorded += 1
        else:
            self.problems[paths.student, paths.assignment] = _last_error(ended.get("log") or ended["error"])

    @functools.cached_property
    def _commands(self) -> Any:
        return nbgrader(self.course)


def result_of(paths: SubmissionPaths) -> GradedSubmission | None:
    """The result for what is accepted now; None where it is not graded yet."""
    submission = read_submission(paths.lab, paths.accepted)
    seed = seed_of(course_secret(paths.course), submission.key)
    result = load(kept_at(paths.course / RESULTS, submission, seed))
    return result and with_flags_of(submission, result)


def fingerprint(paths: SubmissionPaths) -> dict[str, str]:
    """What a submission is recorded from now, by part; it is recorded again where one of them has changed.

    `files` is what was handed in, and the assignment as released with its points; `result` what the tests report;
    `notes` what only the grader sees. A page of feedback is made of the first two.
    """
    result, submission = result_of(paths), read_submission(paths.lab, paths.accepted)
    notes = (result.flags, result.findings) if result else ()
    report = result and replace(result, flags=[], findings=[], version="", syntax=[])
    accepted = (paths.accepted / NOTEBOOK, paths.accepted / TIMESTAMP)
    return {
        "files": _digest(submission.key, *map(_content, (*accepted, paths.released / NOTEBOOK))),
        "result": _digest(report),
        "notes": _digest(notes, _content(paths.source / NOTEBOOK)),
    }


def _content(file: Path) -> str:
    return hashlib.sha256(read_regular(file, MAX_NOTEBOOK_BYTES) or b"").hexdigest()


def _digest(*parts: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


def recorded_as(paths: SubmissionPaths) -> dict[str, str]:
    """The fingerprint of what nbgrader has recorded; empty where it has not, or was stopped."""
    try:
        notebook = json.loads((paths.autograded / NOTEBOOK).read_text(encoding="utf-8"))
        return dict(notebook["metadata"][RECORDED])
    except (OSError, ValueError, KeyError):
        return {}


def not_recorded(course: Path, labs: Sequence[Lab]) -> dict[tuple[str, str], str]:
    """Which submissions in `submitted/` nbgrader has not recorded as they are now, and why; accepts them again."""
    (course / SUBMITTED).mkdir(exist_ok=True)
    problems = accept_all(course, labs)
    for submitted in find_submissions(course / SUBMITTED, labs):
        paths = SubmissionPaths(course, submitted.student, submitted.lab.folder.name)
        recorded = recorded_as(paths).get("files")
        if recorded != fingerprint(paths)["files"]:
            why = "it or the course has changed since it was recorded" if recorded else "it is not graded yet"
            problems.setdefault((paths.student, paths.assignment), f"{why}: run lab grade")
    return problems


def to_grade_again(course: Path) -> list[str]:
    """A line for each grade by hand that was given for something that the student has changed since.

    Raises:
        NoGradebook: `course` is none.
    """
    from nbgrader.api import Grade

    with opened_gradebook(course) as gradebook:
        waiting = gradebook.db.query(Grade).filter(Grade.needs_manual_grade, Grade.manual_score.is_not(None))
        return sorted(
            f"grade again: {one_line(grade.student.id)}: {grade.assignment.name}: {grade.name} has changed since "
            f"it was graded by hand: {grade.score:g} points until then"
            for grade in waiting
        )


def _last_error(log: str) -> str:
    """The last line of the traceback in nbgrader's log."""
    lines = [line for line in log.splitlines() if line.strip() and not line.startswith("[")]
    return one_line(f"nbgrader did not record it: {lines[-1] if lines else log}")
