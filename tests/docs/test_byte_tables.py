"""The chapters' tables of bytes: the arithmetic in a row equals its result, to the byte."""

from __future__ import annotations

import ast
import operator
import re
from fractions import Fraction

import pytest

from labkit.labs.catalog import ROOT

OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
ROW = re.compile(r"^\|(?P<name>[^|]*)\|(?P<sum>[0-9 +/()−-]*·[0-9 ·+/()−-]+)\|(?P<result> *[0-9,]+ *)\|$", re.MULTILINE)
TABLES = {"09_decoding": 5, "12_compressed_cache": 9, "14_selected_attention": 24, "15_recurrent_state": 4}
"""The least number of such rows in a chapter, so that a table in another form is noticed."""


def found_in(chapter: str) -> list[tuple[str, str, int]]:
    """(name, arithmetic, stated result) of the rows of a chapter."""
    text = (ROOT / "docs" / f"{chapter}.md").read_text(encoding="utf-8")
    text = re.sub(r"^(\|[^|]*\|[^|]*\|[^|]*\|).+\|$", r"\1", text, flags=re.MULTILINE)  # three columns are enough
    return [
        (row["name"].strip(), row["sum"].strip(), int(row["result"].replace(",", ""))) for row in ROW.finditer(text)
    ]


def value(arithmetic: str) -> Fraction:
    """The exact value of an expression in the chapters' notation."""

    def of(node: ast.expr) -> Fraction:
        if isinstance(node, ast.BinOp):
            return OPERATIONS[type(node.op)](of(node.left), of(node.right))
        assert isinstance(node, ast.Constant), ast.dump(node)
        return Fraction(node.value)

    return of(ast.parse(arithmetic.replace("·", "*").replace("−", "-"), mode="eval").body)


@pytest.mark.parametrize("chapter", TABLES)
def test_every_row_equals_its_result(chapter: str) -> None:
    rows = found_in(chapter)
    assert len(rows) >= TABLES[chapter]
    assert [(name, value(arithmetic), result) for name, arithmetic, result in rows if value(arithmetic) != result] == []
