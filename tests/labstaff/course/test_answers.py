"""Written answers by spreadsheet: what the file shows, and what reading it writes, refuses and leaves alone."""

from __future__ import annotations

import csv
import io
import re
import shutil

import pytest
from typer.testing import CliRunner

from labkit.commands.app import app
from labstaff.commands import add_commands
from labstaff.course.answers import FOLDER, AnswersError, write_answers
from labstaff.course.nbgrader import nbgrader, opened_gradebook
from labstaff.course.scores import TRAIL, read_scores, write_scores
from labstaff.course.spreadsheet import SpreadsheetError, read_rows
from labstaff.course.update import OutOfDate
from labstaff.grader.grade import Grader
from tests.labstaff.course.submissions import (
    LAB,
    NAME,
    answer,
    answers,
    grade_by_hand,
    graded,
    graded_by_comment,
    hand_in,
)

QUESTION, OTHER = "bits_or_bytes", "alive_at_once"
FILE = f"{LAB.label}_{QUESTION}.csv"
EVIL = '=HYPERLINK("http://x")\nN;"=1+1"\n\t-2+3'
FORMULA = re.compile(r'(^|[\n;\t])[\s"]*[=+\-@]')


@pytest.fixture(scope="module")
def recorded(made_course, tmp_path_factory):
    """A course of three students with two written answers each, recorded."""
    course = tmp_path_factory.mktemp("answers") / "course"
    shutil.copytree(made_course, course)
    for student, text in (("ann", "The weights: √N², “each pair”."), ("bob", EVIL), ("007", "N times N")):
        hand_in(course, student, answer(10), answers(**{QUESTION: text, OTHER: f"All of {student}'s."}))
    with opened_gradebook(course) as gradebook:
        gradebook.update_or_create_student("bob", first_name="Bob", last_name="Bee")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Grader, "grade", graded_by_comment)
        graded(course)
    return course


@pytest.fixture
def course(recorded, tmp_path, monkeypatch):
    """A copy of it, and the grader that takes no time."""
    monkeypatch.setattr(Grader, "grade", graded_by_comment)
    return shutil.copytree(recorded, tmp_path / "course")


def rows_of(file) -> dict[str, dict[str, str]]:
    """The file's rows by student."""
    header, *rows = read_rows(file)
    return {row[0]: dict(zip(header, row, strict=True)) for row in rows}


def typed(course, question=QUESTION, encoding="utf-8-sig", delimiter=",", **cells):
    """Write the answers to `question` and type into them: `bob={"score": "3"}`; returns the file."""
    (file,) = write_answers(course, LAB, [question])
    table = rows_of(file)
    for student, changes in cells.items():
        table[student.removeprefix("_")].update(changes)
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, next(iter(table.values())), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(table.values())
    file.write_text(text.getvalue(), encoding=encoding, newline="")
    return file


def written(course, file, who="kim", why="first time") -> list[str]:
    """Read a file's scores, and write all of them; returns the lines of what is refused."""
    return write_scores(course, LAB, file, read_scores(course, LAB, file), who=who, why=why, say=print).refused


def scores(course, question=QUESTION) -> dict[str, tuple]:
    """Each student's score by hand, comment, and whether the answer waits."""
    found = {}
    with opened_gradebook(course) as gradebook:
        for student in ("ann", "bob", "007"):
            grade = gradebook.find_grade(question, "report", NAME, student)
            comment = gradebook.find_comment(question, "report", NAME, student).manual_comment
            found[student] = (grade.manual_score, comment, grade.needs_manual_grade)
    return found


UNTOUCHED = dict.fromkeys(("ann", "bob", "007"), (None, None, True))


