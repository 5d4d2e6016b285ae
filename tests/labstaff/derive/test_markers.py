"""Stubs follow nbgrader's rules and refuse its traps."""

from __future__ import annotations

import pytest

from labkit.labs.catalog import find_labs, solution_file
from labstaff.derive.markers import BEGIN, END, MarkerError, clear_solution, solution_regions

SOURCE = f'''"""A module."""

import math

{BEGIN}
import cmath


def _helper(x):
    return cmath.sqrt(x)


{END}
def root(x):
    """The root of x."""
    {BEGIN}
    if x < 0:
        return _helper(x)
    return math.sqrt(x)
    {END}


class Counter:
    """Counts."""

    def up(self):
        """Adds one."""
        {BEGIN}
        self.n += 1
        {END}
'''

STUB = '''"""A module."""

import math

def root(x):
    """The root of x."""
    # YOUR CODE HERE
    raise NotImplementedError()


class Counter:
    """Counts."""

    def up(self):
        """Adds one."""
        # YOUR CODE HERE
        raise NotImplementedError()
'''


def test_stub():
    assert clear_solution(SOURCE, name="x.py") == STUB


def test_line_endings_are_made_one(tmp_path):
    assert clear_solution(SOURCE.replace("\n", "\r\n"), name="x.py") == STUB


def test_solution_regions():
    assert solution_regions(SOURCE) == [
        ["import cmath", "def _helper(x):", "return cmath.sqrt(x)"],
        ["if x < 0:", "return _helper(x)", "return math.sqrt(x)"],
        ["self.n += 1"],
    ]


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (f"def f():\n    {BEGIN}\n    return 1\n", "x.py:2: BEGIN SOLUTION without an END"),
        (f"def f():\n    return 1\n    {END}\n", "x.py:3: END SOLUTION without a BEGIN"),
        (f"def f():\n    {BEGIN}\n    {BEGIN}\n    {END}\n", "x.py:3: BEGIN SOLUTION inside the region that line 2"),
        (f"text = 'the {BEGIN} marker'\n", "x.py:1: a marker must be alone on its line"),
        (f"x = 1  {BEGIN}\ny = 2\n{END}\n", "x.py:1: a marker must be alone on its line"),
        ("def f():\n    ## BEGIN SOLUTION\n    return 1\n    ## END SOLUTION\n", "x.py:2: a marker must be alone"),
        ("def f():\n    ### begin solution\n    return 1\n", "x.py:2: a marker must be alone"),
        (f"x = f(\n    {BEGIN}\n    1,\n    {END}\n)\n", "x.py: without its solutions line 3 is not valid Python"),
    ],
    ids=["no_end", "no_begin", "nested", "in_a_string", "behind_code", "misspelt", "lower_case", "inside_a_call"],
)
def test_traps(source, says):
    with pytest.raises(MarkerError) as caught:
        clear_solution(source, name="x.py")
    assert says in str(caught.value)


@pytest.mark.parametrize("lab", find_labs(), ids=lambda lab: lab.label)
def test_nbgrader_clears_the_same(lab):
    """nbgrader's own preprocessor, on the solution as one cell, gives our stub."""
    from nbformat.v4 import new_code_cell
    from nbgrader.preprocessors import ClearSolutions

    source = solution_file(lab).read_text(encoding="utf-8")
    cell = new_code_cell(source)
    ClearSolutions()._replace_solution_region(cell, "python")
    ours = clear_solution(source, name="x.py", stub_at_top=True)
    assert [line.rstrip() for line in cell.source.splitlines() if line.strip()] == [
        line for line in ours.splitlines() if line.strip()
    ]
