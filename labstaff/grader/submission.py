"""Reads a submission: one regular file of bounded size, whatever else the folder or archive holds."""

from __future__ import annotations

import codecs
import hashlib
import io
import itertools
import os
import re
import stat
import zipfile
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from labkit.labs.catalog import solution_file
from labkit.labs.manifest import FOLDER_PATTERN, Lab
from labkit.suite.finder import MAX_BYTES
from labkit.suite.source_text import decode_source
from labstaff.grader.bounded import TooMuch, bounded
from labstaff.grader.plain_text import one_line

MAX_ARCHIVE_BYTES = 32 << 20
LONGEST_NOTES = 10_000
NOTES_FILE = "for_the_grader.txt"
"""Where the course notes what could not be read of a submission, a line each; the code first, if that was it."""

MAX_NAMED, MAX_LISTED = 4, 1000
"""Files that are named where the right one is missing, or there are several; and those that are looked at for it."""

CODING_LINE = re.compile(r"\A((?:.*\n)??[ \t\f]*#.*?coding[:=][ \t]*)[-\w.]+", re.ASCII)

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
    """The submission for `lab` in a folder or a zip archive, within bounds. Never raises for what students put there.

    In a folder that the course has accepted, with what was noted there.
    """
    submission = read_code(lab, place)
    notes = (read_regular(place / NOTES_FILE, LONGEST_NOTES) or b"").decode("utf-8", "replace").splitlines()
    if submission.problem and notes:
        submission.problem = one_line(notes.pop(0))
    submission.flags = list(dict.fromkeys([*map(one_line, notes), *submission.flags]))
    return submission


def read_code(lab: Lab, place: Path) -> Submission:
    """As `read_submission`, without notes."""
    try:
        return bounded(_read_code, lab, place)
    except TooMuch as error:
        return Submission(lab, problem=f"cannot be read: {error}")


def _read_code(lab: Lab, place: Path) -> Submission:
    submission = Submission(lab)
    name = f"{lab.module}.py"
    try:
        content = read_part(lab, place, name, "src", MAX_BYTES, submission.flags)
    except Exception as error:  # a made-up archive can have zipfile raise nearly anything
        submission.problem = f"cannot be read: {reason_of(error)}"
        return submission
    submission.source, encoding = as_utf8(content)
    if encoding:
        submission.flags.append(f"{name} was {encoding} and is graded as UTF-8")
    if _code_lines(submission.source) == _code_lines(solution_file(lab).read_bytes()):
        submission.flags.append(f"{name} is the model solution, comments and blank lines aside")
    return submission


def as_utf8(source: bytes) -> tuple[bytes, str]:
    """A file's text in UTF-8, and how it was encoded; "" where it was UTF-8, or cannot be read.

    As Python reads it, by its byte-order mark or its coding line, which then says UTF-8; and UTF-16 with a byte-order
    mark, as PowerShell's `>` writes it.
    """
    try:
        text, encoding = decode_source(source)
    except (SyntaxError, ValueError):  # the tests report it
        return source, ""
    if encoding in ("utf-8", "utf-8-sig"):
        return source.removeprefix(codecs.BOM_UTF8), ""
    return CODING_LINE.sub(r"\1utf-8", text, count=1).encode("utf-8", "surrogatepass"), encoding.upper()


def _code_lines(source: bytes) -> list[bytes]:
    lines = (line.strip() for line in source.splitlines())
    return [line for line in lines if line and not line.startswith(b"#")]


def reason_of(error: Exception) -> str:
    """The error's message on one line, or its class where it has none."""
    return one_line(str(error) or type(error).__name__)


def read_part(lab: Lab, place: Path, name: str, parent: str, most_bytes: int, flags: list[str]) -> bytes:
    """The file `name` of a submission, a folder or a zip archive; in its folder `parent`, or at the top.

    Links are not followed, and nothing is extracted to a path that an archive names.

    Args:
        lab: the lab; the folder of another lab in an archive is left out.
        place: the folder or archive.
        name: the file's name.
        parent: the folder's name; in an archive it may be in other folders, and "" is any folder.
        most_bytes: how many bytes the file may have.
        flags: one is added where several different files could be meant.

    Raises:
        ValueError: there is no such file, or it is too large; the message names what was found.
        Exception: the archive is damaged.
    """
    find = _in_folder if place.is_dir() else _in_archive
    found, others = find(lab, place, name, parent, most_bytes)
    if not found:
        listed = ", ".join(sorted(others, key=lambda other: not other.endswith(name[-3:]))[:MAX_NAMED])
        more = f" and {len(others) - MAX_NAMED} more" if len(others) > MAX_NAMED else ""
        wanted = PurePosixPath(parent, name)
        raise ValueError(f"there is no {wanted}, as a regular file; found: {listed or 'nothing'}{more}")
    (first, content), *rest = found.items()
    if len(content) > most_bytes:
        raise ValueError(f"larger than {most_bytes >> 20} MiB")
    if others := [other for other, its_content in rest if its_content != content]:
        flags.append(f"there are several {name}, and {first} is graded, not {', '.join(others[:MAX_NAMED])}")
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


Found = tuple[dict[str, bytes], list[str]]
"""At most `most_bytes` + 1 bytes of each file that can be meant, by path, the first choice first; and other files."""


def _in_folder(lab: Lab, place: Path, name: str, parent: str, most_bytes: int) -> Found:
    own = place / lab.folder.name  # unpacked into a folder of its own name
    found: dict[str, bytes] = {}
    for root in (own, place):
        for path in dict.fromkeys([root / parent / name, root / name]):
            if not any(folder.is_symlink() for folder in {root, path.parent} - {place}):
                content = read_regular(path, most_bytes)
                if content is not None:
                    found[str(path.relative_to(place))] = content
    others = []
    if not found:
        files = itertools.islice((path for path in place.rglob("*") if not path.is_dir()), MAX_LISTED)
        others = sorted(str(path.relative_to(place)) for path in files)
    return found, others


def _in_archive(lab: Lab, place: Path, name: str, parent: str, most_bytes: int) -> Found:
    archive = read_regular(place, MAX_ARCHIVE_BYTES)
    if archive is None:
        raise ValueError(f"{place.name} is neither a folder nor a zip archive")
    if len(archive) > MAX_ARCHIVE_BYTES:
        raise ValueError(f"larger than {MAX_ARCHIVE_BYTES >> 20} MiB")
    with zipfile.ZipFile(io.BytesIO(archive)) as content:
        meant, others = [], []
        for entry in content.infolist():
            *folders, last = PurePosixPath(entry.filename.replace("\\", "/")).parts or [""]
            is_here = last == name and (not folders or not parent or folders[-1] == parent)
            if is_here and not any(FOLDER_PATTERN.fullmatch(each) and each != lab.folder.name for each in folders):
                meant.append((len(folders), entry))
            elif not entry.filename.endswith("/"):
                others.append(entry.filename)
        entries = [entry for _, entry in sorted(meant, key=lambda each: each[0])]
        found: dict[str, bytes] = {}
        for entry in entries[:1]:
            if entry.compress_type not in UNPACKED:
                raise ValueError("packed in a way that is not read: use plain zip")
            with content.open(entry) as packed:
                found[entry.filename] = packed.read(most_bytes + 1)
        for entry in entries[1:]:  # these need not be read: by its length and sum each is the same or not
            is_same = (entry.CRC, entry.file_size) == (entries[0].CRC, entries[0].file_size)
            found.setdefault(entry.filename, found[entries[0].filename] if is_same else b"")
    return found, others
