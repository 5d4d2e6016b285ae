"""What is taken out of a suite: the marked, what it needs, and nothing else."""

from __future__ import annotations

import pytest

from labkit.testing import programs
from labkit.testing.programs import ProgramError, program_names, program_text, programs_here

SUITE = '''"""A suite."""

import math
from pathlib import Path, PurePath

from labkit.testing.compare import assert_close
from labkit.testing.programs import program

SECRET = 42
SIZES = program({"small": math.pi})


@program
def measured(name):
    try:
        return _twice(SIZES[name]), Path(".").name
    except KeyError as error:
        return str(error)


@program
def _twice(x):
    return 2 * x


class TestIt:
    def test_it(self):
        assert_close("x", measured("small"), SECRET)
'''


@pytest.fixture
def suite(tmp_path):
    file = tmp_path / "test_it.py"
    file.write_text(SUITE, encoding="utf-8")
    return file


def test_only_the_marked_and_what_it_names(suite):
    text = program_text(suite)
    assert program_names(suite) == ["measured", "_twice"]
    for absent in ("SECRET", "42", "assert_close", "PurePath", "TestIt", "@program", "A suite"):
        assert absent not in text
    namespace = {}
    exec(text, namespace)
    assert namespace["measured"]("small") == (2 * 3.141592653589793, "")
    assert namespace["measured"]("large") == "'large'"


def test_a_program_stands_on_its_line(suite):
    here = SUITE.splitlines().index("def measured(name):")
    assert program_text(suite).splitlines()[here] == "def measured(name):"


def test_what_is_neither_marked_nor_imported_is_named(suite):
    suite.write_text(SUITE.replace("2 * x", "SECRET * x"), encoding="utf-8")
    with pytest.raises(ProgramError, match=r"test_it.py: _twice, a program, names SECRET: mark that too, or import it"):
        program_text(suite)


def test_programs_run_here_whatever_stands_in_for_them(suite, monkeypatch):
    monkeypatch.setattr(programs, "elsewhere", lambda function: lambda *args: f"{function.__name__} ran elsewhere")
    namespace = {"__file__": str(suite)}
    exec(compile(SUITE, str(suite), "exec"), namespace)
    assert namespace["measured"]("small") == "measured ran elsewhere"
    assert programs_here(suite).measured("small")[0] == pytest.approx(6.283185)
