"""Has nbgrader record what the judge has found, of all whose recording is missing or out of date, and of nobody else.

nbgrader passes over a submission for which it finds a folder, though it was killed while it wrote it, and though the
submission or its judgement have changed since. Here a submission counts as recorded when the notebook that nbgrader
wrote says so, which is written last, and when the gradebook holds its scores.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from labkit.labs.manifest import Lab
from labstaff.course.feedback import is_out_of_date, make_feedback_again
from labstaff.course.nbgrader_process import Nbgrader
from labstaff.course.paths import (
    COMMANDS_LOCK,
    CONFIG_FILE,
    NOTEBOOK,
    RECORDERS_LOCK,
    TIMESTAMP,
    Places,
    alone,
    submissions,
    why_not_recordable,
)
from labstaff.course.ready import MOST_NOTEBOOK_BYTES, make_ready
from labstaff.course.views import clear_views, only_these
from labstaff.grader.grade import hidden_seed, kept_at
from labstaff.grader.kept import FILE, kept
from labstaff.grader.plain_text import one_line
from labstaff.grader.results import clear_parts
from labstaff.grader.submission import NOTES_FILE, read_regular, read_submission

RECORDED = "attention_labs_recorded"
"""Under which name of a recorded notebook's metadata its fingerprint stands."""


@dataclass
class Recorded:
    """What came of recording: students, by what was done about them."""

    anew: list[str] = field(default_factory=list)
    passed_over: list[str] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)
    feedback: list[str] = field(default_factory=list)


