"""A course from release to feedback with the real grader and nbgrader: honest submissions and hostile ones."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest

from labstaff.course.make import CourseError, make_course
from labstaff.course.nbgrader import nbgrader, opened_gradebook
from labstaff.release.leaks import find_leaks
from tests.labstaff.course.submissions import CODE, NAME, cell_of, graded, hand_in
from tests.student import LAB, solution_text, stub_text

pytestmark = pytest.mark.slow

CHECKS = {task.name: task.points for task in LAB.tasks}
ANSWERS = {question.id: question.points for question in LAB.questions}
MOST = float(sum(CHECKS.values()) + sum(ANSWERS.values()))
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB0C8AAAAASUVORK5CYII="
EVIL = '<img src="x" onerror="fetch(\'/formgrader/api/grade\')">'


def answered(notebook: dict) -> None:
    """A written answer, given twice, and a figure; two check cells are lost."""
    notebook["cells"].append({**cell_of(notebook, "bits_or_bytes"), "source": "The weights: $N^2$, and `a<b` stays."})
    figure = {"output_type": "display_data", "data": {"image/png": PIXEL, "text/html": EVIL}, "metadata": {}}
    cell_of(notebook, "figure_scaling").update(source="plot()", outputs=[figure])
    for task in LAB.tasks[:2]:
        notebook["cells"].remove(cell_of(notebook, task.name))


def edited_checks(notebook: dict) -> None:
    """Every check cell gives itself full marks, and says so in its saved output."""
    for task, points in CHECKS.items():
        output = {"output_type": "execute_result", "data": {"text/plain": f"{points}"}, "metadata": {}}
        cell_of(notebook, task).update(source=f"{points}", outputs=[{**output, "execution_count": 1}])


def active(notebook: dict) -> None:
    """Markdown and outputs that would act in the grader's browser."""
    cell_of(notebook, "bits_or_bytes")["source"] = f"Look: {EVIL} ```` and [this](javascript:alert(1))"
    pixels = "![](/logout) ![](https://example.org/x.png) <b id='standard_attention'>x</b>"
    notebook["cells"].append({"cell_type": "markdown", "metadata": {}, "source": pixels})
    shown = {"output_type": "display_data", "data": {"text/html": EVIL}, "metadata": {}}
    cell_of(notebook, "figure_scaling")["outputs"] = [
        shown,
        {"output_type": "stream", "name": "stdout", "text": EVIL},
    ]


@dataclass
class Cycle:
    """A course after its first round of grading."""

    course: Path
    printed: list[str]

    def scores(self, student: str) -> dict[str, tuple]:
        """Every grade of the student: (auto_score, manual_score, max_score, needs_manual_grade)."""
        with opened_gradebook(self.course) as gradebook:
            grades = gradebook.find_submission_notebook("report", NAME, student).grades
            return {g.name: (g.auto_score, g.manual_score, g.max_score, g.needs_manual_grade) for g in grades}

    def autograded(self, student: str) -> list[dict]:
        """The cells that formgrader shows."""
        path = self.course / "autograded" / student / NAME / "report.ipynb"
        return json.loads(path.read_text(encoding="utf-8"))["cells"]

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
    folder = hand_in(course, "late", solution_text(), answered)
    folder.with_name(f"{NAME}.timestamp.txt").write_text("2026-01-02 13:00:00 UTC")
    hand_in(course, "import_error", "import no_such_module\n" + solution_text())
    hand_in(course, "edited", stub_text(), edited_checks)
    hand_in(course, "active", stub_text(), active)
    (hand_in(course, "no_code", stub_text()) / CODE).unlink()
    (hand_in(course, "no_json", stub_text()) / "report.ipynb").write_text("\x00 this is no notebook {")
    with opened_gradebook(course) as gradebook:
        gradebook.update_or_create_assignment(NAME, duedate="2026-01-01 12:00:00 UTC")
    with warnings.catch_warnings(record=True) as warned:
        printed = graded(course, status=3, unsafe=False)
    assert not warned, "nobody can do anything about it"
    done = nbgrader(course).generate_feedback(NAME)
    assert done["success"], done
    return Cycle(course, printed)


def test_what_is_released(cycle):
    released = cycle.course / "release" / NAME
    files = [path for path in released.rglob("*") if path.is_file()]
    assert {str(path.relative_to(released)) for path in files} == {"README.md", "report.ipynb", CODE}
    assert find_leaks([LAB], files) == []
    assert find_leaks([LAB], [cycle.course / "source" / NAME / "report.ipynb"]), "the source has the model answers"


