"""A course from release to feedback, with nbgrader's own commands: honest submissions and hostile ones."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from labstaff.course.grade import SOME_REFUSED, grade
from labstaff.course.make import CourseError, make_course
from labstaff.course.paths import nbgrader
from labstaff.release.leaks import find_leaks
from tests.labstaff.course.submissions import ANSWERS, CHECKS, EARNED, EVIL, HONEST, HOSTILE, PIXEL
from tests.student import LAB, stub_text

pytestmark = pytest.mark.slow

NAME = LAB.folder.name


@dataclass
class Cycle:
    """A course after its first round of grading."""

    course: Path
    printed: list[str]

    def scores(self, student: str) -> dict[str, tuple]:
        """Every grade of the student: (auto_score, manual_score, max_score, needs_manual_grade)."""
        with contextlib.closing(sqlite3.connect(self.course / "gradebook.db")) as database:
            rows = database.execute(
                "select base_cell.name, auto_score, manual_score, grade_cells.max_score, needs_manual_grade from grade "
                "join base_cell on grade.cell_id = base_cell.id join grade_cells on grade_cells.id = base_cell.id "
                "join submitted_notebook on grade.notebook_id = submitted_notebook.id "
                "join submitted_assignment on submitted_notebook.assignment_id = submitted_assignment.id "
                "where submitted_assignment.student_id = ?",
                (student,),
            ).fetchall()
        return {name: tuple(values) for name, *values in rows}

    def autograded(self, student: str) -> dict:
        """The notebook that formgrader shows."""
        return json.loads((self.course / "autograded" / student / NAME / "report.ipynb").read_text(encoding="utf-8"))

    def feedback(self, student: str) -> str:
        """The page that the student gets."""
        return (self.course / "feedback" / student / NAME / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def cycle(made_course, tmp_path_factory):
    """Made, released, handed in, graded and handed back, once for all tests."""
    course = tmp_path_factory.mktemp("nbgrader") / "course"
    shutil.copytree(made_course, course)
    with (course / "nbgrader_config.py").open("a", encoding="utf-8") as config:
        config.write("c.LatePenalty.percent_per_day = 10\n")
    for student, (source, change) in HONEST.items():
        hand_in(course, student, source, change)
    for student, change in HOSTILE.items():
        hand_in(course, student, stub_text(), change)
    (course / "submitted" / "no_code" / NAME / "src" / f"{LAB.module}.py").unlink()
    (course / "submitted" / "half" / NAME / "timestamp.txt").write_text("2026-01-02 13:00:00 UTC")
    assert not nbgrader(course, "db", "assignment", "add", NAME, "--duedate", "2026-01-01 12:00:00 UTC").status
    printed: list[str] = []
    assert grade(course / "submitted", [LAB], say=printed.append) == SOME_REFUSED, "\n".join(printed)
    done = nbgrader(course, "generate_feedback", NAME)
    assert done.status == 0, done.output
    return Cycle(course, printed)


def hand_in(course: Path, student: str, source: str, change) -> None:
    """Hand in a change of the released notebook, or another text in its place."""
    folder = course / "submitted" / student / NAME
    shutil.copytree(course / "release" / NAME, folder)
    (folder / "src" / f"{LAB.module}.py").write_text(source, encoding="utf-8")
    notebook = folder / "report.ipynb"
    if callable(change):
        notebook.write_text(json.dumps(change(json.loads(notebook.read_text(encoding="utf-8")))), encoding="utf-8")
    elif change is not None:
        notebook.write_text(change, encoding="utf-8")


def test_what_is_released(cycle):
    released = cycle.course / "release" / NAME
    files = [path for path in released.rglob("*") if path.is_file()]
    assert {str(path.relative_to(released)) for path in files} == {"README.md", "report.ipynb", f"src/{LAB.module}.py"}
    assert find_leaks([LAB], files) == []
    assert find_leaks([LAB], [cycle.course / "source" / NAME / "report.ipynb"]), "the source has the model answers"


@pytest.mark.parametrize(("student", "points"), EARNED.items())
def test_totals(cycle, student, points):
    scores = cycle.scores(student)
    assert {name: values[2] for name, values in scores.items()} == {**CHECKS, **ANSWERS}
    assert sum(scores[task][0] for task in CHECKS) == pytest.approx(points, abs=0.01)
    late = 0.2 * points if student == "half" else 0.0  # two days begun
    most = float(sum(CHECKS.values()) + sum(ANSWERS.values()))
    assert f"(Score: {points - late} / {most})" in cycle.feedback(student)


@pytest.mark.parametrize("student", HOSTILE)
def test_hostile_submissions_earn_nothing(cycle, student):
    scores = cycle.scores(student)
    assert {name: values[2] for name, values in scores.items()} == {**CHECKS, **ANSWERS}
    assert {name for name, values in scores.items() if values[0]} == set(), "points that nobody earned"
    assert all(values[1] is None for values in scores.values()), "a score by hand that nobody gave"
    assert all(scores[task][0] == 0.0 and not scores[task][3] for task in CHECKS), "a check without a score"


@pytest.mark.parametrize("student", [*HONEST, *HOSTILE])
def test_nothing_acts_in_the_graders_browser(cycle, student):
    page = cycle.feedback(student)
    assert EVIL not in page
    assert "evil()" not in page
    assert not re.search(r'<a [^>]*href="javascript:|<img[^>]* onerror', page)
    assert not re.search(r'<img[^>]* src="(?!data:)', page)


def test_written_answers_wait_for_a_grader(cycle):
    scores = cycle.scores("perfect")
    waiting = {name for name, values in scores.items() if values[3]}
    assert waiting == {"why_quadratic", "figure_scaling"}
    assert all(scores[name][0] == 0.0 for name in ANSWERS if name not in waiting), "an untouched answer is worth 0"


def test_the_grader_sees_file_figure_and_answer(cycle):
    text = json.dumps(cycle.autograded("perfect"), ensure_ascii=False)
    assert "return {seq_len: measure_attention_memory(seq_len, d_model, batch_size) for seq_len" in text
    assert PIXEL in text
    assert "and `a<b` stays as it is." in text


def test_the_student_reads_what_failed(cycle):
    assert "standard_attention · 20 of 20 points" in cycle.feedback("half")
    assert "NotImplementedError" in cycle.feedback("half")
    assert "no_such_module" in cycle.feedback("import_error")


def test_rubrics_are_for_the_grader_alone(cycle):
    """nbgrader has no place for them: they follow each answer in formgrader, and are left out of the feedback."""
    cells = cycle.autograded("perfect")["cells"]
    after = {a["metadata"]["nbgrader"]["grade_id"]: b for a, b in pairwise(cells) if "nbgrader" in a["metadata"]}
    for question in ANSWERS:
        text = "".join(after[question]["source"])
        assert "For graders: model answer and rubric" in text and "Rubric" in text
    assert "Rubric" not in cycle.feedback("perfect") and "For graders" not in cycle.feedback("perfect")


def test_notes_are_for_the_grader_alone(cycle):
    for student, text in {
        "no_json": "report.ipynb cannot be read: JSON is malformed",
        "no_code": f"not graded: there is no src/{LAB.module}.py",
    }.items():
        first = json.dumps(cycle.autograded(student)["cells"][0], ensure_ascii=False)
        assert "For the grader" in first and text in first
        assert "For the grader" not in cycle.feedback(student)
        assert any(line.startswith((f"look at: {student}: ", f"not graded: {student}: ")) for line in cycle.printed)
    assert not list((cycle.course / "feedback").rglob("for_the_grader.txt"))


@pytest.mark.parametrize("where", ["notebook", "file"])
def test_a_leak_stops_generate_assignment(made_course, tmp_path, where):
    course = tmp_path / "course"
    shutil.copytree(made_course, course)
    source = course / "source" / NAME
    notebook = source / "report.ipynb"
    whole = notebook.read_text(encoding="utf-8")
    if where == "file":
        (source / "notes.txt").write_text("for the staff")
    else:
        notebook.write_text(whole.replace("### BEGIN SOLUTION", "# begin").replace("### END SOLUTION", "# end"))
    done = nbgrader(course, "generate_assignment", NAME, "--force")
    assert done.status != 0
    assert "LeakError" in done.output
    assert not (course / "release" / NAME).exists()


def test_a_failed_course_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("labstaff.release.leaks.secret_passages", lambda lab: {"Lab 01: Memory profiling"})
    with pytest.raises(CourseError, match="passages of solutions would be released"):
        make_course([LAB], tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(CourseError, match="exists already"):
        make_course([LAB], tmp_path)


@pytest.mark.browser
def test_formgrader_shows_everything_and_nothing_acts(cycle, browser):
    pytest.importorskip("jupyterlab", reason="formgrader runs in JupyterLab: uv sync --group notebook")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = [f"--port={port}", "--IdentityProvider.token=known", f"--ServerApp.root_dir={cycle.course}"]
    server = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", "--allow-root", *settings],
        cwd=cycle.course,
        env={**os.environ, "HOME": str(cycle.course.parent)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    asked: list[str] = []
    try:
        page = browser.new_page(extra_http_headers={"Authorization": "token known"})
        page.set_default_timeout(120_000)
        page.route(lambda url: "127.0.0.1" not in url, lambda route: route.abort())
        page.on("request", lambda request: asked.append(f"{request.method} {request.url}"))
        for _attempt in range(120):
            with contextlib.suppress(Exception):
                page.goto(f"http://127.0.0.1:{port}/formgrader/gradebook/{NAME}/report/")
                break
            page.wait_for_timeout(500)
        with contextlib.closing(sqlite3.connect(cycle.course / "gradebook.db")) as database:
            (identity,) = database.execute(
                "select n.id from submitted_notebook n join submitted_assignment a on n.assignment_id = a.id "
                "where a.student_id = 'active'"
            ).fetchone()
        page.goto(f"http://127.0.0.1:{port}/formgrader/submissions/{identity}/", wait_until="load")
        page.wait_for_function("document.querySelector('#standard_attention').placeholder !== ''")
        text = page.inner_text("#notebook-container")
        assert f"{LAB.module}.py, as submitted" in text
        assert "standard_attention · 0 of 20 points" in text
        assert page.locator("[id=standard_attention]").count() == 1, "a student's text has the id of a field"
        assert page.locator("[onerror]").count() == 0
        page.fill("#why_quadratic", "3.5")
        with page.expect_response(lambda response: response.request.method == "PUT"):
            page.press("#why_quadratic", "Tab")
        assert cycle.scores("active")["why_quadratic"][1] == 3.5
        assert not [request for request in asked if "/logout" in request or "example.org" in request]
        assert not [request for request in asked if request.endswith("/formgrader/api/grade")]
    finally:
        server.terminate()
        server.wait(timeout=20)
