"""A course from release to feedback: nbgrader's own commands and gradebook, honest submissions and hostile ones."""

from __future__ import annotations

import contextlib
import csv
import html
import json
import os
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from labkit.labs.catalog import ROOT
from labstaff.course.make import CourseError, make_course
from labstaff.course.nbgrader_process import Nbgrader
from labstaff.course.record import record
from labstaff.grading.run import grade_submitted
from labstaff.release.leaks import find_leaks
from tests.labstaff.course.handed_in import ANSWERS, CHECKS, EARNED, EVIL, HONEST, HOSTILE, PIXEL, half
from tests.student import LAB, solution_text, stub_text

pytestmark = pytest.mark.slow

NAME = LAB.folder.name
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@dataclass
class Cycle:
    """A course after its first round of grading."""

    course: Path
    nbgrader: Nbgrader
    said: list[str]

    def scores(self, student: str) -> dict[str, tuple]:
        """Every grade of the student: (auto_score, manual_score, max_score, needs_manual_grade)."""
        with sqlite3.connect(self.course / "gradebook.db") as database:
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
    """Made, released, handed in, graded, exported and handed back, once for all tests."""
    course = tmp_path_factory.mktemp("nbgrader") / "course"
    environment = {"PYTHONPATH": str(ROOT), "ATTENTION_LABS_TEST_SECONDS": "4", "HOME": str(course)}
    os.environ["ATTENTION_LABS_TEST_SECONDS"] = "4"
    with Nbgrader(environment) as nbgrader:
        shutil.copytree(made_course, course)
        with (course / "nbgrader_config.py").open("a", encoding="utf-8") as config:
            config.write("c.LatePenalty.percent_per_day = 10\n")
        for student, (source, change) in HONEST.items():
            hand_in(course, student, source, change)
        for student, change in HOSTILE.items():
            hand_in(course, student, stub_text(), change)
        (course / "submitted" / "refused" / NAME / "src" / f"{LAB.module}.py").unlink()
        (course / "submitted" / "half" / NAME / "timestamp.txt").write_text("2026-01-02 13:00:00 UTC")
        secret = course / "source" / NAME / "report.ipynb"
        (course / "submitted" / "stub" / NAME / "link.ipynb").symlink_to(secret)
        os.mkfifo(course / "submitted" / "stub" / NAME / "pipe.txt")
        assert not nbgrader(course, "db", "assignment", "add", NAME, "--duedate", "2026-01-01 12:00:00 UTC").status
        said: list[str] = []
        outcomes = grade_submitted(course / "submitted", [LAB], say=said.append)
        said += [f"{each.handed_in.student}: {each.judged.points:g} of {LAB.points:g} points" for each in outcomes]
        record(course, LAB, nbgrader, say=said.append)
        for command in (("generate_feedback", NAME), ("export",)):
            done = nbgrader(course, *command)
            assert done.status == 0, done.output
        yield Cycle(course, nbgrader, said)
    del os.environ["ATTENTION_LABS_TEST_SECONDS"]


def hand_in(course: Path, student: str, source: str, change) -> None:
    """Put a submission where nbgrader collects them: a change of the released notebook, or another text."""
    folder = course / "submitted" / student / NAME
    shutil.copytree(course / "release" / NAME, folder)
    (folder / "src" / f"{LAB.module}.py").write_text(source, encoding="utf-8")
    notebook = folder / "report.ipynb"
    if callable(change):
        notebook.write_text(json.dumps(change(json.loads(notebook.read_text(encoding="utf-8")))), encoding="utf-8")
    elif change == "":
        notebook.unlink()
    elif change is not None:
        notebook.write_text(change, encoding="utf-8")


def test_points_come_from_the_manifest(cycle):
    scores = cycle.scores("stub")
    assert {name: values[2] for name, values in scores.items()} == {**CHECKS, **ANSWERS}


