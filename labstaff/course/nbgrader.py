"""nbgrader's own gradebook and commands for a course, in this process."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from labstaff.course.paths import CONFIG_FILE, GRADEBOOK


class NoGradebook(Exception):
    """There is no gradebook that can be used; the message says where, and what is wrong."""


def nbgrader(course: Path) -> Any:
    """nbgrader's `NbGraderAPI` with the settings of the course in the folder `course`.

    Each of its commands returns a dict: `success`, and where that is False `error` and `log`.
    """
    from nbgrader.apps import NbGraderAPI
    from sqlalchemy import Engine, event
    from traitlets.config import PyFileConfigLoader

    if not event.contains(Engine, "connect", _set_journal):
        event.listen(Engine, "connect", _set_journal)

    warnings.filterwarnings("ignore", module="nbgrader")  # SQLAlchemy's, on how nbgrader puts submissions together
    warnings.filterwarnings("ignore", module="nbformat")  # a deleted check cell that nbgrader puts back has no id yet
    programs = str(Path(sys.executable).parent)  # nbgrader calls alembic by name
    os.environ["PATH"] = os.pathsep.join([programs, os.environ.get("PATH", "")])
    return NbGraderAPI(config=PyFileConfigLoader(CONFIG_FILE, path=str(course)).load_config())


def _set_journal(connection: Any, _record: Any) -> None:
    """nbgrader commits some 35 times for a submission: keep the journal's file, and wait for the disk less often.

    No write-ahead log: SQLite does not support one on network file systems.
    """
    connection.execute("PRAGMA journal_mode = PERSIST")
    connection.execute("PRAGMA synchronous = NORMAL")


@contextlib.contextmanager
def opened_gradebook(course: Path) -> Iterator[Any]:
    """nbgrader's own `Gradebook` of the course in the folder `course`.

    Raises:
        NoGradebook: there is none, or it cannot be read or, in the body, written.
    """
    from nbgrader.api import Gradebook
    from sqlalchemy.exc import DatabaseError

    if not (course / GRADEBOOK).is_file():
        raise NoGradebook(f"{course} holds no {GRADEBOOK}: name the folder that `lab course` made")
    try:
        with Gradebook(f"sqlite:///{course / GRADEBOOK}") as gradebook:
            yield gradebook
    except DatabaseError as error:
        raise NoGradebook(f"{course / GRADEBOOK} cannot be used: {error.orig}") from None
