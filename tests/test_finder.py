"""One name, several files: the import finder serves whichever answer it was given."""

from __future__ import annotations

import importlib
import sys

import pytest
from student import LAB, solution_text

from labkit.suite.finder import Answer, AnswerFinder, AnswerMissing, solution_answer, student_answer, variant_answer


@pytest.fixture
def imported(tmp_path):
    """A function that imports `profiling` from given source texts, run one after the other."""
    finders = []

    def load(*sources):
        files = []
        for i, source in enumerate(sources):
            folder = tmp_path / str(i)
            folder.mkdir(exist_ok=True)
            file = folder / "profiling.py"
            file.write_text(source, encoding="utf-8")
            files.append(file)
        finder = AnswerFinder([Answer(LAB, tuple(files))])
        finders.append(finder)
        finder.install()
        return importlib.import_module("profiling")

    yield load
    for finder in finders:
        finder.remove()


def test_where_answers_lie():
    assert student_answer(LAB).files == (LAB.answer_file,)
    (solution,) = solution_answer(LAB).files
    assert solution.is_file()
    assert variant_answer(LAB, LAB.folder / "x.py").files == (solution, LAB.folder / "x.py")


def test_serves_the_file_and_nothing_else(imported):
    module = imported(solution_text())
    assert module.estimate_attention_memory(4, 2)["total_memory"] == 4 * (4 * 4 * 2 + 16)
    assert AnswerFinder([student_answer(LAB)]).find_spec("numpy") is None


def test_a_variant_replaces_functions_also_for_their_callers(imported):
    module = imported(
        "import math\ndef helper(): return 1\ndef standard_attention(): return helper()",
        "def helper(): return math.floor(2.5)",
    )
    assert module.standard_attention() == 2


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
        AnswerMissing, match=r"importing profiling.py never ended: still running after 0.2 s \(line [12]"
    ):
        module.standard_attention()


def test_text_that_is_not_utf8(imported, tmp_path):
    folder = tmp_path / "latin"
    folder.mkdir()
    file = folder / "profiling.py"
    file.write_bytes("# caf\xe9\n".encode("latin-1"))
    finder = AnswerFinder([Answer(LAB, (file,))])
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
