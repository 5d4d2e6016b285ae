"""Makes pages of feedback again that were made from an older recording: what is out of date is not handed back.

An instructor asks for feedback once, and the page that is there says so. So it stays until the new one takes its place,
in one step: nbgrader would remove the old one first, and who is killed then leaves a student of whom nobody knows that
feedback is due.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from labkit.labs.manifest import Lab
from labstaff.course.nbgrader_process import Nbgrader
from labstaff.course.paths import COMMANDS_LOCK, NOTEBOOK, Places, alone
from labstaff.course.views import made_again, only_these

PAGE = Path(NOTEBOOK).with_suffix(".html").name
MARK = '<meta name="recorded" content="{}" />'
"""How a page of feedback says which recording it was made from."""


def is_out_of_date(places: Places, recorded: str) -> bool:
    """Whether there is feedback of another recording than that with the fingerprint `recorded`, or half a page."""
    return places.feedback.exists() and feedback_made_from(places.feedback / PAGE) != recorded


def make_feedback_again(course: Path, lab: Lab, nbgrader: Nbgrader, stale: Mapping[Places, str]) -> str:
    """Have nbgrader make these students' pages, and put each in the old one's place; returns what nbgrader printed.

    Args:
        stale: of each the fingerprint of its recording. A page that is not made from that one is not put in place.
    """
    with (
        only_these(course, [places.autograded for places in stale]) as view,
        made_again(course / "feedback") as folder,
    ):
        directories = {"autograded": view, "feedback": str(folder.relative_to(course))}
        options = [f"--CourseDirectory.{name}_directory={place}" for name, place in directories.items()]
        run = nbgrader(course, "generate_feedback", lab.folder.name, *options)
        with alone(course, COMMANDS_LOCK):  # an instructor's own command may be writing the same pages
            for places, recorded in stale.items():
                page = folder / places.student / places.assignment / PAGE
                if feedback_made_from(page) == recorded:
                    clear_all_but_the_page(places.feedback)
                    os.replace(page, places.feedback / PAGE)
    return run.output


def feedback_made_from(page: Path) -> str:
    """The fingerprint of the recording that a page of feedback was made from; nothing when the page does not say."""
    before, after = MARK.split("{}")
    text = page.read_text(encoding="utf-8", errors="replace")[:2000] if page.is_file() else ""
    return text.partition(before)[2].partition(after)[0] if before in text else ""


def clear_all_but_the_page(feedback: Path) -> None:
    """Remove what nbgrader has copied from a submission into a folder that a student gets."""
    for path in feedback.iterdir() if feedback.is_dir() else ():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != PAGE:
            path.unlink()
