"""What the trials share."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

os.environ.setdefault("OMP_NUM_THREADS", "1")  # trials run side by side: torch's threads would wait for one another

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in what a shell starts behind a script's back
    signal.signal(signal.SIGINT, signal.default_int_handler)  # commands that are started here are to hear Ctrl-C

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from labstaff.course.nbgrader_process import Nbgrader


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """With `-n`, keep a file's trials together: they share what takes long to make.

    In `addopts` the switch would be unknown wherever plugins are not loaded: in every run of a lab's suite.
    """
    if getattr(config.option, "dist", "") == "no" and config.option.numprocesses:
        config.option.dist = "loadfile"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, for all trials of a file."""
    from built_site import a_browser

    with a_browser() as browser:
        yield browser


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


@pytest.fixture(scope="module")
def shared_nbgrader() -> Iterator[Nbgrader]:
    """nbgrader, imported once for all trials of a file."""
    from labstaff.course.nbgrader_process import Nbgrader

    with Nbgrader() as nbgrader:
        yield nbgrader
