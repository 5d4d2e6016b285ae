"""The doors of nbgrader's three conversions: what comes in from students, what goes out to them."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

from nbconvert.exporters import HTMLExporter, NotebookExporter

from labkit.labs.manifest import Lab
from labstaff.course.feedback import MARK, clear_all_but_the_page
from labstaff.course.make import check_release
from labstaff.course.one_gradebook import in_one_step
from labstaff.course.paths import Places
from labstaff.course.record import RECORDED
from labstaff.course.restore import NOTES
from labstaff.course.submitted import read_submitted

FOR_GRADER = "for_grader"


class ReleaseExporter(NotebookExporter):
    """For generate_assignment: an assignment in which a passage of a solution is found is not released."""

    def from_filename(self, filename: str, resources: dict[str, Any] | None = None, **kw: Any) -> tuple[Any, Any]:
        """The notebook as it is released; nbgrader removes the release and fails when this raises `LeakError`."""
        output, resources = super().from_filename(filename, resources, **kw)
        places = _places(self, resources)
        check_release(places.lab, places.released, {Path(filename).name: str(output)})
        return output, resources


class SubmissionExporter(NotebookExporter):
    """For autograde: a submitted file is read as something that may hold anything."""

    def from_filename(self, filename: str, resources: dict[str, Any] | None = None, **kw: Any) -> tuple[Any, Any]:
        """The notebook after the preprocessors, which find the submission's `Places` under `resources["course"]`."""
        from nbformat import v4

        assert resources is not None
        places = resources["course"] = _places(self, resources)
        path = Path(filename)
        with in_one_step():  # a notebook is written when its scores are kept: whoever has it is recorded
            if path.is_relative_to(places.autograded):
                return super().from_filename(filename, resources, **kw)
            submitted = read_submitted(path)
            notebook = v4.new_notebook(cells=submitted.cells, metadata={NOTES: submitted.notes})
            return self.from_notebook_node(notebook, resources, **kw)


class FeedbackExporter(HTMLExporter):
    """For generate_feedback: the page alone, without what is for the grader's eyes."""

    def from_notebook_node(self, nb: Any, resources: dict[str, Any] | None = None, **kw: Any) -> tuple[Any, Any]:
        """The page; what nbgrader has copied beside it from the submission is removed.

        The page says which recording it was made from, so that `lab grade` knows when it is out of date.
        """
        assert resources is not None
        places = _places(self, resources)
        nb.cells = [cell for cell in nb.cells if not cell.metadata.get(FOR_GRADER)]
        nb.metadata.pop(NOTES, None)
        recorded = nb.metadata.pop(RECORDED, "")
        clear_all_but_the_page(_written(self, places))
        page, resources = super().from_notebook_node(nb, resources, **kw)
        page = _with_titles(page, places.lab)
        return page.replace("<head>", f"<head>\n{MARK.format(html.escape(recorded))}", 1), resources


def _with_titles(page: str, lab: Lab) -> str:
    """nbgrader's table of contents calls each entry by its kind; here each has its name."""
    titles = {task.name: task.name for task in lab.tasks} | {each.id: each.title for each in lab.questions}
    for grade_id, title in titles.items():
        kinds = r"Test cell|Coding free-response|Written response|Task"
        pattern = rf'(<li><a href="#{re.escape(grade_id)}">)(?:{kinds})(?=</a>)'
        before, *found = re.split(pattern, page, maxsplit=1)
        page = "".join([before, found[0], html.escape(title), found[1]]) if found else page
    return page


def _places(exporter: Any, resources: Any) -> Places:
    """The exporter's parent is nbgrader's converter, which knows the course's folder."""
    names = resources["nbgrader"]
    return Places(Path(exporter.parent.coursedir.root), names["student"], names["assignment"])


def _written(exporter: Any, places: Places) -> Path:
    """Where nbgrader writes this student's feedback now: beside `places.feedback` when `lab grade` makes it again."""
    coursedir = exporter.parent.coursedir
    return Path(coursedir.format_path(coursedir.feedback_directory, places.student, places.assignment))
