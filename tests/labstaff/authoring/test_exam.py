"""`lab exam`: questions from the mistakes, none twice in a folder, none answered by another listing."""

from __future__ import annotations

import itertools
import json
import re

import pytest

from labkit.labs.catalog import find_lab, find_labs, solution_file
from labstaff.authoring import exam_paper
from labstaff.authoring.exam import MOST_WRONG, ExamError, choose, exercises_of
from labstaff.authoring.exam_paper import key, paper, write_exam

pytestmark = pytest.mark.slow
LAB03 = find_lab("03")


@pytest.mark.parametrize("lab", find_labs(), ids=lambda lab: lab.label)
def test_every_lab_has_questions_with_a_key(lab):
    exercises = exercises_of(lab)
    assert len(exercises) >= 10
    for each in exercises:
        assert 1 <= len(each.wrong) <= MOST_WRONG
        found, message = exam_paper._shown_by(each)
        assert found.startswith("test_"), each.name
        assert any(message), each.name
    assert key(exercises, 1)


def test_mending_the_wrong_lines_gives_the_solution():
    solution = solution_file(LAB03).read_text(encoding="utf-8")
    for each in exercises_of(LAB03):
        start, end = each.wrong[0] - 1, each.wrong[-1]
        mended = [*each.listing[:start], *each.right, *each.listing[end:]]
        known = {line.strip() for line in solution.splitlines()}
        assert all(line.strip() in known for line in mended), each.name
        assert any(line.strip() not in known for line in each.listing), each.name


def test_a_listing_has_no_comments():
    comment = re.compile(r"\s# \w")
    assert not [line for each in exercises_of(LAB03) for line in each.listing if comment.search(line)]


def test_no_listing_gives_another_away():
    chosen = choose(find_labs(), 20, 5, ())
    assert not [(a.name, b.name) for a, b in itertools.combinations(chosen, 2) if a.gives_away(b)]


def test_a_seed_chooses_the_same_paper():
    labs = [LAB03, find_lab("05")]
    first, again, other = (paper(choose(labs, 4, seed, ()), 1) for seed in (1, 1, 2))
    assert first == again != other


def test_no_question_is_in_two_papers(tmp_path, monkeypatch):
    monkeypatch.setattr(exam_paper, "print_pdf", _no_pdf)
    for seed in range(4):
        write_exam([LAB03], tmp_path, seed, 3)
    asked = [name for names in json.loads((tmp_path / "asked.json").read_text()).values() for name in names]
    assert len(asked) == len(set(asked)) == 12


def test_a_paper_is_not_overwritten(tmp_path, monkeypatch):
    monkeypatch.setattr(exam_paper, "print_pdf", _no_pdf)
    write_exam([LAB03], tmp_path, 1, 2)
    before = (tmp_path / "paper_1.md").read_text()
    with pytest.raises(ExamError, match="has a paper 1 already"):
        write_exam([LAB03], tmp_path, 1, 3)
    assert (tmp_path / "paper_1.md").read_text() == before


def test_too_few_questions_write_nothing(tmp_path):
    with pytest.raises(ExamError, match="of 30 questions can be made"):
        write_exam([LAB03], tmp_path / "exams", 1, 30)
    assert not (tmp_path / "exams").exists()


def test_the_paper_has_no_answers(tmp_path):
    chosen = choose([LAB03], 4, 3, ())
    text = paper(chosen, 3)
    assert not [each.name for each in chosen if each.mistake.what in text or each.mistake.name in text]
    assert all(each.mistake.what in key(chosen, 3) for each in chosen)


def _no_pdf(html, pdf):
    return "not in this test"
