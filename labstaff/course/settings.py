"""What a course's nbgrader_config.py asks for: nbgrader's own steps, with the judge in the place of the kernel."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from labkit.labs.catalog import find_labs
from labstaff.course.paths import make_ready, remove_what_is_no_file

ROOM = "labstaff.course"
CONFIG = '''\
"""The course's nbgrader settings. What belongs to the labs is in labkit; what you may change is below it."""

from pathlib import Path

from labstaff.course.settings import apply

c = get_config()  # noqa: F821
apply(c, Path(__file__).resolve().parent)

c.CourseDirectory.course_id = "attention-labs"

# Late submissions: percent of the points taken off for each day begun, after so many minutes of grace.
c.LatePenalty.percent_per_day = 0
c.LatePenalty.grace_minutes = 10

# `nbgrader zip_collect`: which part of an archive's name (without .zip) is the student's id.
c.HandedIn.named_regexp = r"(?P<student_id>.+)"
'''


def apply(c: Any, course: Path) -> None:
    """Set nbgrader up in `c` for the course in `course`, and make its submissions ready to be graded."""
    c.CourseDirectory.root = str(course)
    c.Exchange.root = str(course / "exchange")
    c.ClearSolutions.enforce_metadata = True
    c.GenerateAssignment.exporter_class = f"{ROOM}.exporters.ReleaseExporter"
    c.Autograde.exporter_class = f"{ROOM}.exporters.SubmissionExporter"
    c.Autograde.pre_convert_hook = _before_autograde
    c.Autograde.exclude_overwriting = {lab.folder.name: [f"src/{lab.module}.py"] for lab in find_labs()}
    c.Autograde.sanitize_preprocessors = [
        f"{ROOM}.restore.RestoreCells",
        "nbgrader.preprocessors.DeduplicateIds",
        "nbgrader.preprocessors.OverwriteKernelspec",
        "nbgrader.preprocessors.OverwriteCells",
        "nbgrader.preprocessors.CheckCellMetadata",
    ]
    c.Autograde.autograde_preprocessors = [
        f"{ROOM}.suite_outputs.SuiteOutputs",
        "nbgrader.preprocessors.LimitOutput",
        "nbgrader.preprocessors.SaveAutoGrades",
        "nbgrader.preprocessors.AssignLatePenalties",
        "nbgrader.preprocessors.CheckCellMetadata",
    ]
    c.AssignLatePenalties.plugin_class = f"{ROOM}.late.LatePenalty"
    c.GenerateFeedback.exporter_class = f"{ROOM}.exporters.FeedbackExporter"
    c.ZipCollectApp.collector_plugin = f"{ROOM}.collect.HandedIn"
    for line in make_ready(course):
        logging.getLogger("labkit").warning(line)


def _before_autograde(assignment: str, student: str, notebooks: list[str]) -> None:
    """Once more when formgrader's button starts autograde, long after this configuration was read."""
    for notebook in notebooks:
        remove_what_is_no_file(Path(notebook).parent)
