"""Picks a lab's two files out of what students hand in as archives, however they packed it, and says what it lacked."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nbgrader.plugins import ExtractorPlugin, FileNameCollectorPlugin
from traitlets import default

from labkit.labs.catalog import find_lab
from labkit.labs.manifest import Lab
from labstaff.course.paths import NOTEBOOK, Places, why_not_recordable
from labstaff.course.ready import MOST_NOTEBOOK_BYTES, PUT_THERE, time_of
from labstaff.grader.plain_text import one_line
from labstaff.grader.submission import MOST_BYTES, Submission, find_in_archive, open_archive, read_regular


@dataclass
class Collected:
    """What became of the archives: by name, in the order of their names."""

    new: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    look_at: list[str] = field(default_factory=list)
    nothing: list[str] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        """The list that ends a run."""
        yield f"collected: {len(self.new)} new or changed, {len(self.unchanged)} unchanged"
        yield from (f"look at: {line}" for line in self.look_at)
        yield from (f"nothing collected: {line}" for line in self.nothing)


class TwoFiles(ExtractorPlugin):
    """nbgrader's extractor for `downloaded/ASSIGNMENT/archive/STUDENT.zip`: takes two files of bounded size.

    A student may pack the two files, the lab's folder or the whole tree: what is taken is `report.ipynb` and
    `src/<module>.py`, once each, and not from another lab's folder. Nothing else is unpacked.
    """

    def extract(self, archive_path: str, extracted_path: str) -> None:
        """Write each archive's files to a folder of its name, unless the submission holds the same ones already.

        The list of what was collected and what was not comes when nbgrader has copied them.
        """
        app: Any = self.parent
        collected = Collected()
        lab = find_lab(app.coursedir.assignment_id)
        course = Path(app.coursedir.root)
        archives = {path: _student(path, app) for path in sorted(Path(archive_path).iterdir())}
        for path, (student, problem) in archives.items():
            same = [other for other, (name, _) in archives.items() if name == student and other != path]
            if same and not problem and not _says_when(app):
                problem = f"{', '.join(one_line(other.name) for other in same)} is {one_line(student)}'s too"
            problem = problem or _take(path, Path(extracted_path) / path.stem, lab, course, student, collected)
            if problem:
                collected.nothing.append(f"{one_line(path.name)}: {problem}")
        known = {student for student, _ in archives.values()}
        for student in sorted(_students(course) - known):
            if not Places(course, student, lab.folder.name).submitted.exists():
                collected.nothing.append(f"{one_line(student)}: there is no archive")
        _tell_at_the_end(app, collected)


class HandedIn(FileNameCollectorPlugin):
    """nbgrader's collector for what `TwoFiles` has extracted.

    `named_regexp` is matched with the archive's name alone, so that no name inside an archive can stand for another
    student.
    """

    @default("named_regexp")
    def _named_regexp_default(self) -> str:
        return r"(?P<student_id>.+)"

    def collect(self, submitted_file: str) -> dict[str, str] | None:
        """The student and the file's place in the submission."""
        course = Path(self.parent.coursedir.root)
        path = Path(submitted_file)
        _, _, archive, *inside = path.relative_to(course / self.parent.downloaded_directory).parts
        match = re.fullmatch(self.named_regexp, archive)
        return {**match.groupdict(), "file_id": "/".join(inside)} if match else None


def _student(archive: Path, app: Any) -> tuple[str, str]:
    """Whose an archive is, by its name; and why nothing can be collected from it."""
    named = re.fullmatch(app.collector_plugin_inst.named_regexp, archive.stem)
    if archive.is_symlink() or not archive.is_file() or not zipfile.is_zipfile(archive):
        return archive.stem, "not a zip archive"
    if named is None:
        return "", "its name does not match c.HandedIn.named_regexp"
    groups = named.groupdict()
    if groups.get("timestamp") and time_of(groups["timestamp"].encode("utf-8", "replace")) is None:
        return groups["student_id"], f"{one_line(groups['timestamp'])} is no time"
    return groups["student_id"], why_not_recordable(groups["student_id"])


def _says_when(app: Any) -> bool:
    """Whether archives' names carry a time, by which nbgrader takes the last of several."""
    return "(?P<timestamp>" in app.collector_plugin_inst.named_regexp


def _take(archive: Path, target: Path, lab: Lab, course: Path, student: str, collected: Collected) -> str:
    """Write the two files to `target`; returns why there is nothing to be collected."""
    answer = f"{lab.module}.py"
    wanted = {NOTEBOOK: ("", NOTEBOOK, MOST_NOTEBOOK_BYTES), f"src/{answer}": ("src", answer, MOST_BYTES)}
    found: dict[str, bytes] = {}
    notes = Submission(lab)
    name = one_line(archive.name)
    try:
        with archive.open("rb") as file, open_archive(file) as content:
            for where, (parent, last, most_bytes) in wanted.items():
                entry = find_in_archive(content, last, parent, notes)
                if entry is None:
                    continue
                with content.open(entry) as packed:
                    found[where] = packed.read(most_bytes + 1)
                if len(found[where]) > most_bytes:
                    del found[where]
                    notes.flag(f"{last} is larger than {most_bytes >> 20} MiB, and left out")
    except Exception as error:  # a made-up archive can have zipfile raise nearly anything
        return one_line(f"cannot be read: {type(error).__name__}: {error}")
    collected.look_at += [f"{name}: {flag}" for flag in notes.flags]
    if not found:
        return f"it holds neither {NOTEBOOK} nor src/{answer}"
    collected.look_at += [f"{name}: it holds no {where}" for where in wanted if where not in found]
    if _is_there_already(found, list(wanted), Places(course, student, lab.folder.name)):
        collected.unchanged.append(student)
        return ""
    collected.new.append(student)
    for where, text in found.items():
        (target / where).parent.mkdir(parents=True, exist_ok=True)
        (target / where).write_bytes(text)
    return ""


def _is_there_already(found: dict[str, bytes], wanted: list[str], places: Places) -> bool:
    """Whether a submission holds these files, and of the wanted ones no others than what the course has put there."""
    for where in wanted:
        there = read_regular(places.submitted / where, MOST_NOTEBOOK_BYTES)
        if where in found and there != found[where]:
            return False
        if where not in found and there is not None and not _put_there(there):
            return False
    return True


def _put_there(notebook: bytes) -> bool:
    with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
        return json.loads(notebook)["metadata"][PUT_THERE] is True
    return False


def _students(course: Path) -> set[str]:
    """All students that the course knows: of the gradebook, and of other labs."""
    known = {place.parent.name for place in (course / "submitted").glob("*/lab*") if place.is_dir()}
    with (
        contextlib.suppress(sqlite3.OperationalError),
        contextlib.closing(sqlite3.connect(f"file:{course / 'gradebook.db'}?mode=ro", uri=True)) as database,
    ):
        known |= {student for (student,) in database.execute("select id from student")}
    return known


def _tell_at_the_end(app: Any, collected: Collected) -> None:
    """nbgrader gives its plugins no last word: the list comes after its own last step."""
    copy_to_submitted = app.process_extracted_files

    def copy_and_tell() -> None:
        copy_to_submitted()
        print("\n".join(collected.lines()), flush=True)

    app.process_extracted_files = copy_and_tell
