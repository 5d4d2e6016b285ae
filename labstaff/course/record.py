"""Has nbgrader record each result that it has not recorded yet, in one `nbgrader autograde` for each lab.

nbgrader passes over a submission for which it finds an `autograded` folder. A notebook there says in its metadata what
it was made from, as its last step: where that is missing or out of date, the folder is removed first.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from labkit.labs.manifest import Lab
from labstaff.course.accept import MOST_NOTEBOOK_BYTES
from labstaff.course.paths import ACCEPTED, CONFIG_FILE, NOTEBOOK, TIMESTAMP, SubmissionPaths, nbgrader
from labstaff.grader.course_state import course_state
from labstaff.grader.grade import hidden_seed, kept_at, of_submission
from labstaff.grader.plain_text import one_line
from labstaff.grader.results import GradedSubmission, load
from labstaff.grader.submission import read_regular, read_submission

RECORDED = "attention_labs_recorded"
"""The entry of a recorded notebook's metadata that holds its fingerprint."""


@dataclass
class Recorded:
    """What came of recording: how many submissions, and why one is not recorded, by student and assignment."""

    n_anew: int = 0
    n_unchanged: int = 0
    n_feedback_removed: int = 0
    problems: dict[tuple[str, str], str] = field(default_factory=dict)


def record(course: Path, labs: Sequence[Lab], *, force: bool = False) -> Recorded:
    """Run `nbgrader autograde` for each lab with results that are not recorded as they are now.

    Feedback that was made from an older recording is removed: `nbgrader generate_feedback` makes it again.

    Args:
        force: record every submission again.
    """
    done = Recorded()
    for lab in labs:
        stale = []
        for folder in sorted((course / ACCEPTED).glob(f"*/{lab.folder.name}")):
            paths = SubmissionPaths(course, folder.parent.name, lab.folder.name)
            if not force and recorded_as(paths) == fingerprint(paths):
                done.n_unchanged += 1
            elif result_of(paths) is not None:
                shutil.rmtree(paths.autograded, ignore_errors=True)
                stale.append(paths)
        if not stale:
            continue
        printed = nbgrader(course, "autograde", lab.folder.name).output
        for paths in stale:
            if recorded_as(paths) != fingerprint(paths):
                done.problems[paths.student, paths.assignment] = _last_error(printed, paths)
                continue
            done.n_anew += 1
            if paths.feedback.exists():
                shutil.rmtree(paths.feedback)
                done.n_feedback_removed += 1
    return done


def result_of(paths: SubmissionPaths) -> GradedSubmission | None:
    """The result for what is accepted now, with points withheld or released; None where it is not graded yet."""
    submission = read_submission(paths.lab, paths.accepted)
    result = load(kept_at(paths.results, submission, hidden_seed(paths.course)))
    return result and of_submission(result, submission, course_state(paths.course).looked_at)


def fingerprint(paths: SubmissionPaths) -> str:
    """Changes when a submission is to be recorded again: its files, its result, the settings, the course's notebook."""
    digest = hashlib.sha256(msgspec.json.encode(result_of(paths)))
    for file in (
        paths.accepted / NOTEBOOK,
        paths.accepted / TIMESTAMP,
        paths.source / NOTEBOOK,
        paths.released / NOTEBOOK,
    ):
        digest.update(hashlib.sha256(read_regular(file, MOST_NOTEBOOK_BYTES) or b"").digest())
    digest.update(hashlib.sha256((paths.course / CONFIG_FILE).read_bytes()).digest())
    return digest.hexdigest()


def recorded_as(paths: SubmissionPaths) -> str:
    """The fingerprint of what nbgrader has recorded; empty where it has not, or was stopped."""
    try:
        notebook = json.loads((paths.autograded / NOTEBOOK).read_text(encoding="utf-8"))
        return str(notebook["metadata"][RECORDED])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _last_error(output: str, paths: SubmissionPaths) -> str:
    """The last line of the traceback that nbgrader printed for a submission, or of all that it printed."""
    _, _, own = output.partition(f"There was an error processing assignment: {paths.accepted}")
    lines = [line.strip() for line in (own.partition("Removing failed")[0] or output).splitlines()]
    printed = [line for line in lines if line and not line.startswith("[")] or lines
    return one_line(f"nbgrader did not record it: {printed[-1]}")
