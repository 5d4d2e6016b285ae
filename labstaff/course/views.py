"""Folders that one grader makes in a course for one of nbgrader's commands, and that are gone after it."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ONLY_THESE = ".only-these-"
MADE_AGAIN = ".made-again-"
"""Hidden, so that nobody takes them for students: nbgrader's patterns pass over such names."""


@contextlib.contextmanager
def only_these(course: Path, folders: Sequence[Path]) -> Iterator[str]:
    """A folder of links to students' folders, for nbgrader to find these and no others; its name in the course.

    nbgrader takes whatever lies in a folder: names that end its run, and submissions that are not judged, among them.
    """
    with tempfile.TemporaryDirectory(dir=course, prefix=ONLY_THESE) as view:
        for folder in folders:
            link = Path(view, folder.parent.name, folder.name)
            link.parent.mkdir()
            link.symlink_to(folder)
        yield Path(view).name


@contextlib.contextmanager
def made_again(feedback: Path) -> Iterator[Path]:
    """An empty folder beside the students' folders of feedback: what is made there can be moved to them in one step."""
    with tempfile.TemporaryDirectory(dir=feedback, prefix=MADE_AGAIN) as folder:
        yield Path(folder)


def clear_views(course: Path) -> None:
    """Remove what killed graders have left of such folders.

    For whoever holds the course's locks of graders and of nbgrader's commands: nobody alive has one then.
    """
    for left in (*course.glob(f"{ONLY_THESE}*"), *course.glob(f"feedback/{MADE_AGAIN}*")):
        shutil.rmtree(left, ignore_errors=True)  # links in it are removed, not followed