@pytest.mark.parametrize("student", ["late", "import_error", "edited", "active", "no_code", "no_json"])
def test_points_come_from_the_tests_alone_and_nothing_acts_in_the_page(cycle, student):
    scores = cycle.scores(student)
    assert {name: values[2] for name, values in scores.items()} == {**CHECKS, **ANSWERS}
    assert {name: scores[name][0] for name in CHECKS} == (CHECKS if student == "late" else dict.fromkeys(CHECKS, 0))
    assert not any(values[0] for name, values in scores.items() if name in ANSWERS)
    assert all(values[1] is None for values in scores.values()), "a score by hand that nobody gave"
    points = 0.8 * sum(CHECKS.values()) if student == "late" else 0.0  # two days begun
    page = cycle.feedback(student)
    assert f"(Score: {points} / {MOST})" in page
    for name in (*CHECKS, *ANSWERS):
        assert f'<a href="#{name}">{name}</a>' in page, "named in the table of contents"
    for acting in (EVIL, 'href="javascript:', "/logout", "example.org/x.png"):
        assert acting not in page


def test_the_grader_sees_file_figure_answer_and_rubric_and_the_student_no_notes(cycle):
    text = json.dumps(cells := cycle.autograded("late"), ensure_ascii=False)
    assert "return {seq_len: measure_attention_memory(seq_len, d_model, batch_size) for seq_len" in text
    assert PIXEL in text and "and `a<b` stays." in text
    assert {name for name, values in cycle.scores("late").items() if values[3]} == {"bits_or_bytes", "figure_scaling"}
    titles = ["".join(cell["source"]).partition("\n")[0] for cell in cells if cell["metadata"].get("for_grader")]
    assert titles == ["# For the grader", *["# For graders: model answer and rubric"] * len(ANSWERS)]
    for student, note in {
        "late": f"{LAB.module}.py is the model solution",
        "import_error": f"no test could run: {LAB.module}.py has a syntax error",
        "no_json": "report.ipynb cannot be read: JSON is malformed",
        "no_code": f"not graded: cannot be read: there is no {CODE}",
    }.items():
        assert note in json.dumps(cycle.autograded(student)[0], ensure_ascii=False)
        assert any(line.startswith((f"look at: {student}: ", f"not graded: {student}: ")) for line in cycle.printed)
        assert "For the grader" not in cycle.feedback(student)
    assert "no_such_module" in cycle.feedback("import_error"), "the student reads what failed"
    assert "Rubric" not in cycle.feedback("late") and "For graders" not in cycle.feedback("late")
    assert not list((cycle.course / "feedback").rglob("for_the_grader.txt"))


def test_feedback_says_what_nobody_has_graded_yet(cycle):
    page = cycle.feedback("late")
    assert f"/ {MOST}); 2 not graded yet</h4>" in page and "nan" not in page
    for name, points in ANSWERS.items():
        is_waiting = name in ("bits_or_bytes", "figure_scaling")
        score = f"not graded yet, of {float(points)}" if is_waiting else f"Score: 0.0 / {float(points)}"
        assert f'<a href="#{name}">{name}</a> ({score})' in page
    assert page.count("not graded yet, of") == 4, "in the table of contents and above the answer"
    assert "not graded yet" not in cycle.feedback("edited")


def test_a_failed_course_leaves_nothing(tmp_path, monkeypatch):
    with pytest.raises(CourseError, match="exists already"):
        make_course([LAB], tmp_path)
    monkeypatch.setattr(
        "labstaff.release.leaks.secret_passages", lambda lab: {"what standard attention costs in memory"}
    )
    with pytest.raises(CourseError, match="passages of solutions would be released"):
        make_course([LAB], tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.browser
def test_formgrader_shows_everything_and_nothing_acts(cycle, browser):
    pytest.importorskip("jupyterlab", reason="formgrader runs in JupyterLab: uv sync --group notebook")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
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
        page.fill("#bits_or_bytes", "3.5")
        with page.expect_response(lambda response: response.request.method == "PUT"):
            page.press("#bits_or_bytes", "Tab")
        assert cycle.scores("active")["bits_or_bytes"][1] == 3.5
        assert not [request for request in asked if "/logout" in request or "example.org" in request]
        assert not [request for request in asked if request.endswith("/formgrader/api/grade")]
    finally:
        server.terminate()
        server.wait(timeout=20)
