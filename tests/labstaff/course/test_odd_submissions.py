"""Whatever is handed in, each submission gets its own line and points, and the others are graded all the same."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import shutil
import sqlite3
import stat
import struct
import zipfile
from pathlib import Path

import pytest

from labstaff.course.grade import SOME_NOT_GRADED, grade
from labstaff.course.nbgrader_process import Nbgrader
from labstaff.grader.grade import Judge
from labstaff.grader.plain_text import cell, lines, one_line
from labstaff.grader.submission import MOST_BYTES, NOTES_FILE, read_submission
from tests.labstaff.course.own_word import LAB, answer, hand_in, judge_by_its_word

pytestmark = pytest.mark.slow

NAME = LAB.folder.name
FILE = f"{LAB.module}.py"
GIGABYTES = 3_100_000_000


def sparse(path: Path, n_bytes: int = GIGABYTES) -> None:
    """A file that says it is so large, and takes a few kilobytes of disk."""
    with path.open("wb") as file:
        file.truncate(n_bytes)


def deep(folder: Path, n_folders: int = 1000) -> None:
    """So many folders inside each other: longer than any path may be."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(n_folders):
        os.mkdir("deep", dir_fd=here)
        further = os.open("deep", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = further
    os.close(here)


def remove_deep(folder: Path) -> None:
    """What `deep` has made, which is beyond shutil's and pytest's own reach in a single path."""
    while (folder / "deep" / "deep").is_dir():
        (folder / "deep" / "deep").rename(folder / "next")
        (folder / "deep").rmdir()
        (folder / "next").rename(folder / "deep")
    shutil.rmtree(folder / "deep", ignore_errors=True)


def write(name: str, content: str | bytes):
    """A change of a submission's folder: this file in it."""

    def change(folder: Path) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())

    return change


def instead(name: str, make):
    """A change: `make(path)` in the place of a file."""

    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        make(folder / name)

    return change