def test_what_is_released(cycle):
    released = cycle.course / "release" / NAME
    files = [path for path in released.rglob("*") if path.is_file()]
    assert {str(path.relative_to(released)) for path in files} == {"README.md", "report.ipynb", f"src/{LAB.module}.py"}
    assert find_leaks([LAB], files) == []
    assert find_leaks([LAB], [cycle.course / "source" / NAME / "report.ipynb"]), "the source has the model answers"


@pytest.mark.parametrize(("student", "points"), EARNED.items())
def test_totals(cycle, student, points):
    with (cycle.course / "grades.csv").open(encoding="utf-8") as file:
        row = next(row for row in csv.DictReader(file) if row["student_id"] == student)
    assert float(row["raw_score"]) == pytest.approx(points, abs=0.01)
    assert float(row["max_score"]) == sum(CHECKS.values()) + sum(ANSWERS.values())
    assert f"{student}: {points:g} of 60 points" in cycle.said
    late = student == "half"
    assert float(row["late_submission_penalty"]) == pytest.approx(0.2 * points if late else 0.0), "two days begun"
    assert f"(Score: {float(row['score'])} / 84.0)" in cycle.feedback(student)


@pytest.mark.parametrize("student", HOSTILE)
def test_hostile_submissions_earn_nothing(cycle, student):
    scores = cycle.scores(student)
    assert {name: values[2] for name, values in scores.items()} == {**CHECKS, **ANSWERS}
    assert {name for name, values in scores.items() if values[0]} == set(), "points that nobody earned"
    assert all(values[1] is None for values in scores.values()), "a score by hand that nobody gave"
    assert all(scores[task][0] == 0.0 and not scores[task][3] for task in CHECKS), "a check without a score"
    graded = [
        cell["metadata"]["nbgrader"] for cell in cycle.autograded(student)["cells"] if "nbgrader" in cell["metadata"]
    ]
    assert sorted(cell["grade_id"] for cell in graded) == sorted([*CHECKS, *ANSWERS])
    for cell in graded:
        assert cell["points"] == {**CHECKS, **ANSWERS}[cell["grade_id"]]
        assert cell["solution"] == (cell["grade_id"] in ANSWERS)


def test_every_student_is_in_the_export(cycle):
    with (cycle.course / "grades.csv").open(encoding="utf-8") as file:
        assert {row["student_id"] for row in csv.DictReader(file)} == {*HONEST, *HOSTILE}


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
    assert "&lt;img src=" in cycle.feedback("active") or "&lt;img" in cycle.feedback("active")


def test_the_student_is_told_what_failed(cycle):
    page = cycle.feedback("endless_loop")
    assert "analyze_scaling · 0 of 10 points" in page
    assert "still running after" in page
    assert "standard_attention · 20 of 20 points" in page
    assert "no_such_module" in cycle.feedback("import_error")


def test_notes_are_for_the_grader_alone(cycle):
    notes = {student: json.dumps(cycle.autograded(student)["cells"][0], ensure_ascii=False) for student in HOSTILE}
    for student, text in {
        "edited_checks": "the check cell standard_attention was edited",
        "deleted_cells": "put back empty: figure_scaling, why_quadratic",
        "active": "is shown as it was typed",
        "huge": "is cut at",
        "no_json": "could not be read",
        "deep": "could not be read",
        "no_notebook": "no report.ipynb was handed in",
        "refused": "the judge refused this submission: there is no src/profiling.py",
    }.items():
        assert text in notes[student], student
        assert "For the grader" in notes[student]
        assert "For the grader" not in cycle.feedback(student)


def test_feedback_is_the_page_alone(cycle):
    files = {path.name for path in (cycle.course / "feedback").rglob("*") if path.is_file()}
    assert files == {"report.html"}


