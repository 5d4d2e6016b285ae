"""What of a submission is read, and the reason on one line where nothing can be."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

from labstaff.grader.plain_text import one_line
from labstaff.grader.submission import read_submission
from labstaff.grading.submitted import find_submissions
from tests.student import LAB

NAME = LAB.folder.name
FILE = f"{LAB.module}.py"
VENV = [(f".venv/lib/{i}.py", "") for i in range(10_001)]


@pytest.mark.parametrize("where", [f"src/{FILE}", FILE])
def test_one_file_of_a_folder_is_read(where, tmp_path):
    for name in (where, "src/conftest.py", "src/numpy.py", "pytest.ini"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x = 1" if name == where else "raise SystemExit(0)")
    assert read_submission(LAB, tmp_path).source == b"x = 1"


def test_a_linked_folder_is_not_followed(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / FILE).write_text("x = 1")
    (tmp_path / "src").symlink_to(tmp_path / "real")
    submission = read_submission(LAB, tmp_path)
    assert not submission.source
    assert submission.problem == f"cannot be read: there is no src/{FILE}, as a regular file"


def test_links_to_other_students_are_passed_over(tmp_path):
    (tmp_path / "ann" / NAME).mkdir(parents=True)
    (tmp_path / "bob").symlink_to(tmp_path / "ann")
    (tmp_path / "cec").mkdir()
    (tmp_path / "cec" / NAME).symlink_to(tmp_path / "ann" / NAME)
    assert [each.student for each in find_submissions(tmp_path, [LAB])] == ["ann"]


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ([], f"{NAME}.zip"),
        (["timestamp.txt", "notes.txt", ".DS_Store"], f"{NAME}.zip"),
        (["timestamp.txt", f"src/{FILE}"], NAME),
        (["timestamp.txt", FILE], NAME),
        (["timestamp.txt", "any.zip"], NAME),
    ],
)
def test_a_folder_hides_the_archive_next_to_it_where_it_holds_a_submission(names, found, tmp_path):
    folder = tmp_path / "ann" / NAME
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    packed(folder.with_suffix(".zip"), [(f"src/{FILE}", "x = 1")])
    assert [each.path.name for each in find_submissions(tmp_path, [LAB])] == [found]


def packed(path: Path, entries, method=zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as content:
        for name, text in entries:
            content.writestr(name, text)
    return path


@pytest.mark.parametrize(
    ("entries", "source", "problem"),
    [
        ([(f"src/{FILE}", "x = 1")], b"x = 1", ""),
        ([(FILE, "x = 1")], b"x = 1", ""),
        ([(f"me\\src\\{FILE}", "x = 1")], b"x = 1", ""),
        ([(f"../../src/{FILE}", "x = 1")], b"x = 1", ""),
        ([*VENV, (f"src/{FILE}", "x = 1")], b"x = 1", ""),
        ([(f"a/src/{FILE}", "x = 2"), (f"src/{FILE}", "x = 1")], b"x = 1", ""),
        ([(f"labs/lab02_peak_memory/src/{FILE}", "x = 2"), (f"labs/{NAME}/more/src/{FILE}", "x = 1")], b"x = 1", ""),
        ([(f"labkit/{FILE}", "x = 1")], b"", f"cannot be read: there is no src/{FILE}, as a regular file"),
        ([(f"src/{FILE}", "0" * (64 << 20))], b"", "cannot be read: larger than 1 MiB"),
    ],
    ids=["plain", "at the top", "backslashes", "upwards", "many", "twice", "another lab's", "without", "bomb"],
)
def test_one_file_of_an_archive_is_read_and_nothing_extracted(entries, source, problem, tmp_path):
    submission = read_submission(LAB, packed(tmp_path / "me.zip", entries))
    assert (submission.source, submission.problem) == (source, problem)
    assert list(tmp_path.iterdir()) == [tmp_path / "me.zip"]


@pytest.mark.parametrize("cut", [10, 30, 60, 90, 120, 10_000])
def test_a_damaged_archive_has_a_reason(cut, tmp_path):
    path = packed(tmp_path / "a.zip", [(f"src/{FILE}", os.urandom(200).hex())])
    whole = path.read_bytes()
    for damaged in (whole[:-cut] or b"", whole[:40] + os.urandom(20) + whole[60:]):
        path.write_bytes(damaged)
        submission = read_submission(LAB, path)
        assert submission.problem.startswith("cannot be read: ") and not submission.source
        assert submission.problem == one_line(submission.problem)


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_what_could_ask_for_gigabytes_is_not_unpacked(method, tmp_path):
    submission = read_submission(LAB, packed(tmp_path / "a.zip", [(f"src/{FILE}", "x = 1")], method))
    assert "use plain zip" in submission.problem


@pytest.mark.parametrize(("name", "place", "most_mib"), [(f"src/{FILE}", "", 1), ("me.zip", "me.zip", 32)])
def test_a_file_of_gigabytes_costs_no_memory(name, place, most_mib, tmp_path):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as file:
        file.truncate(3_100_000_000)
    submission = read_submission(LAB, tmp_path / place)
    assert submission.problem == f"cannot be read: larger than {most_mib} MiB"
