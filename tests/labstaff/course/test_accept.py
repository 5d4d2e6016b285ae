"""Which files of a submission are graded, from a folder or an archive, and what is left of a hostile notebook."""

from __future__ import annotations

import base64
import json
import os
import zipfile
from pathlib import Path

import pytest

from labstaff.course.accept import MAX_CELLS, MAX_OUTPUTS, accept_all
from labstaff.grader.bounded import TooMuch
from tests.labstaff.course.submissions import CODE, NAME, cell_of
from tests.student import LAB

PIXEL = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
SCRIPT = "<script>alert(1)</script>"
RELEASED = (LAB.folder / "report.ipynb").read_bytes()
MANY = json.dumps({"cells": [{"cell_type": "code"}] * (MAX_CELLS + 1)})


@pytest.fixture
def folder(tmp_path) -> Path:
    """One student's folder in a course, with both files."""
    for place in (tmp_path / "release" / NAME, tmp_path / "submitted" / "ann" / NAME):
        (place / "src").mkdir(parents=True)
        (place / "report.ipynb").write_bytes(RELEASED)
        (place / CODE).write_text("x = 1\n")
    return tmp_path / "submitted" / "ann" / NAME


def accepted(folder: Path) -> dict[str, bytes]:
    """The files that are graded, by name."""
    course = folder.parents[2]
    assert accept_all(course, [LAB]) == {}
    place = course / "accepted" / folder.parent.name / NAME
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def test_two_files_are_taken_without_their_byte_order_mark_and_nothing_else(folder):
    for name in (CODE, "report.ipynb"):
        (folder / name).write_bytes(b"\xef\xbb\xbf" + (folder / name).read_bytes())
    (folder / "evil.html").write_text(SCRIPT)
    (folder / "link.ipynb").symlink_to("/etc/passwd")
    os.mkfifo(folder / "pipe")
    files = accepted(folder)
    assert set(files) == {CODE, "report.ipynb"}
    assert files[CODE] == b"x = 1\n"


