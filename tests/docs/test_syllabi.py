"""docs/syllabi.md: each week's hours, and each sum, follow from the labs' manifests."""

from __future__ import annotations

import re

import pytest

from labkit.labs.catalog import ROOT, find_lab, find_labs
from labstaff.authoring.exam_paper import POINTS

PAGE = (ROOT / "docs" / "syllabi.md").read_text(encoding="utf-8")
EXAM_HOURS, EXAM_QUESTIONS = 2, 8
ROW = re.compile(r"^\| (\d+) \| chapters? ([\d, ]+) \| (.+?) \| (.+?) \| (.+?) \| (\d+) \|$", re.MULTILINE)
SUMS = re.compile(r"^\| \*\*all\*\* \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| \*\*(\d+)\*\* \|$", re.MULTILINE)
TASK = re.compile(r"^\| (\d+) \| \[chapter .+? \| `(\w+)` \| \[Lab (\d\d)\]", re.MULTILINE)
LAB = re.compile(r"Lab (\d\d) \(([\d.]+)\)")


def section(heading: str) -> str:
    """The page's text below a heading, up to the next."""
    return PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def numbers(cell: str) -> list[str]:
    return re.findall(r"\d+", cell)


@pytest.mark.parametrize(("heading", "n_weeks"), [("Four weeks", 4), ("A term of twelve weeks", 12)])
def test_hours_add_up(heading: str, n_weeks: int) -> None:
    text = section(heading)
    rows = ROW.findall(text)
    assert [int(row[0]) for row in rows] == list(range(1, n_weeks + 1))
    all_labs, all_hours, n_reviews, n_exams = [], 0.0, 0, 0
    for week, chapters, labs, reviews, exam, hours in rows:
        listed = LAB.findall(labs)
        assert {number: find_lab(number).hours for number, _ in listed} == {n: float(h) for n, h in listed}
        # A chapter's slides and a review take an hour each.
        needs = sum(float(h) for _, h in listed) + len(numbers(chapters)) + len(numbers(reviews))
        assert needs + EXAM_HOURS * bool(numbers(exam)) == int(hours), f"week {week}"
        all_labs += [find_lab(number) for number, _ in listed]
        known = {lab.label for lab in all_labs}
        assert all(known.issuperset(lab.requires) for lab in all_labs), f"week {week} needs a later lab"
        assert {*numbers(reviews), *numbers(exam)} <= {lab.number for lab in all_labs}, f"week {week}"
        all_hours, n_reviews, n_exams = (
            all_hours + int(hours),
            n_reviews + len(numbers(reviews)),
            n_exams + bool(numbers(exam)),
        )
    weekly = [int(row[5]) for row in rows]
    assert f"in {min(weekly)} to {max(weekly)} hours a week" in text
    n_chapters = sum(len(numbers(row[1])) for row in rows)
    lab_hours = sum(lab.hours for lab in all_labs)
    assert [float(each) for each in SUMS.findall(text)[0]] == [n_chapters, lab_hours, n_reviews, n_exams, all_hours]
    reviewed = {number for row in rows for number in numbers(row[3])}
    points = [
        sum(lab.points for lab in all_labs),
        sum(lab.report_points for lab in all_labs),
        sum(lab.review_points for lab in all_labs if lab.number in reviewed),
        n_exams * EXAM_QUESTIONS * POINTS,
    ]
    assert [float(each) for each in numbers(re.findall(r"^Points: .*$", text, re.MULTILINE)[0])] == points
    assert set(re.findall(r"--review (\d\d)", text)) == reviewed
    assert re.findall(r"--labs ([\d,]+)", text) == [",".join(numbers(row[4])) for row in rows if numbers(row[4])]


def test_the_term_has_every_lab_but_two_that_no_other_needs() -> None:
    labs = [number for number, _ in LAB.findall(section("A term of twelve weeks"))]
    left_out = {lab.number for lab in find_labs() if not lab.draft} - {*labs}
    assert left_out == {"10", "11"}
    assert len(labs) == len({*labs})
    needed = {label for number in labs for label in find_lab(number).requires}
    assert not needed & {f"lab{number}" for number in left_out}


def test_the_afternoon_takes_three_hours() -> None:
    text = section("An afternoon")
    tasks = TASK.findall(text)
    for minutes, name, number in tasks:
        lab = find_lab(number)
        task = next(task for task in lab.tasks if task.name == name)
        share = task.points / (lab.points + lab.report_points)
        assert int(minutes) == 5 * round(60 * lab.hours * share / 5), name
    assert len(tasks) == 3
    *parts, total = [int(each) for each in re.findall(r"^\| \**(\d+)\** \|", text, re.MULTILINE)]
    assert sum(parts) == total == 180
