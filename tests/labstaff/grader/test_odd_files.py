"""Odd archives, files and names: each has a reason on one line, and none costs memory."""

from __future__ import annotations

import os
import struct
import zipfile
from pathlib import Path

import pytest

from labstaff.grader.plain_text import cell, lines, one_line
from labstaff.grader.submission import MOST_BYTES, read_submission
from tests.student import LAB

NAME = LAB.folder.name
FILE = f"{LAB.module}.py"
VENV = [(f".venv/lib/{i}.py", "") for i in range(10_001)]


def sparse(path: Path, n_bytes: int = 3_100_000_000) -> None:
    """A file that says it is so large, and takes a few kilobytes of disk."""
    with path.open("wb") as file:
        file.truncate(n_bytes)


def packed(path: Path, entries, method=zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as content:
        for name, text in entries:
            content.writestr(name, text)
    return path


def test_an_archive_may_begin_with_an_environment(tmp_path):
    submission = read_submission(LAB, packed(tmp_path / "a.zip", [*VENV, (f"src/{FILE}", "x = 1")]))
    assert submission.source == b"x = 1" and not submission.problem


def test_an_answer_in_another_labs_folder_is_not_this_labs(tmp_path):
    entries = [(f"labs/lab02_peak_memory/src/{FILE}", "x = 2"), (f"labs/{NAME}/more/src/{FILE}", "x = 1")]
    assert read_submission(LAB, packed(tmp_path / "a.zip", entries)).source == b"x = 1"


@pytest.mark.parametrize("cut", [10, 30, 60, 90, 120, 10_000])
def test_a_damaged_archive_has_a_reason(cut, tmp_path):
    path = packed(tmp_path / "a.zip", [(f"src/{FILE}", os.urandom(200).hex())])
    whole = path.read_bytes()
    for damaged in (whole[:-cut] or b"", whole[:40] + os.urandom(20) + whole[60:]):
        path.write_bytes(damaged)
        submission = read_submission(LAB, path)
        assert submission.problem and not submission.source
        assert submission.problem == one_line(submission.problem)


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_what_could_ask_for_gigabytes_is_not_unpacked(method, tmp_path):
    submission = read_submission(LAB, packed(tmp_path / "a.zip", [(f"src/{FILE}", "x = 1")], method))
    assert "use plain zip" in submission.problem


def test_an_archives_list_is_bounded(tmp_path):
    """A list of files that says it is larger than may be is not read, however small the archive is."""
    path = packed(tmp_path / "a.zip", [(f"src/{FILE}", "x = 1")])
    content = bytearray(path.read_bytes())
    struct.pack_into("<L", content, content.rfind(b"PK\x05\x06") + 12, 1 << 30)
    path.write_bytes(content)
    assert "list of files is larger" in read_submission(LAB, path).problem


def test_a_student_is_told_of_a_size_and_not_of_memory(tmp_path):
    (tmp_path / "src").mkdir()
    sparse(tmp_path / "src" / FILE)
    submission = read_submission(LAB, tmp_path)
    assert "larger than" in submission.problem
    assert len(submission.source) <= MOST_BYTES


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("ada", "ada"),
        ("Zoë Ångström √", "Zoë Ångström √"),
        ("a\nFAILED: b", r"a\x0aFAILED: b"),
        ("\x1b[31m", r"\x1b[31m"),
        ("a\u202eb\u200b", r"a\u202eb\u200b"),
        (os.fsdecode(b"\xff"), r"\xff"),
        ("\ud800", r"\ud800"),
        ("x" * 300, "x" * 199 + "…"),
    ],
)
def test_a_name_on_one_line(text, shown):
    assert one_line(text) == shown


def test_a_text_of_several_lines_keeps_its_lines():
    assert lines("a\r\nb\tc\x1b") == "a\nb\tc\\x1b"


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", " =1", "＝1+1", "\u3000＋1", "﹢1", "\ufe6bx"])
def test_a_cell_is_no_formula(text):
    assert cell(text) == f"'{text}"
