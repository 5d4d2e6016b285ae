"""Has nbgrader record what the judge has found: its own autograde, on submissions that it can take."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from labkit.labs.manifest import Lab
from labstaff.course.nbgrader_process import Nbgrader
from labstaff.course.paths import make_ready


class RecordError(RuntimeError):
    """nbgrader did not record; the message is what it said."""


def record(
    course: Path, lab: Lab, nbgrader: Nbgrader, *, force: bool = False, say: Callable[[str], None] = lambda line: None
) -> None:
    """Run `nbgrader autograde` on every submission of `lab` in `course`.

    Args:
        force: record submissions again that were recorded before.
        say: is given a line about each submission that had to be made ready.

    Raises:
        RecordError: nbgrader failed.
    """
    for line in make_ready(course):
        say(line)
    done = nbgrader(course, "autograde", lab.folder.name, *(["--force"] if force else []))
    if done.status:
        raise RecordError(f"nbgrader autograde {lab.folder.name} failed:\n{done.output}")
