"""Messages of single tests, and the lines of a run."""

from __future__ import annotations

import importlib

import pytest
import torch

from labkit.suite.messages import change_lines, explain, failure_lines, run_lines
from labkit.suite.results import Failure, State, TestResult, add_up
from tests.student import results, solution_text, student_lab

FIRST, SECOND, THIRD = "standard_attention", "measure_attention_memory", "profile_memory_scaling"


@pytest.fixture
def lab(tmp_path):
    """Lab 01 with the solution as a student's file."""
    return student_lab(tmp_path, solution_text())


def wrong(task, test="test", line="off"):
    return TestResult(test, task, State.WRONG, Failure(line))


def explained(folder, body):
    """The state, and the message of an exception that a student's function raises."""
    file = folder / "mine.py"
    file.write_text(f"def task():\n    {body}\n", encoding="utf-8")
    namespace = {}
    exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"), namespace)
    with pytest.raises(BaseException) as caught:  # noqa: PT011
        namespace["task"]()
    caught.value.add_note("Usual cause: sizes")
    state, failure = explain(caught.value, [file])
    return state, failure_lines(state, failure)


@pytest.mark.parametrize(
    ("body", "first"),
    [
        ("raise ValueError('sizes')", "task raised ValueError: sizes"),
        ("raise SystemExit(0)", "task raised SystemExit: 0"),
        ("[].shape", "task raised AttributeError: 'list' object has no attribute 'shape'"),
    ],
)
def test_an_exception_of_the_students_names_function_line_and_cause(tmp_path, body, first):
    state, lines = explained(tmp_path, body)
    assert state is State.CRASHED
    assert lines == (first, f"at mine.py:2: {body}", "Usual cause: sizes")