@pytest.mark.slow
def test_the_file_has_every_answer_after_the_model_answer_and_no_formula(course):
    files = write_answers(course, LAB)
    assert [file.name for file in files] == [f"lab01_{q.id}.csv" for q in LAB.questions if q.id != "figure_scaling"]
    table = rows_of(course / FOLDER / FILE)
    assert [*table] == ["For graders: model answer and rubric", "007", "ann", "bob"]
    model, *_, bob = table.values()
    assert "Rubric, 4 points" in model["answer"] and (model["points_possible"], model["version"]) == ("4", "")
    assert (table["ann"]["answer"], table["ann"]["waits"]) == ("The weights: √N², “each pair”.", "yes")
    assert (bob["name"], bob["score_before"], bob["score"]) == ("Bob Bee", "", "")
    assert bob["answer"] == "'" + EVIL.replace(';"=', ";'\"=").replace("\t-", "\t'-")
    text = (course / FOLDER / FILE).read_text(encoding="utf-8")
    assert not [line for line in text.split(bob["name"])[1].splitlines() if FORMULA.search(line)]
    with pytest.raises(AnswersError, match="may hold scores"):
        write_answers(course, LAB, ["2"])
    for key, why in (("1", "figure_scaling is a figure"), ("9", "no question '9'; there are: 1 .figure_scaling.")):
        with pytest.raises(AnswersError, match=why):
            write_answers(course, LAB, [key])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("encoding", "delimiter", "score"),
    [("utf-8-sig", ",", "3.5"), ("utf-16", "\t", "3,5"), ("utf-8", ";", "3,5")],
)
def test_scores_come_back_as_spreadsheets_save_them(course, encoding, delimiter, score):
    seven = {"student": "7", "score": "0", "comment": "Why?\nSee √ of chapter 1."}  # 007, after a spreadsheet had it
    file = typed(course, encoding=encoding, delimiter=delimiter, bob={"score": score}, _007=seven)
    assert [str(change) for change in read_scores(course, LAB, file).changes] == [
        f"007: {QUESTION}: no score → 0: comment “Why?\\x0aSee √ of chapter 1.”",
        f"bob: {QUESTION}: no score → 3.5",
    ]
    assert scores(course) == UNTOUCHED, "nothing is written yet"
    assert written(course, file) == []
    assert scores(course) == {
        "ann": (None, None, True),
        "bob": (3.5, None, False),
        "007": (0, "Why?\nSee √ of chapter 1.", False),
    }
    header, first, second = read_rows(course / TRAIL)
    assert header[:2] == ["when", "who"] and first[1:7] == ["kim", "007", "lab01", QUESTION, "", "0"]
    assert second[1:] == ["kim", "bob", "lab01", QUESTION, "", "3.5", "", "first time"]
    again = read_scores(course, LAB, file)
    assert (again.changes, again.refused) == ([], []), "read twice"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cells", "why"),
    [
        ({"score": "4.5"}, "score: expected a number from 0 to 4, found '4.5'"),
        ({"score": "-1"}, "score: expected a number from 0 to 4, found '-1'"),
        ({"score": "03. Mai"}, "score: expected a number from 0 to 4, found '03. Mai'"),
        ({"score": "nan"}, "score: expected a number from 0 to 4, found 'nan'"),
        ({"score": "3", "version": ""}, "expected the version that lab answers wrote, found ''"),
        ({"score": "3", "version": "lab03/bits_or_bytes/bob/0"}, "it is an answer of lab03, and this is lab01"),
        ({"score": "3", "version": "lab01/nothing/bob/0"}, "the gradebook has no such answer"),
        (
            {"score": "3", "version": "lab01/bits_or_bytes/ann/0"},
            "this row's version is that of ann: was one column sorted without the others?",
        ),
    ],
    ids=lambda each: "-".join(each.values()) if isinstance(each, dict) else "",
)
def test_a_row_that_cannot_be_used_is_named_and_the_others_are_written(course, cells, why):
    file = typed(course, bob=cells, ann={"score": "4"})
    assert written(course, file) == [f"REFUSED: row 5: bob: {why}"]
    assert scores(course) == {**UNTOUCHED, "ann": (4, None, False)}


@pytest.mark.slow
def test_what_has_changed_since_the_file_was_written_is_not_overwritten(course):
    file = typed(course, ann={"score": "4"}, bob={"score": "3"}, _007={"comment": "Good."})
    grade_by_hand(course, "ann", **{QUESTION: 2})
    hand_in(course, "bob", answer(10), answers(**{QUESTION: "Another answer."}))
    graded(course)
    with opened_gradebook(course) as gradebook:
        gradebook.find_comment(QUESTION, "report", NAME, "007").manual_comment = "Formgrader's."
        gradebook.db.commit()
    before = scores(course)
    assert written(course, file) == [
        "REFUSED: row 3: 007: the comment is another one than when this file was written",
        "REFUSED: row 4: ann: the score is 2 now, and was none when this file was written",
        "REFUSED: row 5: bob: the student has handed in another answer since this file was written",
    ]
    assert scores(course) == before


@pytest.mark.slow
def test_two_assistants_with_two_questions_lose_nothing_and_two_with_one_are_told(course):
    first, second = typed(course, bob={"score": "3"}), typed(course, OTHER, bob={"score": "5"}, ann={"score": "6"})
    shown = [read_scores(course, LAB, file) for file in (first, second)]
    for file, changes in zip((second, first), reversed(shown), strict=True):
        assert not write_scores(course, LAB, file, changes, who="kim", why="", say=print).refused
    assert (scores(course)["bob"][0], scores(course, OTHER)["bob"][0], scores(course, OTHER)["ann"][0]) == (3, 5, 6)
    (course / FOLDER / FILE).unlink()
    first = typed(course, bob={"score": "2"})
    unseen = read_scores(course, LAB, first)
    first.write_text(first.read_text(encoding="utf-8").replace(",2,", ",4,"), encoding="utf-8")
    assert not write_scores(course, LAB, first, unseen, who="lee", why="", say=print).changes, "it was not shown"
    late = read_scores(course, LAB, first)
    # while the changes are looked at, another person types in formgrader
    grade_by_hand(course, "bob", **{QUESTION: 1})
    done = write_scores(course, LAB, first, late, who="lee", why="", say=print)
    assert (done.changes, len(done.refused), scores(course)["bob"][0]) == ([], 1, 1)
    assert [row[1:7] for row in read_rows(course / TRAIL)[1:]] == [
        ["kim", "ann", "lab01", OTHER, "", "6"],
        ["kim", "bob", "lab01", OTHER, "", "5"],
        ["kim", "bob", "lab01", QUESTION, "", "3"],
    ]


