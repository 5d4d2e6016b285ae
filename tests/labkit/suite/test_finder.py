"""The import finder: which file a module's name means, and the one-line message for an unusable file."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest
from msgspec.structs import replace

from labkit.labs.catalog import find_labs, solution_file
from labkit.suite.finder import LabFinder, Source, Unusable, student_source, untouched_tasks
from labstaff.authoring.alternatives import variant_text
from labstaff.derive.build import derive_stub
from tests.student import LAB, solution_text


@pytest.fixture
def imported(tmp_path):
    """A function that imports `profiling` from text or bytes; None means a missing file."""
    finders = []

    def load(source):
        file = tmp_path / "profiling.py"
        if source is not None:
            file.write_bytes(source.encode() if isinstance(source, str) else source)
        finders.append(LabFinder([Source(LAB, file)]))
        finders[-1].install()
        return importlib.import_module("profiling")

    yield load
    for finder in finders:
        finder.remove()


def test_finds_labs_and_nothing_else(imported):
    assert imported(solution_text()).estimate_attention_memory(4, 2)["total_memory"] == 4 * (4 * 4 * 2 + 16)
    assert LabFinder([student_source(LAB)]).find_spec("numpy") is None


def test_a_variant_replaces_functions_for_their_callers_too(imported, tmp_path):
    other = tmp_path / "other.py"
    other.write_text("def estimate_attention_memory(*args, **kwargs): return 7\n", encoding="utf-8")
    assert imported(variant_text(LAB, other)).estimate_attention_memory(4, 2) == 7


@pytest.mark.parametrize(
    "encoded",
    [
        "# coding: latin-1\nNAME = 'café'\n".encode("latin-1"),
        "NAME = 'café'\n".encode("utf-16"),
        "NAME = 'café'\n".encode("utf-8-sig"),
    ],
    ids=["latin-1", "utf-16", "utf-8-sig"],
)
def test_a_file_is_read_as_it_is_when_it_is_graded(encoded, imported):
    assert imported(encoded).NAME == "café"


def test_removed_with_its_modules(imported):
    module = imported(solution_text())
    finder = next(each for each in sys.meta_path if isinstance(each, LabFinder) and LAB.module in each.sources)
    assert sys.modules["profiling"] is module
    finder.remove()
    assert "profiling" not in sys.modules
    assert finder not in sys.meta_path


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = 1", "profiling.py defines no standard_attention: was it renamed or deleted?"),
        ("def f(:\n", "profiling.py has a syntax error in line 1: invalid syntax: def f(:"),
        ("x = 1\0", "profiling.py has a syntax error: source code string cannot contain null bytes"),
        ("import numpyy\n", "importing profiling.py failed: ModuleNotFoundError: No module named 'numpyy' (line 1"),
        ("1 / 0\n", "importing profiling.py failed: ZeroDivisionError: division by zero (line 1: 1 / 0)"),
        ("import sys\nsys.exit(3)\n", "importing profiling.py failed: SystemExit: 3 (line 2"),
        (
            "from labkit.testing.attention.reference import attention\n",
            "profiling.py imports labkit.testing.attention.reference: your code must work without",
        ),
        ("# café\n".encode("latin-1"), "profiling.py is not UTF-8 text: "),
        ("# coding: ascii\n# café\n".encode(), "profiling.py is not ASCII text: "),
        (b"# coding: zlib\n", "profiling.py has a syntax error: 'zlib' is not a text encoding"),
        (None, "profiling.py cannot be read: No such file"),
    ],
    ids=["missing", "syntax", "NUL", "import", "raises", "exits", "labkit", "latin-1", "ascii", "zlib", "no file"],
)
def test_a_file_that_cannot_be_used_is_one_line_at_each_use(imported, source, message):
    module = imported(source)
    with pytest.raises(Unusable) as caught:
        module.standard_attention()
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
    with pytest.raises(Unusable):
        _ = module.standard_attention.apply
    assert not hasattr(module.standard_attention, "__len__")


def test_an_endless_import(imported, monkeypatch):
    monkeypatch.setattr("labkit.suite.finder.IMPORT_SECONDS", 0.2)
    module = imported("while True:\n    pass")
    message = r"importing profiling.py took too long: still running after 0.2 s of CPU time \(line [12]"
    with pytest.raises(Unusable, match=message):
        module.standard_attention()


def test_a_byte_order_mark_and_other_line_ends_are_no_errors(imported):
    source = "\ufeff" + solution_text().replace("\n", "\r\n")
    assert imported(source).estimate_attention_memory(4, 2)["total_memory"] == 4 * (4 * 4 * 2 + 16)


def test_the_plugin_imports_nothing_heavy():
    """For a NumPy lab the plugin imports no torch, matplotlib, nbgrader or rich."""
    heavy = {"torch", "matplotlib", "nbgrader", "rich", "numpy"}
    code = f"import sys, labkit.suite.plugin; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("lab", find_labs(), ids=lambda lab: lab.label)
def test_a_stub_is_told_from_code_by_reading(lab, tmp_path):
    """Where all of a task is written, or is written a second time, or nothing can be read, only a run knows."""
    own = replace(lab, folder=tmp_path)
    own.student_file.parent.mkdir(exist_ok=True)
    tasks = {task.name for task in lab.tasks}
    first = lab.tasks[0].name
    for text, untouched in {
        derive_stub(lab): tasks,
        f"{derive_stub(lab)}\n{first} = print\n": tasks - {first},
        solution_file(lab).read_text(encoding="utf-8"): set(),
        "def (": set(),
    }.items():
        own.student_file.write_text(text, encoding="utf-8")
        assert untouched_tasks(own) == untouched
