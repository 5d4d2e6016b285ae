"""The numbers of the page on evidence that the catalogue knows, and its sums."""

from __future__ import annotations

import re

from labkit.labs.catalog import ROOT, find_labs, solution_folder
from labstaff.authoring.mistakes import mistakes_of

PAGE = (ROOT / "docs" / "evidence.md").read_text(encoding="utf-8")
LABS = [lab for lab in find_labs(ROOT) if not lab.draft]


def test_page_counts_mistakes_and_right_answers():
    mistakes = [mistake for lab in LABS for mistake in mistakes_of(lab)]
    alternatives = [file for lab in LABS for file in (solution_folder(lab) / "alternatives").glob("*.py")]
    assert f"| {len(mistakes):,} |" in PAGE
    assert f"| {sum(bool(mistake.says) for mistake in mistakes):,} |" in PAGE
    assert f"| {len(LABS)} and {len(alternatives)} |" in PAGE


def test_sums_of_blind_answers():
    rows = re.findall(r"^\| (\d\d) \| (\d+) \| (\d+) → (\d+) \| (\d+) \| (\d+)", PAGE, re.MULTILINE)
    assert len(rows) == 9
    _, run, found, found_after, right, refused = (sum(map(int, column)) for column in zip(*rows, strict=True))
    assert f"{found} of {run} found at first sight, {found / run * 100:.0f} %, and {found_after} after" in PAGE
    assert f"{refused} of {right} right ones refused at first, none after" in " ".join(PAGE.split())


def test_sums_of_the_third_round():
    rows = re.findall(r"^\| \d\d \| (\d+) \| (\d+) \| (.+) \| (.+) \| (.+) \| (.+) \| (.+) \|$", PAGE, re.MULTILINE)
    firsts, afters = (
        [sum(int(cell.split(" → ")[end]) for cell in column) for column in zip(*rows, strict=True)] for end in (0, -1)
    )
    wrong, right, refused, found, *messages = firsts
    assert sum(messages) == found and sum(afters[4:]) == afters[3] == wrong
    text = " ".join(PAGE.split())
    assert f"{found} of {wrong} found at first sight, and {afters[3]} after; {refused} of {right} right ones" in text
    assert f"{messages[-1]} first messages with a false cause, none after" in text and afters[2] == afters[-1] == 0
