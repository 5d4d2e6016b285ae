"""What of a submission is read, and the reason on one line where nothing can be."""

from __future__ import annotations

import os
import struct
import zipfile
from pathlib import Path

import pytest

from labkit.labs.catalog import solution_file
from labstaff.grader.plain_text import one_line
from labstaff.grader.submission import Submission, read_submission
from labstaff.grading.submitted import find_submissions
from tests.student import LAB

NAME = LAB.folder.name
FILE = f"{LAB.module}.py"
NO_FILE = f"cannot be read: there is no src/{FILE}, as a regular file"
VENV = [(f".venv/lib/{i}.py", "") for i in range(10_001)]


@pytest.mark.parametrize("where", [f"src/{FILE}", FILE])
def test_one_file_of_a_folder_is_read(where, tmp_path):
    for name in (where, "src/conftest.py", "src/numpy.py", "pytest.ini"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x = 1" if name == where else "raise SystemExit(0)")
    assert read_submission(LAB, tmp_path).source == b"x = 1"


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ([], "nothing"),
        ([f"src/{LAB.module} (1).py", "report.ipynb"], f"src/{LAB.module} (1).py, report.ipynb"),
        ([*map("{}.py".format, range(9)), "a.txt"], "0.py, 1.py, 2.py, 3.py and 6 more"),
        ([f"mine/deep/{FILE}"], f"mine/deep/{FILE}"),
    ],
    ids=["empty", "download", "many", "elsewhere"],
)
def test_a_refusal_lists_what_was_found(names, found, tmp_path):
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert read_submission(LAB, tmp_path).problem == f"{NO_FILE}; found: {found}"


OTHERS = ["new/src/{}", "old/src/{}"]


@pytest.mark.parametrize("in_archive", [False, True])
@pytest.mark.parametrize("same", [False, True])
def test_several_files_that_differ_are_a_flag_that_names_them(in_archive, same, tmp_path):
    names = [name.format(FILE) for name in (OTHERS if in_archive else ["src/{}", "{}"])]
    texts = ["x = 1", "x = 1" if same else "x = 2"]
    if in_archive:
        place = packed(tmp_path / "a.zip", zip(names, texts, strict=True))
    else:
        place = tmp_path
        (place / "src").mkdir()
        for name, text in zip(names, texts, strict=True):
            (place / name).write_text(text)
    submission = read_submission(LAB, place)
    flag = f"there are several {FILE}, and {names[0]} is graded, not {names[1]}"
    assert (submission.source, submission.flags) == (b"x = 1", [] if same else [flag])


TEXT = "# ü\nx = 'ü'\n"


@pytest.mark.parametrize(
    ("written", "read", "encoding"),
    [
        (TEXT.encode(), TEXT, ""),
        (TEXT.encode("utf-8-sig"), TEXT, ""),
        (TEXT.encode("utf-16"), TEXT, "UTF-16"),
        (b"\xfe\xff" + TEXT.encode("utf-16-be"), TEXT, "UTF-16"),
        (f"# coding: latin-1\n{TEXT}".encode("latin-1"), f"# coding: utf-8\n{TEXT}", "ISO-8859-1"),
        (f"\n#-*- coding=cp1252 -*-\n{TEXT}".encode("cp1252"), f"\n#-*- coding=utf-8 -*-\n{TEXT}", "CP1252"),
        (f"# coding: latin-1\n{TEXT}".encode("utf-16"), f"# coding: utf-8\n{TEXT}", "UTF-16"),
    ],
    ids=["plain", "mark", "utf-16", "utf-16-be", "latin-1", "second line", "both"],
)
def test_text_is_read_as_python_reads_it_and_utf_16(written, read, encoding, tmp_path):
    (tmp_path / FILE).write_bytes(written)
    submission = read_submission(LAB, tmp_path)
    assert submission.source.decode() == read
    assert submission.flags == ([f"{FILE} was {encoding} and is graded as UTF-8"] if encoding else [])
    (tmp_path / FILE).write_bytes(submission.source)
    assert read_submission(LAB, tmp_path).source == submission.source, "as the course reads it again"


@pytest.mark.parametrize("written", [b"x = '\xfc'", b"# coding: no-such\nx = 1", b"# coding: zlib\nx = 1"])
def test_what_python_cannot_read_is_left_as_it_is(written, tmp_path):
    (tmp_path / FILE).write_bytes(written)
    assert read_submission(LAB, tmp_path) == Submission(LAB, written)


def test_the_model_solution_is_a_flag(tmp_path):
    text = solution_file(LAB).read_text(encoding="utf-8")
    (tmp_path / FILE).write_text(text.replace("### BEGIN SOLUTION", "# mine") + "\n\n")
    (flag,) = read_submission(LAB, tmp_path).flags
    assert flag == f"{FILE} is the model solution, comments and blank lines aside"
    (tmp_path / FILE).write_text(text + "x = 1\n")
    assert read_submission(LAB, tmp_path).flags == []


def test_a_place_that_cannot_be_looked_at_has_its_reason_and_stops_nobody(tmp_path, monkeypatch):
    for student in ("ann", "bob"):
        (tmp_path / student / NAME).mkdir(parents=True)
    (tmp_path / "bob" / NAME / FILE).write_text("x = 1")
    looked = os.stat

    def refuse(path, *args, **kwargs):
        if "ann/" in str(path):
            raise PermissionError(13, "Permission denied")
        return looked(path, *args, **kwargs)

    monkeypatch.setattr(os, "stat", refuse)
    ann, bob = find_submissions(tmp_path, [LAB])
    assert (ann.student, ann.path.name, bob.path.name) == ("ann", NAME, NAME)


def test_a_link_that_leads_to_itself_has_a_reason(tmp_path):
    (tmp_path / "src").symlink_to("src")
    (tmp_path / FILE).symlink_to(FILE)
    assert read_submission(LAB, tmp_path).problem.startswith(NO_FILE)


def test_a_linked_folder_is_not_followed(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / FILE).write_text("x = 1")
    (tmp_path / "src").symlink_to(tmp_path / "real")
    submission = read_submission(LAB, tmp_path)
    assert not submission.source
    assert submission.problem.startswith(f"cannot be read: there is no src/{FILE}, as a regular file; found: ")


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
        ([(f"labkit/{FILE}", "x = 1")], b"", f"{NO_FILE}; found: labkit/{FILE}"),
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


MEMBER = b"PK\x01\x02" + bytes(42)
"""The shortest entry of an archive's directory."""


def test_an_archive_of_nothing_but_names_has_a_reason(tmp_path):
    n = 50_000
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, n * len(MEMBER), 0, 0)
    (tmp_path / "a.zip").write_bytes(MEMBER * n + end)
    assert read_submission(LAB, tmp_path / "a.zip").problem.startswith(NO_FILE)


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
