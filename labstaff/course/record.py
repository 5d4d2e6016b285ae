"""Has nbgrader record each result that it has not recorded yet.

A recorded notebook says in its metadata what it was made from, and nbgrader writes it last: where that is missing or
out of date, `nbgrader autograde` runs again.
"""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from labstaff.course.accept import MAX_NOTEBOOK_BYTES
from labstaff.course.nbgrader import nbgrader
from labstaff.course.paths import CONFIG_FILE, NOTEBOOK, TIMESTAMP, SubmissionPaths
from labstaff.grader.course_state import course_secret, seed_of
from labstaff.grader.grade import kept_at, with_flags_of
from labstaff.grader.plain_text import one_line
from labstaff.grader.results import GradedSubmission, load
from labstaff.grader.submission import read_regular, read_submission
from labstaff.grading.parallel import Outcome
from labstaff.grading.run import RESULTS

RECORDED = "attention_labs_recorded"
"""The entry of a recorded notebook's metadata that holds its fingerprint."""


@dataclass
class Recorder:
    """Runs `nbgrader autograde` for each submission with a result that is not recorded as it is now.

    Args:
        course: the course's folder.
        force: record again what is recorded already.

    Counts what it has done; `problems` says why a submission is not recorded, by student and assignment.
    """

    course: Path
    force: bool = False
    n_recorded: int = 0
    n_unchanged: int = 0
    problems: dict[tuple[str, str], str] = field(default_factory=dict)

    def record(self, outcome: Outcome) -> None:
        """Record a submission; nothing where it could not be graded."""
        submitted = outcome.submitted
        paths = SubmissionPaths(self.course, submitted.student, submitted.lab.folder.name)
        if outcome.result is None:
            return
        if not self.force and recorded_as(paths) == fingerprint(paths):
            self.n_unchanged += 1
            return
        shutil.rmtree(paths.feedback, ignore_errors=True)  # it was made from what was recorded before
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


def fingerprint(paths: SubmissionPaths) -> str:
    """Changes when a submission is to be recorded again: its files, its result, the settings, the course's notebook."""
    digest = hashlib.sha256(msgspec.json.encode(result_of(paths)))
    for file in (
        paths.accepted / NOTEBOOK,
        paths.accepted / TIMESTAMP,
        paths.source / NOTEBOOK,
        paths.released / NOTEBOOK,
        paths.course / CONFIG_FILE,
    ):
        digest.update(hashlib.sha256(read_regular(file, MAX_NOTEBOOK_BYTES) or b"").digest())
    return digest.hexdigest()


def recorded_as(paths: SubmissionPaths) -> str:
    """The fingerprint of what nbgrader has recorded; empty where it has not, or was stopped."""
    try:
        notebook = json.loads((paths.autograded / NOTEBOOK).read_text(encoding="utf-8"))
        return str(notebook["metadata"][RECORDED])
    except (OSError, ValueError, KeyError):
        return ""


def _last_error(log: str) -> str:
    """The last line of the traceback in nbgrader's log."""
    lines = [line for line in log.splitlines() if line.strip() and not line.startswith("[")]
    return one_line(f"nbgrader did not record it: {lines[-1] if lines else log}")