def test_an_error_in_a_second_file_is_the_students(tmp_path, monkeypatch):
    """Called by the test, without a line of the first file: whose error it is goes by folder."""
    (tmp_path / "second_of_mine.py").write_text("def helper():\n    return [].shape\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    helper = importlib.import_module("second_of_mine").helper
    with pytest.raises(AttributeError) as caught:
        helper()
    state, failure = explain(caught.value, [tmp_path / "mine.py"])
    assert state is State.CRASHED
    assert failure_lines(state, failure)[1] == "at second_of_mine.py:2: return [].shape"


@pytest.mark.parametrize(
    ("body", "is_a_launch"), [("(f := lambda x: x)[(1,)](3)", True), ("(f := lambda x: x)[0]", False)]
)
def test_a_kernel_without_jit_is_told_from_other_functions(tmp_path, body, is_a_launch):
    _, lines = explained(tmp_path, body)
    assert any("@triton.jit" in line for line in lines) == is_a_launch


def test_what_autograd_says_of_a_function_has_a_cause():
    """The student's file is not in the traceback: autograd looks at what `backward` returned after the return."""

    class Short(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, n):
            return x * n

        @staticmethod
        def backward(ctx, grad):
            return grad

    with pytest.raises(RuntimeError) as caught:
        Short.apply(torch.ones(2, requires_grad=True), 3).sum().backward()
    lines = failure_lines(*explain(caught.value, []))
    assert lines[-1].startswith("Usual cause: a value is missing in what backward returns")


def test_a_long_line_is_folded_to_its_end(tmp_path):
    _, lines = explained(tmp_path, "raise ValueError('sizes ' * 30 + 'END')")
    assert lines[1].endswith("sizes END")
    assert max(map(len, lines)) <= 160


def test_no_style_is_read_from_a_text(lab):
    """A message that looks like a line of a run is shown as a message."""
    lines = run_lines(lab, [wrong(FIRST, line="next: · done ★ start here")])
    assert {str(line).strip(): line.style for line in lines if "✗" in line or "done ★" in line} == {
        "✗ test": "red",
        "next: · done ★ start here": "",
    }


def test_a_task_refers_to_the_first_undone_one_that_it_calls(lab):
    estimate = lab.tasks[3].name
    lines = run_lines(lab, [wrong(FIRST), wrong(SECOND), wrong(THIRD), wrong(estimate)])
    refers = f"  your code for it calls {FIRST}, which is not right yet: fix {FIRST} first"
    assert [line for line in lines if "calls" in line] == [refers] * 2
    lines = run_lines(lab, [TestResult("test", FIRST, State.PASSED), wrong(SECOND), wrong(THIRD)])
    refers = f"  your code for it calls {SECOND}, which is not right yet: fix {SECOND} first"
    assert [line for line in lines if "calls" in line] == [refers]
    lab.student_file.write_text("def (", encoding="utf-8")
    assert "calls" not in "\n".join(run_lines(lab, [wrong(FIRST), wrong(SECOND)]))


@pytest.mark.parametrize("everything", [False, True])
def test_equal_failures_are_folded(lab, everything):
    given = [wrong(FIRST, f"test_a[{i}]", "TypeError") for i in range(22)]
    given += [wrong(FIRST, f"test_b[{i}]", f"off by {i}") for i in range(4)]
    lines = run_lines(lab, given, everything=everything)
    assert lines.count("      TypeError") == 1
    assert "      and 21 more tests: the same (test_a)" in lines
    assert ("  ✗ and 2 more of test_b (-v shows all)" in lines) != everything
    assert ("      off by 3" in lines) == everything


@pytest.mark.parametrize("details", [False, True])
def test_details_are_shown_where_asked_for_and_make_no_failure_another(lab, details):
    failures = [Failure("O is off", details=(f"case {i}",)) for i in range(2)]
    given = [TestResult(f"test_a[{i}]", FIRST, State.WRONG, each) for i, each in enumerate(failures)]
    lines = run_lines(lab, given, details=details)
    assert ("        case 0" in lines) == details
    assert "      and 1 more test: the same (test_a)" in lines


def test_a_comparison_that_failed_has_the_line_of_the_test_and_its_notes_as_details():
    error = AssertionError("O is off")
    error.add_note("compared with the reference")
    with pytest.raises(AssertionError) as caught:
        raise error
    _, failure = explain(caught.value, [])
    assert failure.details[0].startswith("test_messages.py:")
    assert failure.details[0].endswith(": raise error")
    assert failure.details[1:] == ("compared with the reference",)


def test_many_failures_are_named(lab):
    own = [each for each in results(lab, standard_attention=0) if each.task == FIRST]
    lines = run_lines(lab, own)
    assert lines[-4] == "  ✗ and 7 more of test_3, test_4, test_5, test_6 … (-v shows all)"
    assert len([line for line in run_lines(lab, own, everything=True) if "✗" in line]) == 10


def test_a_run_of_one_task_has_lines_of_that_task_only(lab):
    lines = run_lines(lab, [each for each in results(lab, plot_memory_scaling=7) if each.task == "plot_memory_scaling"])
    assert lines[0] == "lab01 · plot_memory_scaling · 7 of 10 tests pass"
    assert lines[-1].startswith("next: plot_memory_scaling")
    assert FIRST not in "\n".join(lines)


def test_changes_since_the_run_before(lab):
    before = add_up(lab, results(lab, standard_attention=4, analyze_scaling=9))
    after = add_up(lab, results(lab, standard_attention=10, analyze_scaling=8))
    assert change_lines(lab, before, after) == [
        "▲ lab01 · standard_attention · 4 → 10 of 10",
        "▼ lab01 · analyze_scaling · 9 → 8 of 10",
    ]
    assert change_lines(lab, after, after) == []


def test_a_later_test_names_the_cause_of_the_first_failure(lab):
    known = Failure("off", "the scores are not divided", "the scores are not divided")
    later = TestResult("test_later", FIRST, State.WRONG, known)
    lines = run_lines(lab, [wrong(FIRST, "test_first"), later])
    first = lines.index("  ✗ test_first")
    assert lines[first + 2] == "      test_later recognises a cause: the scores are not divided"
    assert not any("recognises a cause" in line for line in run_lines(lab, [later, wrong(FIRST, "test_first")]))


@pytest.mark.parametrize("n_without", [3, 4])
def test_a_cause_that_most_tests_exclude_is_not_named(lab, n_without):
    cause = "the scale is taken from the number of keys"
    others = [
        TestResult(f"test_{number}", FIRST, State.WRONG, Failure("off", excluded=(cause,)))
        for number in range(n_without)
    ]
    later = TestResult("test_later", FIRST, State.WRONG, Failure("off", cause, cause))
    lines = run_lines(lab, [*others, later])
    assert any("recognises a cause" in line for line in lines) == (n_without == 3)
