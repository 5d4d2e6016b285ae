"""Which test belongs to which task, which are still to be written, and what changes their fingerprints."""

from __future__ import annotations

import pytest

from labkit.review.file import ReviewProblem, read_review, task_of
from labstaff.derive.build import derive_review
from tests.student import LAB, student_lab

FIRST, SECOND = (task.name for task in LAB.tasks[:2])


def review_of(tmp_path, text):
    """The review whose file is `text`."""
    lab = student_lab(tmp_path)
    lab.review_file.write_text(text, encoding="utf-8")
    return read_review(lab)


def test_the_longest_name_of_a_task_decides():
    names = ["online_softmax", "online_softmax_stats"]
    assert task_of(names, "test_online_softmax_stats_of_one_block") == "online_softmax_stats"
    assert task_of(names, "test_online_softmax[case-1]") == "online_softmax"
    assert task_of(names, "test_softmax") == ""
    assert task_of(["Checkpoint", "checkpoint"], "test_checkpoint_twice") == "checkpoint"


def test_stub_has_a_test_of_each_task_to_be_written(tmp_path):
    review = review_of(tmp_path, derive_review(LAB))
    assert review.stubs == {task.name for task in LAB.tasks}
    assert review.begun == review.stray == []


def test_tests_in_classes_belong_to_tasks(tmp_path):
    review = review_of(tmp_path, f"class TestAll:\n    def test_{FIRST}_twice(self):\n        pass\n")
    assert review.begun == [FIRST]


def test_tests_of_no_task_are_named(tmp_path):
    assert review_of(tmp_path, "def test_everything():\n    pass\n").stray == ["test_everything"]


def test_fingerprint_depends_on_own_tests_and_helpers(tmp_path):
    text = f"A = 1\n\n\ndef test_{FIRST}():\n    assert A\n\n\ndef test_{SECOND}():\n    assert A == 1\n"
    before = review_of(tmp_path / "before", text).fingerprints
    other = review_of(tmp_path / "other", text.replace("A == 1", "A == 2") + "# a comment\n").fingerprints
    helper = review_of(tmp_path / "helper", text.replace("A = 1", "A = 2")).fingerprints
    assert other[FIRST] == before[FIRST]
    assert other[SECOND] != before[SECOND]
    assert helper[FIRST] != before[FIRST]


def test_a_test_that_another_calls_counts_for_both(tmp_path):
    text = f"def test_{FIRST}(n=1):\n    assert n\n\n\ndef test_{SECOND}():\n    test_{FIRST}(2)\n"
    before = review_of(tmp_path / "before", text).fingerprints
    after = review_of(tmp_path / "after", text.replace("assert n", "assert n > 1")).fingerprints
    assert after[SECOND] != before[SECOND]


@pytest.mark.parametrize("text", ["def test(:\n", "\0", None])
def test_unreadable_file_has_one_line(tmp_path, text):
    lab = student_lab(tmp_path)
    if text is None:
        lab.review_file.unlink()
    else:
        lab.review_file.write_text(text, encoding="utf-8")
    with pytest.raises(ReviewProblem, match=r"review\.py") as caught:
        read_review(lab)
    assert "\n" not in str(caught.value)
