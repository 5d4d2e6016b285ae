"""Archives as a learning platform gives them: what is collected of them, and what is told of the rest."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import pytest

from labstaff.course.nbgrader_process import Nbgrader
from tests.student import LAB

pytestmark = pytest.mark.slow

NAME = LAB.folder.name


@pytest.fixture(scope="module")
def nbgrader():
    """nbgrader's commands, in one process for all tests."""
    with Nbgrader() as started:
        yield started


def pack(archive: Path, files: dict[str, str | bytes]) -> None:
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as content:
        for name, text in files.items():
            content.writestr(name, text)


def test_archives_are_collected(made_course, nbgrader, tmp_path):
    """However they are packed; what lacks something is in a list at the end; a second run changes nothing."""
    course = tmp_path / "course"
    shutil.copytree(made_course, course)
    archive = course / "downloaded" / NAME / "archive"
    archive.mkdir(parents=True)
    report = (course / "release" / NAME / "report.ipynb").read_bytes()
    answer, notebook = f"src/{LAB.module}.py", "report.ipynb"
    both = {notebook: report, answer: "x = 1"}
    pack(archive / "plain.zip", both)
    tree = {f"me/labs/{NAME}/{name}": text for name, text in both.items()}
    other = {f"me/labs/lab02_peak_memory/{name}": "other" for name in (notebook, answer)}
    venv = {f"me/.venv/{i}.py": "" for i in range(10_001)}
    more = {"me/conftest.py": "raise SystemExit", f"me/labs/{NAME}/timestamp.txt": "2020-01-01 00:00:00 UTC"}
    pack(archive / "tree.zip", {**venv, **other, **tree, **more})
    pack(archive / "no_report.zip", {answer: "x = 2"})
    pack(archive / "no_answer.zip", {notebook: report})
    pack(archive / "nothing.zip", {"other.py": "x"})
    pack(archive / "large.zip", {**both, answer: "0" * (2 << 20)})
    pack(archive / "upwards.zip", {"../../submitted/plain/x/src/profiling.py": "x", answer: "x = 3"})
    pack(archive / "ada[1].zip", both)
    (archive / "broken.zip").write_bytes((archive / "plain.zip").read_bytes()[:60])
    (archive / "notes.txt").write_text("x")
    (course / "submitted" / "absent" / "lab02_peak_memory").mkdir(parents=True)
    done = nbgrader(course, "zip_collect", NAME)
    assert done.status == 0, done.output
    listed = done.output.strip().splitlines()[-12:]
    assert listed[0] == "collected: 6 new or changed, 0 unchanged"
    assert [line.partition(": ")[::2] for line in listed[1:]] == [
        ("look at", "large.zip: profiling.py is larger than 1 MiB, and left out"),
        ("look at", f"large.zip: it holds no {answer}"),
        ("look at", f"no_answer.zip: it holds no {answer}"),
        ("look at", f"no_report.zip: it holds no {notebook}"),
        ("look at", "upwards.zip: the archive names '../../submitted/plain/x/src/profiling.py': left aside"),
        ("look at", f"upwards.zip: it holds no {notebook}"),
        ("nothing collected", "ada[1].zip: nbgrader takes no such name: rename the folder, in plain characters and "
         "without any of * ? [ ]"),
        ("nothing collected", "broken.zip: not a zip archive"),
        ("nothing collected", "notes.txt: not a zip archive"),
        ("nothing collected", f"nothing.zip: it holds neither {notebook} nor {answer}"),
        ("nothing collected", "absent: there is no archive"),
    ]  # fmt: skip
    submitted = course / "submitted"
    assert (submitted / "tree" / NAME / answer).read_text() == "x = 1"
    files = {str(path.relative_to(submitted)) for path in submitted.rglob("*") if path.is_file()}
    assert files == {f"{who}/{NAME}/{name}" for who in ("plain", "tree") for name in (notebook, answer)} | {
        *(f"{who}/{NAME}/{answer}" for who in ("no_report", "upwards")),
        *(f"{who}/{NAME}/{notebook}" for who in ("no_answer", "large")),
    }
    (submitted / "plain" / NAME / "timestamp.txt").write_text("2027-03-01 20:15:00 UTC")
    pack(archive / "no_report.zip", {answer: "x = 22"})
    again = nbgrader(course, "zip_collect", NAME)
    assert again.status == 0, again.output
    assert "collected: 1 new or changed, 5 unchanged" in again.output
    assert "nothing collected: absent: there is no archive" in again.output
    assert (submitted / "no_report" / NAME / answer).read_text() == "x = 22"
    assert (submitted / "plain" / NAME / "timestamp.txt").is_file(), "what an instructor wrote is gone"


def test_two_archives_of_one_student_are_not_guessed_at(made_course, nbgrader, tmp_path):
    course = tmp_path / "course"
    shutil.copytree(made_course, course)
    config = course / "nbgrader_config.py"
    config.write_text(config.read_text().replace(r"(?P<student_id>.+)", r"(?P<student_id>[a-z]+)(_\d)?"))
    archive = course / "downloaded" / NAME / "archive"
    archive.mkdir(parents=True)
    for name in ("ann_1", "ann_2", "bob"):
        pack(archive / f"{name}.zip", {f"src/{LAB.module}.py": name})
    done = nbgrader(course, "zip_collect", NAME)
    assert done.status == 0, done.output
    assert "nothing collected: ann_1.zip: ann_2.zip is ann's too" in done.output
    assert [path.name for path in (course / "submitted").iterdir()] == ["bob"]