@pytest.mark.slow
def test_recording_keeps_these_scores_until_the_answer_changes(course):
    written(course, typed(course, bob={"score": "3", "comment": "Short."}, ann={"score": "4"}))
    assert graded(course, force=True)[-1] == "gradebook.db: 3 recorded, 0 unchanged"
    assert scores(course) == {**UNTOUCHED, "bob": (3, "Short.", False), "ann": (4, None, False)}
    hand_in(course, "bob", answer(10), answers(**{QUESTION: "Another answer."}))
    assert f"grade again: bob: {NAME}: {QUESTION} has changed" in "\n".join(graded(course))
    (course / FOLDER / FILE).unlink()
    file = typed(course, bob={"score": "3"})
    assert (rows_of(file)["bob"]["score_before"], rows_of(file)["bob"]["waits"]) == ("3", "yes")
    assert (written(course, file), scores(course)["bob"]) == ([], (3, "Short.", False)), "the same score, given again"
    assert nbgrader(course).generate_feedback(NAME)["success"]
    assert "Short." in (course / "feedback" / "bob" / NAME / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_course_with_other_points_and_a_lost_report_are_refused(course):
    file = typed(course, bob={"score": "3"})
    shutil.rmtree(course / "autograded" / "bob")
    with pytest.raises(AnswersError, match=r"bob/.*: No such file or directory: lab grade makes it again"):
        write_answers(course, LAB, [OTHER])
    with opened_gradebook(course) as gradebook:
        gradebook.find_graded_cell(QUESTION, "report", NAME).max_score = 2
        gradebook.db.commit()
    for refused in (lambda: write_answers(course, LAB, [OTHER]), lambda: read_scores(course, LAB, file)):
        with pytest.raises(OutOfDate, match=f"{QUESTION}: 2 → 4 points"):
            refused()


@pytest.mark.slow
def test_an_answer_that_is_not_in_its_cell_is_to_be_looked_at(course):
    hand_in(
        course,
        "bob",
        answer(10),
        lambda notebook: notebook["cells"].append(
            {"cell_type": "markdown", "metadata": {}, "source": "My answer to question two."}
        ),
    )
    graded(course)
    (file,) = write_answers(course, LAB, [QUESTION])
    assert QUESTION in rows_of(file)["bob"]["look_at"] and "My answer" in rows_of(file)["bob"]["look_at"]
    assert (rows_of(file)["bob"]["score_before"], rows_of(file)["ann"]["look_at"]) == ("0", "")


@pytest.mark.slow
def test_the_command_asks_and_its_exit_status_says_that_a_row_was_refused(course):
    if "answers" not in {command.callback.__name__ for command in app.registered_commands}:
        add_commands(app)

    def lab(*arguments, typed=""):
        return CliRunner().invoke(app, ["answers", str(course), "--lab", "01", *arguments], input=typed)

    assert f"wrote {course / FOLDER / FILE}" in lab("--question", "2").output
    (course / FOLDER / FILE).unlink()
    file = typed(course, bob={"score": "3"}, ann={"score": "9"})
    assert scores(course) == UNTOUCHED and lab("--read", str(file), typed="n\n").exit_code == 1
    assert scores(course) == UNTOUCHED
    done = lab("--read", str(file), "--yes", "--name", "kim", "--why", "The rubric was too strict.")
    assert (done.exit_code, scores(course)["bob"][0]) == (1, 3)
    assert "REFUSED: row 4: ann" in done.output and "kim,bob" in (course / TRAIL).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("a,b\n".encode("utf-16")[2:] + b"\xff", "save it as “CSV UTF-8”"),
        ("student,score\nann,é\n".encode("cp1252"), "save it as “CSV UTF-8”"),
        (b"a,b\n" + b"x" * 200_000, "cannot be read as CSV: field larger than field limit"),
    ],
    ids=["utf-16 without a mark", "windows", "a huge cell"],
)
def test_a_file_that_is_no_table_is_one_line(tmp_path, content, why):
    (tmp_path / "file.csv").write_bytes(content)
    with pytest.raises(SpreadsheetError, match=why):
        read_rows(tmp_path / "file.csv")
