"""Removes the solution from a source text: nbgrader's markers and stub, with stricter checks."""

from __future__ import annotations

import ast
import re

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
CODE_STUB = ("# YOUR CODE HERE", "raise NotImplementedError()")
TEXT_STUB = "YOUR ANSWER HERE"


class MarkerError(ValueError):
    """Markers that would leak a solution or leave invalid Python; the message names the line."""


def clear_solution(source: str, *, name: str, stub_at_top: bool = False) -> str:
    """`source` with every solution region replaced by the stub, at the indentation of its BEGIN line.

    A region at the left margin holds helpers and imports of the solution: it is left out without a stub, which would
    stop the module's import. In a notebook's cell (`stub_at_top`) it is replaced like any other.

    Raises:
        MarkerError: nested, unpaired or misspelt markers, a marker in a string or behind code, or a result that is
            not valid Python.
    """
    kept: list[str] = []
    opened_at = 0
    for number, line in enumerate(source.splitlines(), start=1):
        text = line.strip()
        if text == BEGIN:
            if opened_at:
                raise MarkerError(f"{name}:{number}: BEGIN SOLUTION inside the region that line {opened_at} opened")
            opened_at = number
            indent = line[: len(line) - len(line.lstrip())]
            if indent or stub_at_top:
                kept += [indent + stub_line for stub_line in CODE_STUB]
        elif text == END:
            if not opened_at:
                raise MarkerError(
                    f"{name}:{number}: END SOLUTION without a BEGIN: everything above it would be released"
                )
            opened_at = 0
        elif re.search(r"(BEGIN|END)\W*SOLUTION", line, re.IGNORECASE):
            raise MarkerError(f"{name}:{number}: a marker must be alone on its line, as {BEGIN!r} or {END!r}")
        elif not opened_at:
            kept.append(line.rstrip())
    if opened_at:
        raise MarkerError(f"{name}:{opened_at}: BEGIN SOLUTION without an END")
    cleared = "\n".join(kept).strip("\n") + "\n"
    try:
        ast.parse(cleared)
    except SyntaxError as error:
        raise MarkerError(
            f"{name}: without its solutions line {error.lineno} is not valid Python: {error.msg}"
        ) from None
    return re.sub(r"\n{4,}", "\n\n\n", cleared)


def solution_regions(source: str) -> list[list[str]]:
    """The solution regions in order, each as its lines, stripped, without empty ones."""
    regions: list[list[str]] = []
    inside = False
    for line in source.splitlines():
        text = line.strip()
        if text in (BEGIN, END):
            inside = text == BEGIN
            if inside:
                regions.append([])
        elif inside and text:
            regions[-1].append(text)
    return regions