@pytest.mark.parametrize("nested", [False, True], ids=["LAB.zip", "LAB/any.zip"])
def test_an_archive_of_the_whole_tree(folder, nested):
    archive = folder / "any.zip" if nested else folder.with_suffix(".zip")
    with zipfile.ZipFile(folder.parents[2] / "packed.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("me/labs/lab02_peak_memory/report.ipynb", "other")
        for name in (CODE, "report.ipynb"):
            packed.write(folder / name, f"me/labs/{NAME}/{name}")
            (folder / name).unlink()
    (folder / "src").rmdir()
    if not nested:
        folder.rmdir()
    (folder.parents[2] / "packed.zip").rename(archive)
    assert set(accepted(folder)) == {CODE, "report.ipynb"}


def test_an_archive_next_to_a_folder_is_a_flag(folder):
    folder.with_suffix(".zip").touch()
    assert (
        accepted(folder)["for_the_grader.txt"].decode() == f"{NAME} is graded, and {NAME}.zip next to it is not read\n"
    )


def test_a_tree_that_was_unpacked_into_a_folder_of_its_own_name(folder):
    inner = folder / NAME
    inner.mkdir()
    for name in ("src", "report.ipynb"):
        (folder / name).rename(inner / name)
    assert set(accepted(folder)) == {CODE, "report.ipynb"}


def test_the_time_is_the_instructors_and_one_that_cannot_be_read_is_a_flag(folder):
    time = folder.with_name(f"{NAME}.timestamp.txt")
    time.write_text("2027-03-01 20:15:00 UTC\n")
    assert accepted(folder)["timestamp.txt"] == b"2027-03-01 20:15:00 UTC\n"
    time.write_text("last Tuesday, I think")
    files = accepted(folder)
    assert "timestamp.txt" not in files
    note = f"{time.name} cannot be read, so this counts as in time: "
    assert files["for_the_grader.txt"].decode().startswith(note)


def test_a_time_that_a_student_uploads_is_not_believed(folder):
    (folder / "timestamp.txt").write_text("2027-03-01 20:15:00 UTC\n")
    files = accepted(folder)
    assert "timestamp.txt" not in files
    assert files["for_the_grader.txt"].startswith(b"timestamp.txt is not read, since students can upload one")


def test_what_is_odd_about_the_code_is_a_flag(folder):
    (folder / CODE).write_text("x = 1\n", encoding="utf-16")
    files = accepted(folder)
    assert files[CODE] == b"x = 1\n"
    assert files["for_the_grader.txt"] == f"{LAB.module}.py was UTF-16 and is graded as UTF-8\n".encode()


@pytest.mark.parametrize("lost", [True, False], ids=["without its metadata", "in a cell of the student's own"])
def test_an_answer_that_is_not_in_its_cell_is_a_flag_that_says_where(folder, lost):
    notebook = json.loads(RELEASED)
    place = next(i for i, cell in enumerate(notebook["cells"]) if cell is cell_of(notebook, "bits_or_bytes"))
    answer = {"cell_type": "markdown", "metadata": {}, "source": "Since every query meets every key."}
    notebook["cells"][place : place + lost] = [answer]
    notebook["cells"].append({"cell_type": "code", "metadata": {}, "source": "1 + 1", "outputs": []})
    cell_of(notebook, "figure_scaling")["source"] = "plot()"
    (folder / "report.ipynb").write_text(json.dumps(notebook))
    where = f"{place + 1}, “Since every query meets every key.”"
    (note,) = accepted(folder)["for_the_grader.txt"].decode().splitlines()
    assert note.startswith("no answer in bits_or_bytes, ") and note.endswith(f"; it may be in cell {where}")
    assert "figure_scaling" not in note


def test_long_texts_and_many_outputs_are_cut_and_what_is_printed_first(folder):
    printed = {"output_type": "stream", "name": "stdout", "text": "x" * 1_000_000}
    outputs = [printed, *[{**printed, "text": "z"}] * 10_000]
    cells = [{"cell_type": "code", "source": " \n" * 500_000, "outputs": outputs}]
    cells += [{"cell_type": "markdown", "source": "y" * 20_000}] * 900
    (folder / "report.ipynb").write_text(json.dumps({"cells": cells}))
    content = accepted(folder)["report.ipynb"]
    code, *others = json.loads(content)["cells"]
    assert len(content) < 1_000_000
    assert code["source"].endswith("… (cut)") and len(code["outputs"]) == MAX_OUTPUTS
    assert others[0]["source"] == "y" * 20_000 and others[-1]["source"] == "\n… (cut)"


def test_a_report_that_takes_too_long_is_replaced_and_the_code_counts(folder, monkeypatch):
    def refuse(function, *_):
        raise TooMuch("it takes more than 10 s")

    monkeypatch.setattr("labstaff.course.accept.bounded", refuse)
    files = accepted(folder)
    assert files["report.ipynb"] == RELEASED and files[CODE] == b"x = 1\n"
    assert files["for_the_grader.txt"].startswith(b"report.ipynb cannot be read: it takes more than 10 s; ")


def test_a_submission_that_is_gone_or_lost_a_file_is_graded_as_it_is_now(folder):
    accepted(folder)
    (folder / CODE).unlink()
    files = accepted(folder)
    assert set(files) == {"report.ipynb", "for_the_grader.txt"}
    assert files["for_the_grader.txt"].startswith(b"cannot be read: there is no src/")
    folder.rename(folder.parents[2] / "elsewhere")
    accept_all(folder.parents[2], [LAB])
    assert not list((folder.parents[2] / "accepted").glob("*/*"))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "there is no report.ipynb, as a regular file"),
        (b"\x00 {", "JSON is malformed"),
        (b'{"cells": [{"cell_type": "code", "metadata": {"a": ' + b"[" * 200_000, "recursion"),
        (b'{"cells": [{"cell_type": "code", "source": {"a": 1}}]}', "$.cells[0].source"),
        (b'{"cells": []}'.ljust((24 << 20) + 1), "larger than 24 MiB"),
        (MANY.encode(), "it has 1,001 cells"),
    ],
    ids=["missing", "no JSON", "deep", "no text", "large", "many cells"],
)
def test_a_report_that_cannot_be_read_is_replaced_and_the_grader_reads_why(folder, content, why):
    (folder / "report.ipynb").unlink()
    if content is not None:
        (folder / "report.ipynb").write_bytes(content)
    files = accepted(folder)
    assert json.loads(files["report.ipynb"]) == json.loads(RELEASED)
    (note,) = files["for_the_grader.txt"].decode().splitlines()
    assert note.startswith("report.ipynb cannot be read: ") and why in note


