"""The course map's shorter ways: the hours of each are those of its labs."""

from __future__ import annotations

import re

import pytest

from labkit.labs.catalog import ROOT, find_labs

PAGE = (ROOT / "docs" / "course_map.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| ([^|]+) \| chapters [^|]*?, Labs ([^|;]*)[^|]* \| (\d+) \|$", PAGE, re.MULTILINE)


def test_all_ways_are_found() -> None:
    assert len(ROWS) == 6


@pytest.mark.parametrize(("way", "labs", "hours"), ROWS, ids=[row[0] for row in ROWS])
def test_hours_are_the_sum_of_the_labs(way: str, labs: str, hours: str) -> None:
    by_number = {lab.number: lab.hours for lab in find_labs()}
    assert sum(by_number[number] for number in re.findall(r"\d\d", labs)) == int(hours), way
