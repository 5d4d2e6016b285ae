"""A class' board: from judged results alone, one line a student and trace, nothing that a spreadsheet would obey."""

from __future__ import annotations

import csv
import json

import pytest

from labkit.suite.counts import NoBoard
from labkit.suite.run import SuiteRun
from labkit.suite.verdict import Kind, State, Verdict, verdict_from
from labkit.testing.outside import NEEDS_MORE
from labstaff.grading.class_board import class_board, write_csv
from labstaff.grading.run import NothingToGrade
from labstaff.judge.judging import hidden_seed, judged_run, kept_at
from labstaff.judge.kept import results_of
from labstaff.judge.results import JudgedSubmission, save
from labstaff.judge.submission import read_submission
from tests.labkit.commands.counting import COUNTED, answer, counting_lab

CHAT, DOCUMENTS = ("TestServe::test_board[chat]", "TestServe::test_board[documents]")
OTHER = COUNTED | {"bytes_read": 9001, "in_time": 2}


@pytest.fixture
def course(tmp_path):
    return tmp_path / "course"


@pytest.fixture
def lab(tmp_path):
    return counting_lab(tmp_path / "house")


def hand_in(course, lab, student, text="", judged=None, **told):
    """Hand in an answer, and have the judge's result for it kept."""
    place = course / "submitted" / student / lab.folder.name
    (place / "src").mkdir(parents=True)
    (place / "src" / "counted.py").write_text(text or answer() + f"# {student}\n", encoding="utf-8")
    if judged:
        submission = read_submission(lab, place)
        result = JudgedSubmission(lab.folder.name, submission.key, judged, **told)
        save(kept_at(results_of(course), submission, hidden_seed(course)), result)
    return place


def table_of(course, lab, tmp_path):
    write_csv(tmp_path / "counts.csv", class_board(course / "submitted", [lab]))
    with (tmp_path / "counts.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_a_line_a_student_and_trace(course, lab, tmp_path):
    hand_in(course, lab, "ann", judged="judged", counts={CHAT: COUNTED, DOCUMENTS: OTHER})
    hand_in(course, lab, "bob", judged="judged", counts={DOCUMENTS: OTHER})
    hand_in(course, lab, "cec", judged="refused", reason="=1+1")
    hand_in(course, lab, "dan")
    rows = table_of(course, lab, tmp_path)
    assert [(row["student"], row["trace"], row["status"], row["requests_in_time"]) for row in rows] == [
        ("ann", "chat", "counted", "5"),
        ("ann", "documents", "counted", "2"),
        ("bob", "chat", "nothing counted", ""),
        ("bob", "documents", "counted", "2"),
        ("cec", "chat", "refused", ""),
        ("cec", "documents", "refused", ""),
        ("dan", "chat", "not judged", ""),
        ("dan", "documents", "not judged", ""),
    ]
    assert list(rows[0]) == [
        *("student", "lab", "trace", "status", "requests_in_time", "bytes_read_a_token", "prefix_tokens_not_computed"),
        *("tokens_computed_again", "peak_blocks", "peak_bytes", "bytes_read", "tokens"),
    ]
    assert list(rows[1].values())[4:] == ["2", "2250.25", "12", "0", "8", "10240", "9001", "4"]


def test_what_lies_in_a_submission_is_not_read(course, lab, tmp_path):
    """A board, a history and a result of one's own making change nothing."""
    forged = COUNTED | {"in_time": 10**9}
    honest = hand_in(course, lab, "ann", judged="judged", counts={CHAT: COUNTED, DOCUMENTS: COUNTED})
    for name, text in {
        "board.json": json.dumps({"traces": {"gold": "mine"}, "references": []}),
        ".lab/lab90-board.json": json.dumps({"runs": [{"day": "2026-01-01", "file": "", "board": "",
                                                       "counts": {"chat": forged}}]}),
        f"judged/{lab.folder.name}/result.json": json.dumps({"counts": {CHAT: forged}}),
    }.items():  # fmt: skip
        (honest / name).parent.mkdir(parents=True, exist_ok=True)
        (honest / name).write_text(text, encoding="utf-8")
    assert {(row["trace"], row["requests_in_time"]) for row in table_of(course, lab, tmp_path)} == {
        ("chat", "5"),
        ("documents", "5"),
    }


@pytest.mark.parametrize("name", ["=1+1", "+cmd", "-2", "@SUM", "a\x1b[2Jb", "a\nb", "\tx"])
def test_no_name_is_a_formula_or_steers(course, lab, tmp_path, name):
    hand_in(course, lab, name, judged="judged", counts={CHAT: COUNTED})
    for row in table_of(course, lab, tmp_path):
        assert row["student"][0] not in "=+-@\t"
        assert row["student"].isprintable()


def test_only_labs_with_a_board_and_somebody_who_handed_in(course, lab):
    with pytest.raises(NothingToGrade, match="holds no STUDENT/LAB folder for lab90"):
        class_board(course / "submitted", [lab])
    hand_in(course, lab, "ann")
    (lab.folder / "board.json").unlink()
    with pytest.raises(NoBoard, match="lab90 has no board"):
        class_board(course / "submitted", [lab])


def verdict(test, *lines, **told):
    return Verdict(test, "serve", State.WRONG if lines else State.PASSED, lines, **told)


def test_a_result_holds_the_counts_of_tests_that_passed(lab):
    run = SuiteRun([verdict("test_board[chat]", counts=COUNTED), verdict("test_else")], 2)
    assert judged_run(lab, "key", run).counts == {CHAT: COUNTED}
    failed = SuiteRun([verdict("test_board[chat]", "off", counts=COUNTED)], 1)
    assert judged_run(lab, "key", failed).counts == {}
    cut = SuiteRun([verdict("test_board[chat]", counts=COUNTED)], 2)
    assert judged_run(lab, "key", cut).counts == {}, "a suite that did not run to its end has counted nothing"


def test_counts_that_rest_on_too_much_memory_do_not_stand(lab):
    """What is kept on the side, unseen by the meters, is in no plan. Other tests that fail cost points alone."""
    counted, other = verdict("test_board[chat]", counts=COUNTED), verdict("test_shared", "off", kind=Kind.SMALL)
    hidden = verdict("test_outside", f"{NEEDS_MORE} 8 MiB", kind=Kind.SMALL, outside=True)
    assert judged_run(lab, "key", SuiteRun([counted, other], 2)).counts == {CHAT: COUNTED}
    assert judged_run(lab, "key", SuiteRun([counted, hidden], 2)).counts == {}
    assert judged_run(lab, "key", SuiteRun([counted, other, hidden], 3)).counts == {}


def test_counts_travel_with_a_verdict():
    from dataclasses import asdict

    told = verdict("test_board[chat]", counts=COUNTED)
    assert verdict_from(json.loads(json.dumps(asdict(told)))) == told
    assert hash(told) == hash(verdict("test_board[chat]"))
