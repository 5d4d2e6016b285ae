"""What the trials share."""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # trials run side by side: torch's threads would wait for one another

import pytest


@pytest.fixture(scope="session")
def made_course(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A course of Lab 01 as `lab course` makes it, to be copied."""
    from labkit.labs.catalog import find_lab
    from labstaff.course.make import make_course
    from labstaff.course.nbgrader_process import Nbgrader

    course = tmp_path_factory.mktemp("made") / "course"
    with Nbgrader() as nbgrader:
        make_course([find_lab("01")], course, nbgrader)
    return course
