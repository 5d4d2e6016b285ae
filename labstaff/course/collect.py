"""Names students in `nbgrader zip_collect` as the roster does."""

from __future__ import annotations

import functools
import re
import unicodedata
from collections import defaultdict

from nbgrader.api import Gradebook
from nbgrader.plugins import FileNameCollectorPlugin

MOODLE_NAME = re.compile(r"(?P<name>.+)_\d+")
"""Moodle's name and number of a student. The number is another one in each assignment, so the name is all there is."""


class ByRoster(FileNameCollectorPlugin):
    """Finds a student's id by the name in Moodle's file name, where exactly one student of the gradebook has it."""

    def collect(self, submitted_file: str) -> dict[str, str] | None:
        """As in nbgrader's class, with the roster's id as `student_id`."""
        found: dict[str, str] | None = super().collect(submitted_file)
        match = MOODLE_NAME.fullmatch(found["student_id"]) if found else None
        if found and match:
            ids = self._ids_by_name.get(_words(match["name"]), [])
            if len(ids) == 1:
                found["student_id"] = ids[0]
            elif ids:
                self.log.warning("%s is %s in the roster: rename the folder", found["student_id"], " or ".join(ids))
        return found

    @functools.cached_property
    def _ids_by_name(self) -> dict[tuple[str, ...], list[str]]:
        by_name = defaultdict(list)
        with Gradebook(self.parent.coursedir.db_url) as gradebook:
            for student in gradebook.students:
                if name := _words(f"{student.first_name or ''} {student.last_name or ''}"):
                    by_name[name].append(student.id)
        return by_name


def _words(name: str) -> tuple[str, ...]:
    """The words of a name, in any order: a platform may put the last name first, and leaves out signs."""
    plain = re.sub(r"[^\w\s]", "", unicodedata.normalize("NFKC", name).casefold())
    return tuple(sorted(plain.split()))