def record(
    course: Path,
    lab: Lab,
    nbgrader: Nbgrader,
    students: Collection[str] | None = None,
    *,
    force: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> Recorded:
    """Run `nbgrader autograde` on the submissions of `lab` in `course` that are not recorded as they are now.

    Feedback that was made from an older recording is made again. One grader records at a time: others wait.

    Args:
        students: whose submissions; everybody's when None. Nobody else's is touched.
        force: record everybody again.
        say: is given a line about each submission that had to be made ready, and one when it waits.
    """
    for line in make_ready(course, students):
        say(line)
    done = Recorded()
    wanted = []
    for places in submissions(course, lab.folder.name):
        if students is not None and places.student not in students:
            continue
        if problem := why_not_recordable(places.student):
            done.problems[places.student] = problem
        else:
            wanted.append(places)
    with alone(course, RECORDERS_LOCK, lambda: say("another `lab grade` is recording in this course: waiting for it")):
        with alone(course, COMMANDS_LOCK, lambda: say("an nbgrader command is running in this course: waiting for it")):
            clear_views(course)
            clear_parts(course, FILE)
            scored = students_with_scores(course, lab)
            for places in wanted:
                if not force and places.student in scored and recorded_as(places.autograded) == fingerprint(places):
                    done.passed_over.append(places.student)
                else:
                    shutil.rmtree(places.autograded, ignore_errors=True)
                    done.anew.append(places.student)
        _autograde(course, lab, nbgrader, done)
        _make_feedback_again(course, lab, nbgrader, done, wanted)
    return done


def fingerprint(places: Places) -> str:
    """Changes when a submission is to be recorded anew: what was handed in, how it was judged, what it is worth."""
    lab = places.lab
    submission = read_submission(lab, places.submitted)
    judged = kept_at(places.results, submission, hidden_seed(places.course))
    submitted = (places.submitted / name for name in (NOTEBOOK, TIMESTAMP, NOTES_FILE))
    looked_at = submission.key in kept(places.course).looked_at
    digest = hashlib.sha256(repr((*_due(places), looked_at)).encode())
    for file in (judged, *submitted, places.released / NOTEBOOK, places.course / CONFIG_FILE):
        digest.update(hashlib.sha256(read_regular(file, MOST_NOTEBOOK_BYTES) or b"").digest())
    return digest.hexdigest()


def recorded_as(autograded: Path) -> str:
    """The fingerprint under which nbgrader has recorded a submission; nothing when it has not, or not to the end."""
    try:
        notebook = json.loads((autograded / NOTEBOOK).read_text(encoding="utf-8"))
        return str(notebook["metadata"][RECORDED])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def students_with_scores(course: Path, lab: Lab) -> set[str]:
    """Whose check cells all have a score in the gradebook."""
    with _gradebook(course) as database:
        rows = database.execute(
            "select submitted_assignment.student_id, count(grade.auto_score) from grade "
            "join base_cell on grade.cell_id = base_cell.id "
            "join submitted_notebook on grade.notebook_id = submitted_notebook.id "
            "join submitted_assignment on submitted_notebook.assignment_id = submitted_assignment.id "
            "join assignment on submitted_assignment.assignment_id = assignment.id "
            f"where assignment.name = ? and base_cell.name in ({', '.join('?' * len(lab.tasks))}) "
            "group by submitted_assignment.student_id",
            (lab.folder.name, *(task.name for task in lab.tasks)),
        ).fetchall()
        return {student for student, count in rows if count == len(lab.tasks)}
    return set()


def _due(places: Places) -> tuple[object, object]:
    """When a submission was due: the assignment's date, and by how much it was moved for this student."""
    found: list[object] = [None, None]
    asked = (
        ("select duedate from assignment where name = ?", (places.assignment,)),
        (
            "select extension from submitted_assignment join assignment "
            "on submitted_assignment.assignment_id = assignment.id where assignment.name = ? and student_id = ?",
            (places.assignment, places.student),
        ),
    )
    with _gradebook(places.course) as database:
        for i, (question, names) in enumerate(asked):
            row = database.execute(question, names).fetchone()
            found[i] = row[0] if row else None
    return found[0], found[1]


@contextlib.contextmanager
def _gradebook(course: Path) -> Iterator[sqlite3.Connection]:
    """The gradebook, to be read; where there is none that can be read, the body ends at its first question."""
    with (
        contextlib.suppress(sqlite3.OperationalError),
        contextlib.closing(
            sqlite3.connect(f"file:{course / 'gradebook.db'}?mode=ro", uri=True, timeout=60)
        ) as database,
    ):
        yield database


def _autograde(course: Path, lab: Lab, nbgrader: Nbgrader, done: Recorded) -> None:
    """Have nbgrader record those of `done.anew`; whoever is not recorded afterwards is a problem."""
    if not done.anew:
        return
    all_places = [Places(course, student, lab.folder.name) for student in done.anew]
    with only_these(course, [places.submitted for places in all_places]) as view:
        run = nbgrader(course, "autograde", lab.folder.name, f"--CourseDirectory.submitted_directory={view}")
    scored = students_with_scores(course, lab)
    for places in all_places:
        if places.student not in scored or recorded_as(places.autograded) != fingerprint(places):
            done.anew.remove(places.student)
            done.problems[places.student] = f"nbgrader did not record it: {_last_error(run.output, places.student)}"


def _make_feedback_again(course: Path, lab: Lab, nbgrader: Nbgrader, done: Recorded, wanted: Sequence[Places]) -> None:
    """Feedback is made when an instructor asks for it; what is there and out of date is not left to be handed back."""
    recorded = {places: recorded_as(places.autograded) for places in wanted}
    stale = {places: now for places, now in recorded.items() if now and is_out_of_date(places, now)}
    if not stale:
        return
    said = make_feedback_again(course, lab, nbgrader, stale)
    for places, now in stale.items():
        if is_out_of_date(places, now):
            done.problems[places.student] = f"no feedback was made: {_last_error(said, places.student)}"
        else:
            done.feedback.append(places.student)


def _last_error(output: str, student: str) -> str:
    """The line of nbgrader's output that says most about a student's failure."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "rror" in line and "There was an error" not in line and "raceback" not in line]
    own = [line for line in errors if student in line]
    return one_line((own or errors or lines or ["it said nothing"])[-1])
