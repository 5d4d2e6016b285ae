"""What of a submission is judged: one regular file of bounded size, whatever else the folder or archive holds."""

from __future__ import annotations

import ast
import hashlib
import os
import stat
import zipfile
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from labkit.labs.manifest import Lab
from labstaff.judge import policy

MOST_BYTES = 1 << 20
MOST_ENTRIES = 10_000
MOST_FLAGS = 20
EXPECTED = {".ipynb", ".png", ".svg", ".csv", ".json", ".md", ".txt", ".pdf"}


@dataclass
class Submission:
    """One student's file for one lab, as text, and what a grader should know about the rest.

    `problem` is why there is nothing to judge.
    """

    lab: Lab
    source: bytes = b""
    problem: str = ""
    flags: list[str] = field(default_factory=list)

    @property
    def key(self) -> str:
        """Changes when anything that the judgement depends on changes: the student's file, the suite, its points."""
        digest = hashlib.sha256(self.lab.folder.name.encode())
        for file in (self.lab.suite_file, self.lab.folder / "lab.toml"):
            digest.update(file.read_bytes() if file.exists() else b"-")
        digest.update(hashlib.sha256(self.source).digest() + self.problem.encode())
        return digest.hexdigest()[:32]


def read_submission(lab: Lab, place: Path) -> Submission:
    """The submission for `lab` in a folder or a zip archive. Never raises for what students put there."""
    submission = Submission(lab)
    try:
        if place.is_dir():
            _read_folder(submission, place)
        elif place.is_file() and zipfile.is_zipfile(place):
            _read_archive(submission, place)
        else:
            submission.problem = f"{place.name} is neither a folder nor a zip archive"
    except (OSError, zipfile.BadZipFile, RuntimeError, NotImplementedError, ValueError) as error:
        submission.problem = f"{place.name} cannot be read: {type(error).__name__}: {error}"
    if not submission.problem:
        submission.flags += _oddities(submission)
    if len(submission.flags) > MOST_FLAGS:
        submission.flags[MOST_FLAGS:] = [f"… and {len(submission.flags) - MOST_FLAGS} more"]
    return submission


def _read_folder(submission: Submission, folder: Path) -> None:
    """Take `src/<module>.py`, or `<module>.py`; name what else is there. Links are not followed, anywhere."""
    name = f"{submission.lab.module}.py"
    found, n_entries = None, 0
    for here, folders, files in os.walk(folder):  # does not go into linked folders
        inside = Path(here).relative_to(folder)
        for entry in sorted([*folders, *files]):
            n_entries += 1
            if n_entries > MOST_ENTRIES:
                submission.flags.append(f"more than {MOST_ENTRIES:,} files: the rest was not looked at")
                folders.clear()
                break
            mode = os.lstat(Path(here) / entry).st_mode
            where = (inside / entry).as_posix()
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                submission.flags.append(
                    f"{where} is no regular file (a link, a pipe, a socket or a device): left aside"
                )
            elif stat.S_ISREG(mode) and where in (f"src/{name}", name):
                found = where if found is None or where.startswith("src/") else found
            elif stat.S_ISREG(mode) and not _expected(PurePosixPath(where)):
                submission.flags.append(f"{where}: not part of the assignment, left aside")
    if found is None:
        submission.problem = f"there is no src/{name}, as a regular file"
        return
    # O_NOFOLLOW: what was a file a moment ago must still be one
    descriptor = os.open(folder / found, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        _take(submission, file.read(MOST_BYTES + 1), found)


def _read_archive(submission: Submission, archive: Path) -> None:
    """Take the one entry that is the answer; nothing is ever extracted to a path that the archive names."""
    name = f"{submission.lab.module}.py"
    with zipfile.ZipFile(archive) as content:
        candidates = []
        for entry in content.infolist()[:MOST_ENTRIES]:
            path = PurePosixPath(entry.filename.replace("\\", "/"))
            kind = stat.S_IFMT(entry.external_attr >> 16)
            if path.is_absolute() or ".." in path.parts or (kind and kind not in (stat.S_IFREG, stat.S_IFDIR)):
                submission.flags.append(f"the archive names {entry.filename!r}: left aside")
            elif path.name == name and (len(path.parts) == 1 or path.parts[-2] == "src"):
                candidates.append((len(path.parts), entry))
        if not candidates:
            submission.problem = f"the archive holds no src/{name}"
            return
        if len(candidates) > 1:
            submission.flags.append(f"the archive holds {name} {len(candidates)} times: the outermost is judged")
        _, entry = min(candidates, key=lambda each: each[0])
        with content.open(entry) as file:
            _take(submission, file.read(MOST_BYTES + 1), entry.filename)


def _take(submission: Submission, source: bytes, where: str) -> None:
    if len(source) > MOST_BYTES:
        submission.problem = f"{where} is larger than {MOST_BYTES >> 20} MiB"
    else:
        submission.source = source


def _expected(path: PurePosixPath) -> bool:
    """Whether a file is what students hand in besides their answer: the report, its figures, the assignment's files."""
    if any(part.startswith(".") or part == "__pycache__" for part in path.parts):
        return path.suffix in (".ipynb", ".pyc", ".json", "")
    if path.parts[0] == "tests":
        return path.suffix == ".py" and path.name != "conftest.py"
    return path.suffix in EXPECTED or path.name in ("lab.toml",)


def _oddities(submission: Submission) -> list[str]:
    name = f"{submission.lab.module}.py"
    try:
        tree = ast.parse(submission.source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    found = policy.breaches(tree, frozenset({submission.lab.module})) + policy.oddities(tree)
    return [f"{name} line {line}: {what}" for line, what in found]
