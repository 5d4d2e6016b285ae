"""`lab submit`: the archive, what it warns of, and that grading reads it."""

from __future__ import annotations

import json
import zipfile

import pytest
from typer.testing import CliRunner

from labkit.commands.app import app
from labkit.commands.submit import HANDOUT_LINE, REPORT, CannotSubmit, submit_lab
from labkit.labs.catalog import ROOT, find_labs
from labkit.suite.results import add_up, store
from labstaff.derive.markers import CODE_STUB, TEXT_STUB
from labstaff.grader.submission import read_code
from tests.student import LAB, results, solution_text, student_lab

WITHOUT_ANSWERS = [f"question {i} ({question.title}): no answer" for i, question in enumerate(LAB.questions, 1)]


def write_answers(lab, text="An answer.", outputs=({"output_type": "display_data"},)) -> None:
    notebook = json.loads((lab.folder / REPORT).read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        if "nbgrader" in cell["metadata"] and cell["metadata"]["nbgrader"]["solution"]:
            cell["source"] = [text]
            if cell["cell_type"] == "code":
                cell["outputs"] = list(outputs)
    (lab.folder / REPORT).write_text(json.dumps(notebook), encoding="utf-8")


def store_results(lab, **passed) -> None:
    store(lab, add_up(lab, results(lab, **{**{task.name: 10 for task in lab.tasks}, **passed})))


def warnings(lines: list[str]) -> list[str]:
    return [line.strip().removeprefix(f"{REPORT}, ") for line in lines[4:]]


def test_the_archive_holds_exactly_what_counts_and_is_graded(tmp_path):
    lab = student_lab(tmp_path, solution_text())
    (lab.folder / "notes.txt").write_text("mine")
    assert submit_lab(lab)[0] == f"wrote {tmp_path / lab.folder.name}.zip"
    archive = tmp_path / f"{lab.folder.name}.zip"
    with zipfile.ZipFile(archive) as packed:
        assert packed.namelist() == ["src/profiling.py", REPORT]
    assert read_code(LAB, archive).source == solution_text().encode()
    (lab.folder / "review.py").write_text("def test_it(): ...\n")
    assert submit_lab(lab)[1] == "with src/profiling.py, report.ipynb, review.py"
    with zipfile.ZipFile(archive) as packed:
        assert packed.namelist() == ["src/profiling.py", REPORT, "review.py"]


def test_a_finished_lab_has_no_warning(tmp_path):
    lab = student_lab(tmp_path, solution_text())
    store_results(lab)
    write_answers(lab)
    assert len(submit_lab(lab)) == 2


def test_failed_and_unrun_checks_and_empty_answers_are_listed(tmp_path):
    lab = student_lab(tmp_path, solution_text())
    names = ", ".join(task.name for task in lab.tasks)
    untested = f"not tested since your last change: {names}; run uv run lab check 01"
    assert warnings(submit_lab(lab)) == [untested, *WITHOUT_ANSWERS]
    store_results(lab, standard_attention=3)
    write_answers(lab)
    assert warnings(submit_lab(lab)) == ["standard_attention: 3 of 10 tests pass"]
    lab.student_file.write_text(solution_text() + "\n# changed\n")
    assert warnings(submit_lab(lab)) == [untested]
    lab.student_file.write_text("def broken(:\n")
    assert warnings(submit_lab(lab))[0].startswith("profiling.py has a syntax error in line 1")


def test_a_figure_that_was_not_drawn_and_a_damaged_report_are_listed(tmp_path):
    lab = student_lab(tmp_path, solution_text())
    store_results(lab)
    write_answers(lab, outputs=())
    (drawn,) = warnings(submit_lab(lab))
    assert (
        drawn == f"question 1 ({LAB.questions[0].title}): nothing is saved below its cell: run it, then save the report"
    )
    (lab.folder / REPORT).write_text("{}")
    assert warnings(submit_lab(lab))[0].startswith("report.ipynb cannot be read as a notebook")


def test_stubs_are_known_as_empty(tmp_path):
    lab = student_lab(tmp_path, solution_text())
    store_results(lab)
    write_answers(lab, text=TEXT_STUB)
    assert warnings(submit_lab(lab)) == WITHOUT_ANSWERS[1:]
    write_answers(lab, text="\n".join(CODE_STUB))
    assert warnings(submit_lab(lab)) == WITHOUT_ANSWERS[:1]


def test_a_missing_report_is_an_error(tmp_path, monkeypatch):
    lab = student_lab(tmp_path, solution_text())
    (lab.folder / REPORT).unlink()
    with pytest.raises(CannotSubmit, match=r"there is no .*report\.ipynb"):
        submit_lab(lab)
    monkeypatch.setattr("labkit.commands.app.find_lab", lambda _name: lab)
    run = CliRunner().invoke(app, ["submit", "01"])
    assert run.exit_code == 1 and not list(tmp_path.glob("*.zip"))


@pytest.mark.parametrize("lab", find_labs(), ids=lambda lab: lab.label)
def test_each_handout_names_the_command(lab):
    assert HANDOUT_LINE.format(number=lab.number) in (lab.folder / "README.md").read_text(encoding="utf-8").splitlines()


def test_the_archive_is_ignored_by_git():
    assert "/lab*.zip" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
