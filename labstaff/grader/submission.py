"""Reads a submission: one regular file of bounded size, whatever else the folder or archive holds."""

from __future__ import annotations

import codecs
import contextlib
import hashlib
import os
import stat
import struct
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO

from labkit.labs.manifest import FOLDER_PATTERN, Lab
from labstaff.grader.plain_text import one_line

MOST_BYTES = 1 << 20
MOST_DIRECTORY_BYTES = 16 << 20
MOST_FLAGS = 20
EXPECTED = {".ipynb", ".png", ".svg", ".csv", ".json", ".md", ".txt", ".pdf"}
NOTES_FILE = "for_the_grader.txt"
"""Where the course notes what could not be read of a submission, a line each; the code first, if that was it."""

UNPACKED = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
"""Ways of packing that are read: the others let an archive ask for gigabytes of memory before its first byte."""

END_OF_ARCHIVE, END_OF_LARGE_ARCHIVE = b"PK\x05\x06", b"PK\x06\x06"


@dataclass
class Submission:
    """One student's file for one lab, and what an instructor should know about the rest.

    `problem` is why there is nothing to grade.
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

    def flag(self, what: str) -> None:
        """Have an instructor look at `what`."""
        if (flag := one_line(what)) in self.flags:
            return
        if len(self.flags) < MOST_FLAGS:
            self.flags.append(flag)
        elif len(self.flags) == MOST_FLAGS:
            self.flags.append("… and more of the same kind")


def read_submission(lab: Lab, place: Path) -> Submission:
    """The submission for `lab` in a folder or a zip archive. Never raises for what students put there."""
    submission = Submission(lab)
    try:
        if place.is_dir():
            _read_folder(submission, place)
        elif place.is_file() and zipfile.is_zipfile(place):
            _read_archive(submission, place)
        else:
            submission.problem = f"{one_line(place.name)} is neither a folder nor a zip archive"
    except Exception as error:  # a made-up archive can have zipfile raise nearly anything
        submission.problem = one_line(f"{place.name} cannot be read: {type(error).__name__}: {error}")
    return submission


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


def _read_folder(submission: Submission, folder: Path) -> None:
    """Take `src/<module>.py`, or `<module>.py`; name what else is there. Links are not followed, anywhere."""
    name = f"{submission.lab.module}.py"
    places = [f"{name}"] if (folder / "src").is_symlink() else [f"src/{name}", name]
    for where in places:
        source = read_regular(folder / where, MOST_BYTES)
        if source is not None:
            _take(submission, source, where)
            break
    else:
        submission.problem = f"there is no src/{name}, as a regular file"
    notes = (read_regular(folder / NOTES_FILE, MOST_BYTES) or b"").decode("utf-8", "replace").splitlines()
    if submission.problem and notes:
        submission.problem = one_line(notes.pop(0))
    for line in notes:
        submission.flag(line)
    _look_around(submission, folder)


def _look_around(submission: Submission, folder: Path) -> None:
    """Flag what is not part of an assignment, in `folder` and its `src`."""
    expected = {f"{submission.lab.module}.py", NOTES_FILE, "lab.toml", "src", "tests"}
    source = folder / "src"
    for inside in [folder] if source.is_symlink() or not source.is_dir() else [folder, source]:
        for entry in sorted(os.scandir(inside), key=lambda entry: entry.name):
            where = Path(entry.path).relative_to(folder)
            if not (entry.is_dir(follow_symlinks=False) or entry.is_file(follow_symlinks=False)):
                submission.flag(f"{where} is no regular file (a link, a pipe, a socket or a device): left aside")
            elif where.suffix not in EXPECTED and entry.name not in expected and not entry.name.startswith((".", "__")):
                submission.flag(f"{where}: not part of the assignment, left aside")


def _read_archive(submission: Submission, archive: Path) -> None:
    """Take the one entry that is the lab's module; nothing is ever extracted to a path that the archive names."""
    name = f"{submission.lab.module}.py"
    with archive.open("rb") as file, open_archive(file) as content:
        found = find_in_archive(content, name, "src", submission)
        if found is None:
            submission.problem = f"the archive holds no src/{name}"
            return
        with content.open(found) as entry:
            _take(submission, entry.read(MOST_BYTES + 1), found.filename)


def open_archive(file: IO[bytes]) -> zipfile.ZipFile:
    """The zip archive in `file`, whose list of entries is of bounded size.

    Raises:
        ValueError: it is not.
        zipfile.BadZipFile: it is damaged.
    """
    if _directory_bytes(file) > MOST_DIRECTORY_BYTES:
        raise ValueError(f"its list of files is larger than {MOST_DIRECTORY_BYTES >> 20} MiB")
    return zipfile.ZipFile(file)


def find_in_archive(content: zipfile.ZipFile, name: str, parent: str, submission: Submission) -> zipfile.ZipInfo | None:
    """The outermost entry called `name`, at the top or in a folder called `parent`; any folder when that is empty.

    Entries of another lab's folder are not this lab's. What is odd is flagged in `submission`.
    """
    candidates = []
    for entry in content.infolist():
        path = PurePosixPath(entry.filename.replace("\\", "/"))
        if path.name != name and ".." not in path.parts and not path.is_absolute():
            continue
        kind = stat.S_IFMT(entry.external_attr >> 16)
        if path.is_absolute() or ".." in path.parts or (kind and kind not in (stat.S_IFREG, stat.S_IFDIR)):
            submission.flag(f"the archive names {entry.filename!r}: left aside")
        elif len(path.parts) > 1 and parent and path.parts[-2] != parent:
            continue
        elif not of_another_lab(path.parts, submission.lab):
            candidates.append((len(path.parts), entry))
    if not candidates:
        return None
    if len(candidates) > 1:
        submission.flag(f"the archive holds {name} {len(candidates)} times: the outermost is taken")
    entry = min(candidates, key=lambda each: each[0])[1]
    if entry.compress_type not in UNPACKED:
        raise ValueError(f"{one_line(entry.filename)} is packed in a way that is not read: use plain zip")
    return entry


def of_another_lab(parts: Sequence[str], lab: Lab) -> bool:
    """Whether a path leads through the folder of another lab than `lab`."""
    return any(FOLDER_PATTERN.fullmatch(part) and part != lab.folder.name for part in parts)


def _directory_bytes(file: IO[bytes]) -> int:
    """What the archive's last record says of the size of its list of entries, which zipfile reads at once."""
    file.seek(0, os.SEEK_END)
    file.seek(max(0, file.tell() - (1 << 16) - 256))
    tail = file.read()
    sizes = [0]
    for mark, offset, form in ((END_OF_ARCHIVE, 12, "<L"), (END_OF_LARGE_ARCHIVE, 40, "<Q")):
        at = tail.rfind(mark)
        with contextlib.suppress(struct.error):
            (size,) = struct.unpack_from(form, tail, at + offset) if at >= 0 else (0,)
            sizes.append(0 if form == "<L" and size == 0xFFFFFFFF else size)
    return max(sizes)


def _take(submission: Submission, source: bytes, where: str) -> None:
    """A byte order mark, which some editors on Windows write first, is not part of the text."""
    if len(source) > MOST_BYTES:
        submission.problem = f"{one_line(where)} is larger than {MOST_BYTES >> 20} MiB"
    else:
        submission.source = source.removeprefix(codecs.BOM_UTF8)
