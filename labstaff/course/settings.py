"""What a course's nbgrader_config.py asks for: nbgrader's own steps, with the judge in the place of the kernel."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Any

from labkit.labs.catalog import find_labs
from labstaff.course.paths import COMMANDS_LOCK, Places, alone
from labstaff.course.ready import make_one_ready, make_ready
from labstaff.course.views import ONLY_THESE

ROOM = "labstaff.course"
WRITING = {"nbgrader-autograde", "nbgrader-generate-feedback"}
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

# `nbgrader zip_collect`: which part of an archive's name (without .zip) is the student's id.
c.HandedIn.named_regexp = r"(?P<student_id>.+)"
'''

_held = contextlib.ExitStack()


def apply(c: Any, course: Path) -> None:
    """Set nbgrader up in `c` for the course in `course`, and make its submissions ready to be graded."""
    c.CourseDirectory.root = str(course)
    c.Exchange.root = str(course / "exchange")
    c.ClearSolutions.enforce_metadata = True
    c.GenerateAssignment.exporter_class = f"{ROOM}.exporters.ReleaseExporter"
    c.SubmissionExporter.optimistic_validation = True  # a notebook's form is checked after all steps, not after each
    c.Autograde.exporter_class = f"{ROOM}.exporters.SubmissionExporter"
    c.Autograde.pre_convert_hook = _before_autograde
    c.Autograde.exclude_overwriting = {lab.folder.name: [f"src/{lab.module}.py"] for lab in find_labs()}
    c.Autograde.sanitize_preprocessors = [
        f"{ROOM}.restore.RestoreCells",
        "nbgrader.preprocessors.DeduplicateIds",
        "nbgrader.preprocessors.OverwriteKernelspec",
        "nbgrader.preprocessors.OverwriteCells",
        f"{ROOM}.metadata.CheckMetadata",
    ]
    c.Autograde.autograde_preprocessors = [
        f"{ROOM}.suite_outputs.SuiteOutputs",
        "nbgrader.preprocessors.LimitOutput",
        "nbgrader.preprocessors.SaveAutoGrades",
        "nbgrader.preprocessors.AssignLatePenalties",
        f"{ROOM}.metadata.CheckMetadata",
    ]
    c.AssignLatePenalties.plugin_class = f"{ROOM}.plugins.LatePenalty"
    c.ExportApp.plugin_class = f"{ROOM}.plugins.QuotedCsv"
    c.GenerateFeedback.exporter_class = f"{ROOM}.exporters.FeedbackExporter"
    c.HTMLExporter.filters = {"markdown2html": f"{ROOM}.shown.markdown2html"}  # formgrader's pages and the feedback's
    c.ZipCollectApp.extractor_plugin = f"{ROOM}.collect.TwoFiles"
    c.ZipCollectApp.collector_plugin = f"{ROOM}.collect.HandedIn"
    c.ZipCollectApp.force = (
        True  # what is there already and has not changed is not touched: see labstaff.course.collect
    )
    _begin_to_write(course)
    if not _is_on_a_view():
        for line in make_ready(course):
            logging.getLogger("labkit").warning(line)


def _begin_to_write(course: Path) -> None:
    """A command that writes has the course to itself until it ends, also when whoever started it is gone.

    Formgrader reads this configuration too, and never ends: it holds nothing.
    """
    from traitlets.config import Application

    if Application.initialized() and Application.instance().name in WRITING:
        from labstaff.course.one_gradebook import install

        _held.close()  # nbgrader reads its configuration more than once
        _held.enter_context(alone(course, COMMANDS_LOCK))
        install()


def _is_on_a_view() -> bool:
    """Whether this is a command of `lab grade`'s, which has made ready what it is to find, and nothing else."""
    from traitlets.config import Application

    told = Application.instance().cli_config.get("CourseDirectory", {}) if Application.initialized() else {}
    return str(told.get("submitted_directory", told.get("autograded_directory", ""))).startswith(ONLY_THESE)


def _before_autograde(assignment: str, student: str, notebooks: list[str]) -> None:
    """Once more when formgrader's button starts autograde, long after this configuration was read."""
    for notebook in notebooks:
        folder = Path(notebook).resolve().parent
        make_one_ready(Places(folder.parents[2], folder.parent.name, folder.name))
