"""Picks a lab's two files out of what students hand in as archives, however they packed it."""

from __future__ import annotations

import re
from pathlib import Path

from nbgrader.plugins import FileNameCollectorPlugin
from traitlets import default

from labkit.labs.catalog import find_lab
from labkit.labs.manifest import FOLDER_PATTERN
from labstaff.course.paths import NOTEBOOK


class HandedIn(FileNameCollectorPlugin):
    """nbgrader's collector plugin for `downloaded/ASSIGNMENT/archive/STUDENT.zip`.

    A student may pack the two files, the lab's folder or the whole tree: what is taken is `report.ipynb` and
    `src/<module>.py`, once each, and not from another lab's folder. `named_regexp` is matched with the archive's name
    alone, so that no name inside an archive can stand for another student.
    """

    @default("named_regexp")
    def _named_regexp_default(self) -> str:
        return r"(?P<student_id>.+)"

    def collect(self, submitted_file: str) -> dict[str, str] | None:
        """The student and the file's place in the submission; None for a file that is not part of one."""
        course = Path(self.parent.coursedir.root)
        path = Path(submitted_file)
        assignment, _, archive, *inside = path.relative_to(course / self.parent.downloaded_directory).parts
        match = re.fullmatch(self.named_regexp, archive)
        lab = find_lab(assignment)
        wanted = {(NOTEBOOK,): NOTEBOOK, ("src", f"{lab.module}.py"): f"src/{lab.module}.py"}
        end = tuple(inside[-1:]) if inside[-1:] == [NOTEBOOK] else tuple(inside[-2:])
        if match is None or end not in wanted or path.is_symlink() or self._of_another_lab(inside, assignment):
            return None
        taken = self.__dict__.setdefault("taken", set())
        if (archive, end) in taken:
            self.log.warning("%s: %s is there more than once; the first is taken", archive, wanted[end])
            return None
        taken.add((archive, end))
        return {**match.groupdict(), "file_id": wanted[end]}

    @staticmethod
    def _of_another_lab(inside: list[str], assignment: str) -> bool:
        return any(FOLDER_PATTERN.fullmatch(part) and part != assignment for part in inside)