def large_notebook(path: Path) -> None:
    """60 MB of cells."""
    one = json.dumps({"cell_type": "code", "metadata": {}, "source": "", "outputs": []})
    path.write_text('{"cells": [' + ",".join([one] * (60_000_000 // len(one))) + '], "metadata": {}}')


def as_archive_too(folder: Path) -> None:
    """A second submission of other points, packed."""
    with zipfile.ZipFile(folder.parent / f"{NAME}.zip", "w") as content:
        content.writestr(f"src/{FILE}", answer(19))


def only_as_archive(*entries: tuple[str, str | bytes], cut: int = 0, method: int = zipfile.ZIP_DEFLATED):
    """A change: the folder goes, an archive comes, of which the last `cut` bytes are missing."""

    def change(folder: Path) -> None:
        shutil.rmtree(folder)
        path = folder.parent / f"{NAME}.zip"
        with zipfile.ZipFile(path, "w", method) as content:
            for name, text in entries:
                content.writestr(name, text)
        if cut:
            path.write_bytes(path.read_bytes()[:-cut])

    return change


VENV = [(f".venv/lib/{i}.py", "") for i in range(10_001)]
CHAIN = b"import x\n" + (b"x" + b".a" * 900 + b"\n") * 570
HONEST = {f"honest_{i:02}": i for i in range(12)}
FINE = {
    "last, first": lambda folder: None,
    "bom": write(f"src/{FILE}", b"\xef\xbb\xbf" + answer(9).encode()),
    "crlf": write(f"src/{FILE}", answer(9).replace("\n", "\r\n")),
    "at_the_top": lambda folder: (folder / "src" / FILE).rename(folder / FILE),
    "another_notebook": write("other.ipynb", "{}"),
    "pages": write("solution.html", "<script>alert(1)</script>"),
    "page_in_src": write("src/index.html", "<script>alert(1)</script>"),
    "no_utf8_in_a_name": lambda folder: Path(os.fsdecode(os.fsencode(folder) + b"/\xff\xfe\n.bin")).write_text("x"),
    "garbage_time": write("timestamp.txt", "yesterday, I think"),
    "binary_time": write("timestamp.txt", b"\xff\x00\xfe"),
    "no_time": write("timestamp.txt", ""),
    "year_99999": write("timestamp.txt", "99999-01-01 00:00:00 UTC"),
    "time_of_2020": write("timestamp.txt", "2020-01-01 00:00:00 UTC"),
    "time_to_come": write("timestamp.txt", "2999-01-01 00:00:00 UTC"),
    "time_is_a_folder": instead("timestamp.txt", Path.mkdir),
    "large_time": instead("timestamp.txt", sparse),
    "sparse_beside": instead("data.bin", sparse),
    "sparse_notebook": instead("report.ipynb", sparse),
    "60_mb_notebook": instead("report.ipynb", large_notebook),
    "no_notebook": lambda folder: (folder / "report.ipynb").unlink(),
    "deep_notebook": write("report.ipynb", "[" * 200_000),
    "no_json": write("report.ipynb", b"\x00 {"),
    "half_characters": write("report.ipynb", '{"cells": [{"cell_type": "markdown", "source": "\\ud800"}]}'),
    "notebook_is_a_folder": instead("report.ipynb", Path.mkdir),
    "notebook_is_a_pipe": instead("report.ipynb", os.mkfifo),
    "notebook_is_a_link": instead("report.ipynb", lambda path: path.symlink_to("/etc/passwd")),
    "a_socket": instead("socket", lambda path: os.mknod(path, stat.S_IFSOCK | 0o600)),
    "deep_folders": deep,
    "own_notes": write(NOTES_FILE, "\x1b[2J\nFAILED: honest_01: forged\n" + "x" * 10_000),
    "readme_is_large": instead("README.md", sparse),
}
"""What costs nothing: each is worth 9 points."""

NOT_REVIEWED = {
    "deep_text": write(f"src/{FILE}", "-" * 200_000 + "1"),
    "slow_text": write(f"src/{FILE}", CHAIN),
}
"""What cannot be reviewed: graded, worth nothing here, and to be looked at."""

REFUSED = {
    "sparse_answer": (instead(f"src/{FILE}", sparse), f"there is no src/{FILE}"),
    "no_answer": (lambda folder: (folder / "src" / FILE).unlink(), f"there is no src/{FILE}"),
    "answer_is_a_link": (instead(f"src/{FILE}", lambda path: path.symlink_to("/etc/passwd")), "there is no"),
    "answer_is_a_pipe": (instead(f"src/{FILE}", os.mkfifo), f"there is no src/{FILE}"),
    "answer_is_a_folder": (instead(f"src/{FILE}", Path.mkdir), f"there is no src/{FILE}"),
}
"""What holds nothing to judge: recorded with 0, said in a line."""

UNRECORDED = {
    "ada[1]": lambda folder: None,
    "eve\nFAILED: honest_02: forged": lambda folder: None,
    "\x1b[31mred": lambda folder: None,
    os.fsdecode(b"no_utf8_\xff"): lambda folder: None,
    "=cmd*": lambda folder: None,
    "venv_first": only_as_archive(*VENV, (f"src/{FILE}", answer(9))),
    "corrupt_archive": only_as_archive((f"src/{FILE}", answer(9)), cut=30),
    "short_archive": only_as_archive((f"src/{FILE}", answer(9)), cut=90),
    "no_archive": lambda folder: (shutil.rmtree(folder), Path(f"{folder}.zip").write_text("no zip")),
}
"""What nbgrader can't record: said in a line, and judged where it can be."""

N_BATCH = len(HONEST) + len(FINE) + len(NOT_REVIEWED) + len(REFUSED) + len(UNRECORDED) + 2


@pytest.fixture(scope="module")
def batch(made_course, tmp_path_factory):
    """All of them graded in one run, and a second time: the course, what was said, and the exit statuses."""
    course = tmp_path_factory.mktemp("odd") / "course"
    shutil.copytree(made_course, course)
    for student, points in HONEST.items():
        hand_in(course, student, points)
    changes = {**FINE, **NOT_REVIEWED, **{name: each[0] for name, each in REFUSED.items()}, **UNRECORDED}
    for student, change in changes.items():
        change(hand_in(course, student, 9))
    as_archive_too(hand_in(course, "folder_and_archive", 9))
    os.symlink(course / "submitted" / "honest_11", course / "submitted" / "somebody_else")
    said: list[list[str]] = [[], []]
    with pytest.MonkeyPatch.context() as patch, Nbgrader() as nbgrader:
        patch.setattr(Judge, "judge", judge_by_its_word)
        patch.setattr("labstaff.course.grade.Nbgrader", lambda: contextlib.nullcontext(nbgrader))
        statuses = [
            grade(course / "submitted", [LAB], unsafe=True, table=course / "points.csv", say=each.append)
            for each in said
        ]
        for command in (("generate_feedback", NAME, "--student", "pages"), ("export",)):
            done = nbgrader(course, *command)
            assert done.status == 0, done.output
    yield course, said, statuses
    for folder in course.glob("*/deep_folders"):
        remove_deep(folder / NAME)
    for folder in course.glob("*/deep_folders/*/deep.*"):
        remove_deep(folder)


def scores(course) -> dict[str, float]:
    """The first task's, as the gradebook has them."""
    with contextlib.closing(sqlite3.connect(course / "gradebook.db")) as database:
        return dict(
            database.execute(
                "select a.student_id, auto_score from grade join base_cell on grade.cell_id = base_cell.id "
                "join submitted_notebook n on grade.notebook_id = n.id "
                "join submitted_assignment a on n.assignment_id = a.id where base_cell.name = ?",
                (LAB.tasks[0].name,),
            )
        )


def test_there_are_sixty():
    assert N_BATCH >= 60


def test_everybody_else_is_recorded(batch):
    course, _, statuses = batch
    assert statuses == [SOME_NOT_GRADED, SOME_NOT_GRADED], "some need looking at"
    expected = {
        **HONEST,
        **dict.fromkeys(FINE, 9),
        **dict.fromkeys([*NOT_REVIEWED, *REFUSED], 0),
        "folder_and_archive": 9,
    }
    assert scores(course) == {student: float(points) for student, points in expected.items()}


def test_each_has_a_line(batch):
    _, (said, _), _ = batch
    for student, (_, why) in REFUSED.items():
        assert any(line.startswith(f"not judged: {student}: ") and why in line for line in said), student
    for student in UNRECORDED:
        assert any(line.startswith(f"NOT RECORDED: {one_line(student)}: ") for line in said), student
    for student, text in {
        "folder_and_archive": f"{NAME}.zip is passed over: {NAME} was handed in too",
        "garbage_time": "timestamp.txt: no time can be read from it",
        "time_of_2020": "timestamp.txt says 2020-01-01 00:00 UTC, before the course was made",
        "time_to_come": "which is still to come",
        "pages": "solution.html: not part of the assignment",
        "page_in_src": "src/index.html: not part of the assignment",
        "no_utf8_in_a_name": r"\xff\xfe\x0a.bin",
        "sparse_beside": "data.bin: not part of the assignment",
        "sparse_notebook": "report.ipynb: 3,100,000,000 bytes are too many",
        "deep_folders": "deep",
        "a_socket": "is no regular file",
        **dict.fromkeys(NOT_REVIEWED, "to be reviewed"),
    }.items():
        assert any(line.startswith(f"look at: {student}: ") and text in line for line in said), student


def test_nothing_is_graded_twice(batch):
    _, (_, again), _ = batch
    n_recorded = len(HONEST) + len(FINE) + len(NOT_REVIEWED) + len(REFUSED) + 1
    assert again[-2].startswith(f"gradebook.db: 0 recorded, {n_recorded} passed over")


def test_no_name_steers_a_terminal_a_table_or_a_page(batch):
    course, said, _ = batch
    everything = "".join(line for each in said for line in each)
    assert everything == one_line(everything, 10**9)
    assert not [line for each in said for line in each if line.startswith("FAILED")], "a line was forged"
    for table in ("points.csv", "grades.csv"):
        text = (course / table).read_text(encoding="utf-8")
        assert lines(text) == text.replace("\r\n", "\n")
        assert not [row for row in csv.reader(text.splitlines()) if any(each[:1] in "=+@" for each in row if each)]
    students = {row["student"] for row in csv.DictReader((course / "points.csv").open(newline=""))}
    assert len(students) == N_BATCH - 1, "somebody stands in the table twice, or not at all"


def test_nothing_is_lost_and_nothing_large_is_copied(batch):
    course, _, _ = batch
    aside = course / "set_aside"
    assert (aside / "sparse_beside" / NAME / "data.bin").stat().st_size == GIGABYTES
    assert (aside / "pages" / NAME / "solution.html").is_file()
    assert (aside / "notebook_is_a_link" / NAME / "report.ipynb").is_symlink()
    graded = [path for path in (course / "autograded").rglob("*") if path.is_file()]
    assert {path.name for path in graded} <= {"report.ipynb", FILE, "README.md", "timestamp.txt", NOTES_FILE}
    assert sum(path.stat().st_size for path in graded) < 32 << 20
    assert {path.name for path in (course / "feedback").rglob("*") if path.is_file()} == {"report.html"}


def test_the_grader_is_told_in_formgrader(batch):
    course, _, _ = batch
    for student, text in {"time_of_2020": "before the course was made", "pages": "solution.html"}.items():
        notebook = json.loads((course / "autograded" / student / NAME / "report.ipynb").read_text(encoding="utf-8"))
        assert text in json.dumps(notebook["cells"][0]), student


# one by one, without a course


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
        ("Zoe\u0308 a\u0301\u0302", "Zoe\u0308 a\u0301\u0302"),
        ("z" + "\u0301" * 90 + "a", "z" + "\u0301" * 4 + "…a"),
        ("z" + "\u20dd\u0301" * 45, "z" + "\u20dd\u0301" * 2 + "…"),
        ("0 of 60\u3164\u2800\uffa0", r"0 of 60\u3164\u2800\uffa0"),
    ],
)
def test_a_name_on_one_line(text, shown):
    assert one_line(text) == shown


def test_a_text_of_several_lines_hides_no_other_line():
    assert lines("a\nz" + "\u0301" * 2000 + "\nb\u3164") == "a\nz" + "\u0301" * 4 + "…\nb\\u3164"


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", " =1", "＝1+1", "\u3000＋1", "﹢1", "\ufe6bx"])
def test_a_cell_is_no_formula(text):
    assert cell(text) == f"'{text}"
