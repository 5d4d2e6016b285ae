"""Opens nbgrader's gradebook of a course."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

GRADEBOOK = "gradebook.db"


class NoGradebook(Exception):
    """There is no gradebook that can be used; the message says where, and what is wrong."""


@contextlib.contextmanager
def opened(course: Path) -> Iterator[Any]:
    """nbgrader's own `Gradebook` of the course in the folder `course`.

    Raises:
        NoGradebook: there is none, or it cannot be read or, in the body, written.
    """
    from nbgrader.api import Gradebook
    from sqlalchemy.exc import DatabaseError

    if not (course / GRADEBOOK).is_file():
        raise NoGradebook(f"{course} holds no {GRADEBOOK}: name the folder that `lab course` made")
    require_readable(course)
    try:
        with Gradebook(f"sqlite:///{course / GRADEBOOK}") as gradebook:
            yield gradebook
    except DatabaseError as error:
        raise NoGradebook(f"{course / GRADEBOOK}: {error.orig}") from None


def require_readable(course: Path) -> None:
    """Returns where the course's gradebook is one of nbgrader's or does not exist yet.

    Raises:
        NoGradebook: the file is none.
    """
    path = course / GRADEBOOK
    if not path.exists():
        return
    try:
        with contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            database.execute("select name from assignment limit 1")
    except sqlite3.DatabaseError as error:
        remedy = "put a copy back, then run lab grade with --force"
        raise NoGradebook(f"{path} is no gradebook of nbgrader's ({error}): {remedy}") from None
