"""What a course's nbgrader_config.py asks for: nbgrader's own steps, with results instead of a kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from traitlets.config import Application

from labkit.labs.catalog import find_assignments
from labstaff.course.paths import ACCEPTED, SUBMITTED
from labstaff.grader.submission import NOTES_FILE

COLLECTED = ".7z .docx .gz .ipynb .md .pdf .py .rar .tar .tgz .txt .xz .zip"
"""What zip_collect takes. Most of it cannot be graded, and `lab grade` names the student; left out, nobody would."""

STEPS = "labstaff.course.preprocessors"
CONFIG = '''\
"""The course's nbgrader settings. What belongs to the labs is in labstaff; what you may change is below it."""

from pathlib import Path

from labstaff.course.settings import apply

c = get_config()  # noqa: F821
apply(c, Path(__file__).resolve().parent)

c.CourseDirectory.course_id = "attention-labs"

# Late submissions: percent of the points taken off for each day begun, after so many minutes of grace.
c.LatePenalty.percent_per_day = 0
c.LatePenalty.grace_minutes = 10

# `nbgrader zip_collect`: how a learning platform names what it lets you download. Choose one, or write your own.
MOODLE = r".*/extracted/(?:[^/]*/)?(?P<student_id>[^/]+_\\d+)_assignsubmission_file_?(?:.*/)?(?P<file_id>[^/]+)\\.\\w+$"
CANVAS = r".*/extracted/(?:[^/]*/)?[^/_]+_(?:LATE_)?(?P<student_id>\\d+)_\\d+_(?P<file_id>[^/]+?)(?:-\\d+)?\\.\\w+$"
c.FileNameCollectorPlugin.named_regexp = MOODLE
'''


def apply(c: Any, course: Path) -> None:
    """Set nbgrader up in `c` for the course in the folder `course`."""
    is_collecting = Application.initialized() and Application.instance().name == "nbgrader-zip-collect"
    c.CourseDirectory.root = str(course)
    c.CourseDirectory.submitted_directory = SUBMITTED if is_collecting else ACCEPTED
    c.CourseDirectory.ignore = [".ipynb_checkpoints", "*.pyc", "__pycache__", NOTES_FILE]
    c.Exchange.root = str(course / "exchange")
    c.ClearSolutions.enforce_metadata = True
    c.Results.course = str(course)
    c.Autograde.exclude_overwriting = {lab.folder.name: [f"src/{lab.module}.py"] for lab in find_assignments()}
    c.OverwriteCells.add_missing_cells = True
    c.Autograde.sanitize_preprocessors = ["nbgrader.preprocessors.OverwriteCells"]
    c.Autograde.autograde_preprocessors = [
        f"{STEPS}.Results",
        "nbgrader.preprocessors.LimitOutput",
        f"{STEPS}.SaveScores",
    ]
    c.GenerateFeedback.preprocessors.insert(1, f"{STEPS}.WithoutNotes")
    c.GenerateFeedback.HTMLExporter.template_file = str(Path(__file__).with_name("feedback.html.j2"))
    sanitize = "labstaff.course.sanitize"
    c.HTMLExporter.filters = {"markdown2html": f"{sanitize}.markdown2html", "highlight_code": f"{sanitize}.code2html"}
    c.ZipCollectApp.collector_plugin = "labstaff.course.collect.ByRoster"
    c.ZipCollectApp.force = True  # a second run replaces what the first has collected
    c.ExtractorPlugin.zip_ext = []  # students' archives stay packed: `lab grade` takes two files from each
    c.FileNameCollectorPlugin.valid_ext = COLLECTED.split()
