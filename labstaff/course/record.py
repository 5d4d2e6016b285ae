"""Has nbgrader record each result that it has not recorded yet.

A recorded notebook says in its metadata what it was made from, and nbgrader writes it last: where that is missing or
out of date, `nbgrader autograde` runs again.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from rich.progress import track

from labkit.labs.manifest import Lab
from labstaff.course.accept import MOST_NOTEBOOK_BYTES
from labstaff.course.nbgrader import nbgrader
from labstaff.course.paths import ACCEPTED, CONFIG_FILE, NOTEBOOK, TIMESTAMP, SubmissionPaths
from labstaff.grader.course_state import course_state
from labstaff.grader.grade import kept_at, of_submission
from labstaff.grader.plain_text import one_line
from labstaff.grader.results import GradedSubmission, load
from labstaff.grader.submission import read_regular, read_submission
from labstaff.grading.run import RESULTS
from labstaff.grading.submitted import find_submissions

RECORDED = "attention_labs_recorded"
"""The entry of a recorded notebook's metadata that holds its fingerprint."""


@dataclass
class Recorded:
    """What came of recording: how many submissions, and why one is not recorded, by student and assignment."""

    n_anew: int = 0
    n_unchanged: int = 0
    problems: dict[tuple[str, str], str] = field(default_factory=dict)


def record(course: Path, labs: Sequence[Lab], *, force: bool = False) -> Recorded:
    """Run `nbgrader autograde` for each submission with a result that is not recorded as it is now.

    Args:
        force: record every submission again.
    """
    done = Recorded()
    stale = []
    for each in find_submissions(course / ACCEPTED, labs):
        paths = SubmissionPaths(course, each.student, each.lab.folder.name)
        if not force and recorded_as(paths) == fingerprint(paths):
            done.n_unchanged += 1
        elif result_of(paths) is not None:
            stale.append(paths)
    if not stale:
        return done
    commands = nbgrader(course)
    for paths in track(stale, "recording", transient=True, disable=not sys.stdout.isatty()):
        shutil.rmtree(paths.feedback, ignore_errors=True)  # it was made from what was recorded before
        ended = commands.autograde(paths.assignment, paths.student)
        if ended["success"]:
            done.n_anew += 1
        else:
            done.problems[paths.student, paths.assignment] = _last_error(ended.get("log") or ended["error"])
    return done


def result_of(paths: SubmissionPaths) -> GradedSubmission | None:
    """The result for what is accepted now, with points withheld or released; None where it is not graded yet."""
    state = course_state(paths.course)
    submission = read_submission(paths.lab, paths.accepted)
    result = load(kept_at(paths.course / RESULTS, submission, state.seed))
    return result and of_submission(result, submission, state.looked_at)


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
        digest.update(hashlib.sha256(read_regular(file, MOST_NOTEBOOK_BYTES) or b"").digest())
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
