"""Reads a submission: one regular file of bounded size, whatever else the folder or archive holds."""

from __future__ import annotations

import codecs
import hashlib
import io
import os
import stat
import zipfile
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from labkit.labs.manifest import FOLDER_PATTERN, Lab
from labkit.suite.finder import MAX_BYTES
from labstaff.grader.plain_text import one_line

MAX_ARCHIVE_BYTES = 32 << 20
LONGEST_NOTES = 10_000
NOTES_FILE = "for_the_grader.txt"
"""Where the course notes what could not be read of a submission, a line each; the code first, if that was it."""

UNPACKED = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
"""Ways of packing that are read: the others let an archive ask for gigabytes of memory before its first byte."""


@dataclass
class Submission:
    """One student's file for one lab.

    `problem` is why there is nothing to grade, `flags` are what an instructor should look at.
    """

    lab: Lab
    source: bytes = b""
    problem: str = ""
    flags: list[str] = field(default_factory=list)

    @property
    def key(self) -> str:
        """Stands for the content handed in: two submissions with the same key get the same result."""
        digest = hashlib.sha256(self.lab.folder.name.encode())
        digest.update(hashlib.sha256(self.source).digest() + self.problem.encode())
        return digest.hexdigest()[:32]


def read_submission(lab: Lab, place: Path) -> Submission:
    """The submission for `lab` in a folder or a zip archive. Never raises for what students put there."""
    submission = Submission(lab)
    try:
        source = read_part(lab, place, f"{lab.module}.py", "src", MAX_BYTES)
        submission.source = source.removeprefix(codecs.BOM_UTF8)  # some editors on Windows write it first
    except Exception as error:  # a made-up archive can have zipfile raise nearly anything
        submission.problem = f"cannot be read: {reason_of(error)}"
    notes = (read_regular(place / NOTES_FILE, LONGEST_NOTES) or b"").decode("utf-8", "replace").splitlines()
    submission.flags = [one_line(note) for note in notes]
    if submission.problem and notes:
        submission.problem = submission.flags.pop(0)
    return submission


def reason_of(error: Exception) -> str:
    """The error's message on one line, or its class where it has none."""
    return one_line(str(error) or type(error).__name__)


def read_part(lab: Lab, place: Path, name: str, parent: str, most_bytes: int) -> bytes:
    """The file `name` of a submission, a folder or a zip archive; in its folder `parent`, or at the top.

    Links are not followed, and nothing is extracted to a path that an archive names.

    Args:
        lab: the lab; the folder of another lab in an archive is left out.
        place: the folder or archive.
        name: the file's name.
        parent: the folder's name; in an archive it may be in other folders, and "" is any folder.
        most_bytes: how many bytes the file may have.

    Raises:
        ValueError: there is no such file, or it is too large.
        Exception: the archive is damaged.
    """
    if place.is_dir():
        again = place / lab.folder.name  # unpacked into a folder of its own name
        if again.is_dir() and not again.is_symlink():
            place = again
        content = None if (place / parent).is_symlink() else read_regular(place / parent / name, most_bytes)
        if content is None:
            content = read_regular(place / name, most_bytes)
    else:
        content = _unpacked(lab, place, name, parent, most_bytes)
    if content is None:
        raise ValueError(f"there is no {PurePosixPath(parent, name)}, as a regular file")
    if len(content) > most_bytes:
        raise ValueError(f"larger than {most_bytes >> 20} MiB")
    return content


def read_regular(path: Path, most_bytes: int) -> bytes | None:
    """At most `most_bytes` + 1 bytes of a regular file; None when there is none, as for a link, a pipe or a folder."""
    try:
        # O_NOFOLLOW, and the look at what was opened: what was a file a moment ago must still be one
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return None
    with os.fdopen(descriptor, "rb") as file:
        return file.read(most_bytes + 1)


def _unpacked(lab: Lab, place: Path, name: str, parent: str, most_bytes: int) -> bytes | None:
    """At most `most_bytes` + 1 bytes of the outermost such entry of an archive."""
    archive = read_regular(place, MAX_ARCHIVE_BYTES)
    if archive is None:
        raise ValueError(f"{place.name} is neither a folder nor a zip archive")
    if len(archive) > MAX_ARCHIVE_BYTES:
        raise ValueError(f"larger than {MAX_ARCHIVE_BYTES >> 20} MiB")
    with zipfile.ZipFile(io.BytesIO(archive)) as content:
        found = []
        for entry in content.infolist():
            *folders, last = PurePosixPath(entry.filename.replace("\\", "/")).parts or [""]
            is_here = last == name and (not folders or not parent or folders[-1] == parent)
            if is_here and not any(FOLDER_PATTERN.fullmatch(each) and each != lab.folder.name for each in folders):
                found.append((len(folders), entry))
        if not found:
            return None
        _, entry = min(found, key=lambda each: each[0])
        if entry.compress_type not in UNPACKED:
            raise ValueError("packed in a way that is not read: use plain zip")
        with content.open(entry) as packed:
            return packed.read(most_bytes + 1)