def test_the_table_of_contents_has_names(cycle):
    page = cycle.feedback("perfect")
    entries = re.findall(r'<li><a href="#([a-z_]+)">([^<]*)</a> \(Score', page)
    titles = {task.name: task.name for task in LAB.tasks} | {each.id: each.title for each in LAB.questions}
    assert dict(entries) == {name: html.escape(title) for name, title in titles.items()}


def test_a_name_with_a_comma_is_one_cell(cycle):
    """nbgrader's own export writes it as two."""
    add = ("db", "student", "add", "comma", "--last-name", 'Doe, "Jr"', "--first-name", "=1+1")
    assert cycle.nbgrader(cycle.course, *add).status == 0
    assert cycle.nbgrader(cycle.course, "export", "--to", "names.csv").status == 0
    with (cycle.course / "names.csv").open(encoding="utf-8", newline="") as file:
        (row,) = [row for row in csv.DictReader(file) if row["student_id"] == "comma"]
    assert (row["last_name"], row["first_name"], row["score"]) == ('Doe, "Jr"', "'=1+1", "0.0")


def test_links_and_pipes_are_taken_out(cycle):
    folder = cycle.course / "submitted" / "stub" / NAME
    assert not (folder / "link.ipynb").is_symlink()
    assert not (folder / "pipe.txt").exists()
    assert not (cycle.course / "autograded" / "stub" / NAME / "link.ipynb").exists()


def test_a_score_by_hand_survives_a_second_round(cycle):
    with sqlite3.connect(cycle.course / "gradebook.db") as database:
        database.execute(
            "update grade set manual_score = 3 where cell_id in (select id from base_cell where name = 'why_quadratic')"
            " and notebook_id in (select n.id from submitted_notebook n join submitted_assignment a "
            "on n.assignment_id = a.id where a.student_id = 'perfect')"
        )
    answer = cycle.course / "submitted" / "perfect" / NAME / "src" / f"{LAB.module}.py"
    answer.write_text(half(), encoding="utf-8")
    done = cycle.nbgrader(cycle.course, "autograde", NAME, "--student", "perfect", "--force")
    assert done.status == 0, done.output
    scores = cycle.scores("perfect")
    assert scores["why_quadratic"][1] == 3.0
    assert sum(scores[task][0] for task in CHECKS) == EARNED["half"], "the changed file is judged again"
    answer.write_text(solution_text(), encoding="utf-8")


@pytest.mark.parametrize("where", ["notebook", "file"])
def test_a_leak_stops_generate_assignment(cycle, where):
    source = cycle.course / "source" / NAME
    notebook = source / "report.ipynb"
    whole = notebook.read_text(encoding="utf-8")
    if where == "file":
        (source / "notes.txt").write_text("for the staff")
    else:
        notebook.write_text(whole.replace("### BEGIN SOLUTION", "# begin").replace("### END SOLUTION", "# end"))
    try:
        done = cycle.nbgrader(cycle.course, "generate_assignment", NAME, "--force")
        assert done.status != 0
        assert "LeakError" in done.output
        assert not (cycle.course / "release" / NAME).exists()
    finally:
        (source / "notes.txt").unlink(missing_ok=True)
        notebook.write_text(whole, encoding="utf-8")
        assert cycle.nbgrader(cycle.course, "generate_assignment", NAME, "--force").status == 0


def test_a_failed_course_leaves_nothing(cycle, tmp_path, monkeypatch):
    monkeypatch.setattr("labstaff.release.leaks.secret_passages", lambda lab: {"Lab 01: Memory profiling"})
    with pytest.raises(CourseError, match="passages of solutions would be released"):
        make_course([LAB], tmp_path / "out", cycle.nbgrader)
    assert not (tmp_path / "out").exists()
    with pytest.raises(CourseError, match="exists already"):
        make_course([LAB], tmp_path, cycle.nbgrader)