@pytest.mark.parametrize("student", ["ada[1]", "eve\nFAILED: bob", os.fsdecode(b"\xff")])
def test_a_name_that_nbgrader_cannot_use_stops_nobody_else(folder, student):
    (folder.parents[1] / student / NAME).mkdir(parents=True)
    assert list(accept_all(folder.parents[2], [LAB])) == [(student, NAME)]
    assert (folder.parents[2] / "accepted" / "ann" / NAME / CODE).is_file()


def test_what_could_act_in_a_page_is_left_out(folder):
    outputs = [
        {"output_type": "display_data", "data": {"text/html": SCRIPT, "image/svg+xml": SCRIPT, "image/png": PIXEL}},
        {"output_type": "display_data", "data": {"image/png": f'"{SCRIPT}'}, "metadata": {"width": SCRIPT}},
        {"output_type": "display_data", "data": {"application/javascript": "alert(1)"}},
        {"output_type": "stream", "name": "stdout", "text": "x" * 1_000_000},
        {"output_type": "error", "ename": "E", "evalue": "v", "traceback": ["t"]},
    ]
    cells = [
        {"cell_type": "code", "source": ["a\n", "b"], "outputs": outputs, "metadata": {"name": SCRIPT}},
        {"cell_type": "raw", "source": "text", "attachments": {"a.png": {"image/png": PIXEL, "text/html": SCRIPT}}},
    ]
    (folder / "report.ipynb").write_text(json.dumps({"cells": cells, "metadata": {"widgets": SCRIPT}}))
    text = accepted(folder)["report.ipynb"].decode()
    assert SCRIPT not in text and "alert" not in text
    code, markdown = json.loads(text)["cells"]
    assert code["source"] == "a\nb" and code["metadata"] == {}
    picture, stream, error = code["outputs"]
    assert picture["data"] == {"image/png": PIXEL}
    assert len(stream["text"]) < 21_000
    assert error["text"] == "E: v"
    assert markdown["cell_type"] == "markdown"
    assert markdown["attachments"] == {"a.png": {"image/png": PIXEL}}


def test_what_a_cell_is_worth_comes_from_the_release(folder):
    notebook = json.loads(RELEASED)
    wanted = [(cell["cell_type"], cell["metadata"]) for cell in notebook["cells"]]
    for cell in notebook["cells"]:
        if grading := cell["metadata"].get("nbgrader"):
            cell["metadata"] = {"nbgrader": {**grading, "points": 1000, "score": 1000, "grade": True}}
            cell["cell_type"] = "raw"
    made_up = {"grade": True, "grade_id": "bonus", "points": 100, "solution": False}
    notebook["cells"].append({"cell_type": "code", "source": "100", "metadata": {"nbgrader": made_up}})
    (folder / "report.ipynb").write_text(json.dumps(notebook))
    *cells, bonus = json.loads(accepted(folder)["report.ipynb"])["cells"]
    assert [(cell["cell_type"], cell["metadata"]) for cell in cells] == wanted
    assert bonus["metadata"] == {}
