"""The chapters' tables of bytes: a row that shows its arithmetic comes to what it says, to the byte."""

from __future__ import annotations

import ast
import operator
import re
from fractions import Fraction

import pytest

from labkit.labs.catalog import ROOT

OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
ROW = re.compile(r"^\|(?P<name>[^|]*)\|(?P<sum>[0-9 +/()−-]*·[0-9 ·+/()−-]+)\|(?P<result> *[0-9,]+ *)\|$", re.MULTILINE)
TABLES = {"09_decoding": 5, "12_compressed_cache": 14}
"""How many such rows a chapter has at least: a table that is written another way must not go unread."""


def found_in(chapter: str) -> list[tuple[str, str, int]]:
    """(name, arithmetic, stated result) of the rows of a chapter."""
    text = (ROOT / "docs" / f"{chapter}.md").read_text(encoding="utf-8")
    text = re.sub(r"^(\|[^|]*\|[^|]*\|[^|]*\|).+\|$", r"\1", text, flags=re.MULTILINE)  # three columns are enough
    return [
        (row["name"].strip(), row["sum"].strip(), int(row["result"].replace(",", ""))) for row in ROW.finditer(text)
    ]


def value(arithmetic: str) -> Fraction:
    """What a sum in the chapters' signs comes to, exactly."""

    def of(node: ast.expr) -> Fraction:
        if isinstance(node, ast.BinOp):
            return OPERATIONS[type(node.op)](of(node.left), of(node.right))
        assert isinstance(node, ast.Constant), ast.dump(node)
        return Fraction(node.value)

    return of(ast.parse(arithmetic.replace("·", "*").replace("−", "-"), mode="eval").body)


@pytest.mark.parametrize("chapter", TABLES)
def test_every_row_comes_to_what_it_says(chapter: str) -> None:
    rows = found_in(chapter)
    assert len(rows) >= TABLES[chapter]
    assert [(name, value(arithmetic), said) for name, arithmetic, said in rows if value(arithmetic) != said] == []


def test_what_is_wrong_is_seen() -> None:
    assert value("60 · (512 + 64) · 2") == 69_120
    assert value("32 · 2 · (4 + 32 / 128) / 8") == 34
    assert value("1 − 2 / 3") == Fraction(1, 3)
