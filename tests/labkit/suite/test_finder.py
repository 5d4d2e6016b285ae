"""One name, several files: the import finder serves whichever answer it was given."""

from __future__ import annotations

import importlib
import sys

import pytest

from labkit.labs.catalog import solution_file
from labkit.suite.finder import Answer, AnswerFinder, AnswerMissing, student_answer
from labstaff.pytest_plugin import variant_text
from tests.student import LAB, solution_text


@pytest.fixture
def imported(tmp_path):
    """A function that imports `profiling` from a given source text."""
    finders = []

    def load(source):
        file = tmp_path / "profiling.py"
        file.write_text(source, encoding="utf-8")
        finder = AnswerFinder([Answer(LAB, file)])
        finders.append(finder)
        finder.install()
        return importlib.import_module("profiling")

    yield load
    for finder in finders:
        finder.remove()


def test_where_answers_lie():
    assert student_answer(LAB).file == LAB.answer_file
    assert solution_file(LAB).is_file()


def test_serves_the_file_and_nothing_else(imported):
    module = imported(solution_text())
    assert module.estimate_attention_memory(4, 2)["total_memory"] == 4 * (4 * 4 * 2 + 16)
    assert AnswerFinder([student_answer(LAB)]).find_spec("numpy") is None


def test_a_variant_replaces_functions_also_for_their_callers(imported, tmp_path):
    other = tmp_path / "other.py"
    other.write_text("def estimate_attention_memory(*args, **kwargs): return 7\n", encoding="utf-8")
    assert imported(variant_text(LAB, other)).estimate_attention_memory(4, 2) == 7


def test_leaves_no_module_behind(imported):
    module = imported(solution_text())
    finder = next(entry for entry in sys.meta_path if isinstance(entry, AnswerFinder) and LAB.module in entry.answers)
    assert sys.modules["profiling"] is module
    finder.remove()
    assert "profiling" not in sys.modules
    assert finder not in sys.meta_path


def test_what_is_missing_says_so_when_it_is_used(imported):
    module = imported("x = 1")
    with pytest.raises(AnswerMissing, match=r"profiling\.py defines no standard_attention"):
        module.standard_attention()
    with pytest.raises(AnswerMissing):
        _ = module.standard_attention.apply
    assert not hasattr(module.standard_attention, "__len__")


def test_an_import_that_never_ends(imported, monkeypatch):
    monkeypatch.setattr("labkit.suite.finder.IMPORT_SECONDS", 0.2)
    module = imported("while True:\n    pass")
    with pytest.raises(
        AnswerMissing, match=r"importing profiling.py took too long: still running after 0.2 s of CPU time \(line [12]"
    ):
        module.standard_attention()


def test_a_byte_order_mark_and_other_line_ends_are_no_errors(imported):
    source = "\ufeff" + solution_text().replace("\n", "\r\n")
    assert imported(source).estimate_attention_memory(4, 2)["total_memory"] == 4 * (4 * 4 * 2 + 16)


def test_text_that_is_not_utf8(imported, tmp_path):
    folder = tmp_path / "latin"
    folder.mkdir()
    file = folder / "profiling.py"
    file.write_bytes("# caf\xe9\n".encode("latin-1"))
    finder = AnswerFinder([Answer(LAB, file)])
    finder.install()
    try:
        with pytest.raises(AnswerMissing, match=r"profiling\.py is not UTF-8 text"):
            importlib.import_module("profiling").standard_attention()
    finally:
        finder.remove()


def test_the_plugin_imports_nothing_heavy():
    """What a NumPy lab pays for labkit: no torch, no matplotlib, no nbgrader, no rich."""
    import subprocess

    heavy = {"torch", "matplotlib", "nbgrader", "rich", "numpy"}
    code = f"import sys, labkit.suite.plugin; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
