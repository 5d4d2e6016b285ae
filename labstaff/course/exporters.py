"""The doors of nbgrader's three conversions: what comes in from students, what goes out to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nbconvert.exporters import HTMLExporter, NotebookExporter

from labkit.labs.catalog import find_lab
from labstaff.course.paths import Places
from labstaff.course.release_check import check_release
from labstaff.course.restore import NOTES
from labstaff.course.submitted import read_submitted

FOR_GRADER = "for_grader"


class ReleaseExporter(NotebookExporter):
    """For generate_assignment: an assignment in which a passage of a solution is found is not released."""

    def from_filename(self, filename: str, resources: dict[str, Any] | None = None, **kw: Any) -> tuple[Any, Any]:
        """The notebook as it is released; nbgrader removes the release and fails when this raises `LeakError`."""
        output, resources = super().from_filename(filename, resources, **kw)
        places = _places(self, resources)
        check_release(find_lab(places.assignment), places.released, {Path(filename).name: str(output)})
        return output, resources


class SubmissionExporter(NotebookExporter):
    """For autograde: a submitted file is read as something that may hold anything."""

    def from_filename(self, filename: str, resources: dict[str, Any] | None = None, **kw: Any) -> tuple[Any, Any]:
        """The notebook after the preprocessors, which find the submission's `Places` under `resources["course"]`."""
        from nbformat import v4

        assert resources is not None
        places = resources["course"] = _places(self, resources)
        path = Path(filename)
        if not path.is_relative_to(places.submitted):
            return super().from_filename(filename, resources, **kw)
        submitted = read_submitted(path)
        notebook = v4.new_notebook(cells=submitted.cells, metadata={NOTES: submitted.notes})
        return self.from_notebook_node(notebook, resources, **kw)


class FeedbackExporter(HTMLExporter):
    """For generate_feedback: the page alone, without what is for the grader's eyes."""

    def from_notebook_node(self, nb: Any, resources: dict[str, Any] | None = None, **kw: Any) -> tuple[Any, Any]:
        """The page; what nbgrader has copied beside it from the submission is removed."""
        assert resources is not None
        nb.cells = [cell for cell in nb.cells if not cell.metadata.get(FOR_GRADER)]
        nb.metadata.pop(NOTES, None)
        for path in _places(self, resources).feedback.rglob("*"):
            if path.is_file() and path.suffix != ".html":
                path.unlink()
        return super().from_notebook_node(nb, resources, **kw)


def _places(exporter: Any, resources: Any) -> Places:
    """The exporter's parent is nbgrader's converter, which knows the course's folder."""
    names = resources["nbgrader"]
    return Places(Path(exporter.parent.coursedir.root), names["student"], names["assignment"])
