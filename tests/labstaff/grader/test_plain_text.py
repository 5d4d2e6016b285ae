"""Text that others wrote: on one line, and no formula."""

from __future__ import annotations

import os

import pytest

from labstaff.grader.plain_text import LONGEST_CELL, cell, lines, long_cell, one_line


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("ada", "ada"),
        ("Zoë Ångström √", "Zoë Ångström √"),
        ("a\nFAILED: b", r"a\x0aFAILED: b"),
        ("\x1b[31m", r"\x1b[31m"),
        ("a\u202eb\u200b", r"a\u202eb\u200b"),
        (os.fsdecode(b"\xff"), r"\xff"),
        ("\ud800", r"\ud800"),
        ("x" * 300, "x" * 199 + "…"),
    ],
)
def test_a_name_on_one_line(text, shown):
    assert one_line(text) == shown


def test_a_text_of_several_lines_keeps_its_lines():
    assert lines("a\r\nb\tc\x1b") == "a\nb\tc\\x1b"


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", " =1", "＝1+1", "\u3000＋1", "﹢1", "\ufe6bx"])
def test_a_cell_is_no_formula(text):
    assert cell(text) == f"'{text}"


@pytest.mark.parametrize("begins", ["=1", '"=1', ' "" @x', "\u3000＋1"])
def test_nothing_in_a_cell_begins_a_formula_where_a_spreadsheet_divides_it(begins):
    for sign in (";", "\n", "\t"):
        assert long_cell(f"N - 1{sign}{begins}") == f"N - 1{sign}'{begins}"
    assert cell(f"N - 1;{begins}") == f"N - 1;'{begins}"


def test_a_long_cell_is_cut_before_a_spreadsheet_does_it():
    assert long_cell("a" * LONGEST_CELL) == "a" * LONGEST_CELL
    assert long_cell("a" * (LONGEST_CELL + 1)) == "a" * LONGEST_CELL + "\n… (cut)"
