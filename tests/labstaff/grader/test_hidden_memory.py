"""Memory that is hidden from the meters in the process: the operating system measures it too."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labkit.labs.catalog import find_lab, solution_file
from labkit.suite.limits import Exceeded, Limit
from labkit.suite.messages import result_lines
from labkit.suite.results import Failure, Kind, State, SuiteRun, TestResult
from labkit.testing.memory_limit import needs_more
from labstaff.course.preprocessors import check_outputs
from labstaff.grader.grade import graded_run
from labstaff.grader.runner import SandboxedRunner
from labstaff.grading.run import grade_submitted

pytestmark = pytest.mark.slow

HIDING_NUMPY = {
    "in_the_open": ("S = np.empty((len(Q), len(K)), np.float32)", ""),
    "workspace": ("S = WORKSPACE[: len(Q), : len(K)]", "WORKSPACE = np.ones((4096, 4096), np.float32)"),
    "rows_one_by_one": ("S = [np.empty(len(K), np.float32) for _ in range(len(Q))]", ""),
}
"""Ways to make the whole matrix in a function of Q and K: lines in the function, and above it."""

HIDING_TORCH = {
    "in_the_open": ("S = torch.empty(len(Q), len(K))", ""),
    "numpy_instead": ("S = np.empty((len(Q), len(K)), np.float32)", ""),
    "workspace": ("S = torch.empty(0).set_(WORKSPACE.untyped_storage())", "WORKSPACE = torch.ones(4096, 4096)"),
    "by_growing_a_storage": ("S = torch.empty(1); S.resize_(len(Q), len(K))", ""),
}


def hiding(number, task, ways, head):
    """Lab `number`'s solution, whose `task` makes the whole matrix first, in each of `ways`; and as it is."""
    solution = solution_file(find_lab(number)).read_text(encoding="utf-8")
    texts = {"": solution}
    for name, (lines, before) in ways.items():
        body = f"_honest = {task}\n\n\ndef {task}(Q, K, *rest, **options):\n    {lines}\n"
        texts[name] = f"{solution}\n\n{head}\n{before}\n{body}    return _honest(Q, K, *rest, **options)\n"
    return texts


@pytest.fixture(scope="module")
def seen_from_outside(tmp_path_factory):
    """Runs of the tests that measure from outside, by task and way."""
    runs = {}
    with SandboxedRunner() as runner:
        for number, task, test, ways, head in HIDING:
            for name, text in hiding(number, task, ways, head).items():
                folder = tmp_path_factory.mktemp("hiding")
                (folder / f"{find_lab(number).module}.py").write_text(text, encoding="utf-8")
                tests = (f"{test}::test_no_matrix_seen_from_outside",)
                runs[task, name] = runner.run(f"lab{number}", "--src", str(folder), tests=tests)
    return runs


HIDING = (
    ("04", "tiled_attention", "TestTiledAttention", HIDING_NUMPY, "import numpy as np"),
    ("05", "flash_forward", "TestFlashForward", HIDING_TORCH, "import numpy as np, torch"),
    ("05", "flash_backward", "TestFlashBackward", HIDING_TORCH, "import numpy as np, torch"),
)


@pytest.mark.parametrize(("task", "name"), [(each[1], name) for each in HIDING for name in ("", *each[3])])
def test_memory_cannot_be_hidden(task, name, seen_from_outside):
    run = seen_from_outside[task, name]
    (result,) = run.results
    assert result.memory_limit
    assert result.passed == (name == ""), (run.ended, result.failure)
    assert not name or f"{task} needs more than" in result_lines(result)[0], result.failure


def test_memory_hidden_from_the_meters_costs_the_task_and_is_told():
    lab = find_lab("05")
    seen = TestResult("test_memory", "flash_forward", State.PASSED, drawn=True, kind=Kind.COST)
    right = TestResult("test_result", "flash_forward", State.PASSED, drawn=True)
    words = needs_more("flash_forward", 22, ())
    why = Failure(words, exceeded=Exceeded(Limit.MEMORY, 22))
    outside = TestResult("test_outside", "flash_forward", State.WRONG, why, kind=Kind.COST, memory_limit=True)
    hidden = graded_run(lab, "", SuiteRun([seen, right, outside], 3))
    assert hidden.shares["flash_forward"] == 0
    assert any("flash_forward: no points: measured by the operating system" in flag for flag in hidden.flags)
    open_about_it = graded_run(lab, "", SuiteRun([replace(seen, state=State.WRONG), right, outside], 3))
    assert open_about_it.shares["flash_forward"] > 0
    assert not open_about_it.flags


def test_what_is_hidden_earns_nothing_and_stands_in_summary_and_feedback(tmp_path):
    """`lab grade`, with blocks joined in a workspace that was there before any meter looked."""
    lab = find_lab("03")
    folder = tmp_path / "submitted" / "ann" / lab.folder.name / "src"
    folder.mkdir(parents=True)
    text = solution_file(lab).read_text(encoding="utf-8")
    (folder / f"{lab.module}.py").write_text(f"{text}\nWORKSPACE = np.ones(1 << 23)\n", encoding="utf-8")
    said: list[str] = []
    (outcome,) = grade_submitted(tmp_path / "submitted", [lab], say=said.append, workers=1)
    graded = outcome.result
    hiding = [
        task for task in lab.tasks if any(f"{task.tests}::" in name and "outside" in name for name in graded.tests)
    ]
    assert len(hiding) == 3
    for task in lab.tasks:
        assert graded.shares[task.name] == (task not in hiding)
        why = "no points: measured by the operating system"
        told = [line for line in said if line.startswith(f"look at: ann: {task.name}: {why}")]
        assert len(told) == (task in hiding)
        page = check_outputs(lab, task, task.points, graded)[0]["text"]
        assert (f"{task.name} needs more than" in page) == (task in hiding)
        assert f"{lab.label} · {task.name} · {graded.shares[task.name] * task.points:g} of" in page