@pytest.fixture(scope="module")
def formgrader(cycle):
    """JupyterLab in the course's folder, and a browser page whose requests to elsewhere are stopped."""
    pytest.importorskip("jupyterlab", reason="formgrader runs in JupyterLab: uv sync --group notebook")
    playwright = pytest.importorskip("playwright.sync_api", reason="no playwright to drive a browser with")
    browser_path = next((path for path in map(shutil.which, BROWSERS) if path), None)
    if browser_path is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    home = cycle.course.parent / "home"
    settings = [f"--port={port}", "--IdentityProvider.token=known", f"--ServerApp.root_dir={cycle.course}"]
    server = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", "--allow-root", *settings],
        cwd=cycle.course,
        env={**os.environ, "HOME": str(home), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        stdout=(cycle.course.parent / "jupyter.log").open("w"),
        stderr=subprocess.STDOUT,
    )
    try:
        with playwright.sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
            headers = {"Authorization": "token known"}
            page = browser.new_page(viewport={"width": 1200, "height": 1400}, extra_http_headers=headers)
            page.set_default_timeout(120_000)
            page.route(lambda url: "127.0.0.1" not in url, lambda route: route.abort())
            for _attempt in range(120):
                with contextlib.suppress(playwright.Error):
                    page.goto(f"http://127.0.0.1:{port}/formgrader/gradebook/{NAME}/report/")
                    break
                page.wait_for_timeout(500)
            yield page, f"http://127.0.0.1:{port}"
            browser.close()
    finally:
        server.terminate()
        server.wait(timeout=20)


def open_submission(cycle, formgrader, student: str):
    """The page on which the student's notebook is graded."""
    page, address = formgrader
    with sqlite3.connect(cycle.course / "gradebook.db") as database:
        (identity,) = database.execute(
            "select n.id from submitted_notebook n join submitted_assignment a on n.assignment_id = a.id "
            "where a.student_id = ?",
            (student,),
        ).fetchone()
    page.goto(f"{address}/formgrader/submissions/{identity}/", wait_until="load")
    page.wait_for_selector("input.score")
    page.wait_for_function("document.querySelector('#standard_attention').placeholder !== ''")
    page.wait_for_load_state("load")
    return page


def test_formgrader_shows_what_a_grader_needs(cycle, formgrader):
    page = open_submission(cycle, formgrader, "endless_loop")
    shots = os.environ.get("ATTENTION_LABS_SCREENSHOTS")
    if shots:
        page.screenshot(path=f"{shots}/formgrader.png", full_page=True)
    assert page.locator("#standard_attention").get_attribute("placeholder") == "20"
    assert page.locator("#analyze_scaling").get_attribute("placeholder") == "0"
    text = page.inner_text("#notebook-container")
    assert "profiling.py, as it was handed in" in text
    assert "while True:" in text
    assert "still running after" in text


def test_formgrader_takes_a_score_by_hand(cycle, formgrader):
    page = open_submission(cycle, formgrader, "half")
    page.fill("#why_quadratic", "3.5")
    page.press("#why_quadratic", "Tab")
    page.wait_for_timeout(1500)
    assert cycle.scores("half")["why_quadratic"][1] == 3.5


def test_nothing_of_a_student_acts_in_formgrader(cycle, formgrader):
    asked: list[str] = []
    formgrader[0].on("request", lambda request: asked.append(f"{request.method} {request.url}"))
    page = open_submission(cycle, formgrader, "active")
    page.wait_for_timeout(500)
    if shots := os.environ.get("ATTENTION_LABS_SCREENSHOTS"):
        page.screenshot(path=f"{shots}/active.png", full_page=True)
    assert not [request for request in asked if "POST" in request or "PUT" in request or request.endswith("/api/grade")]
    assert not [request for request in asked if "/logout" in request or "example.org" in request]
    assert page.locator("[id=standard_attention]").count() == 1, "a student's text has the id of a field"
    assert page.locator("[onerror]").count() == 0
    assert "For the grader" in page.inner_text("#notebook-container")
