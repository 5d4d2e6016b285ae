"""What of a submission is read, and memory that is hidden from the meters: the operating system measures it too."""

from __future__ import annotations

import os
import stat
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from labkit.labs.catalog import find_lab, solution_file
from labkit.suite.results import Kind, State, TestResult
from labkit.suite.run import SuiteRun
from labkit.testing.outside import needs_more
from labstaff.course import preprocessors
from labstaff.course.preprocessors import check_outputs
from labstaff.grader import sandbox
from labstaff.grader.grade import graded_run
from labstaff.grader.runner import SandboxedRunner
from labstaff.grader.submission import MOST_BYTES, read_submission
from labstaff.grading.run import grade_submitted
from labstaff.grading.submitted import find_submissions

pytestmark = pytest.mark.slow

LAB = find_lab("01")
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


STUB = LAB.student_file.read_text(encoding="utf-8")


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
    (verdict,) = run.results
    assert verdict.outside
    assert verdict.passed == (name == ""), (run.problem, verdict.lines)
    assert not name or f"{task} needs more than" in verdict.lines[0], verdict.lines


def test_memory_hidden_from_the_meters_costs_the_task_and_is_told():
    lab = find_lab("05")
    seen = TestResult("test_memory", "flash_forward", State.PASSED, drawn=True, kind=Kind.SMALL)
    right = TestResult("test_result", "flash_forward", State.PASSED, drawn=True)
    words = needs_more("flash_forward", 22, ())
    outside = TestResult("test_outside", "flash_forward", State.WRONG, (words,), kind=Kind.SMALL, outside=True)
    hidden = graded_run(lab, "", SuiteRun([seen, right, outside], 3))
    assert hidden.tasks["flash_forward"] == 0
    assert any("flash_forward: no points: measured by the operating system" in flag for flag in hidden.flags)
    open_about_it = graded_run(lab, "", SuiteRun([replace(seen, state=State.WRONG), right, outside], 3))
    assert open_about_it.tasks["flash_forward"] > 0
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
        assert graded.tasks[task.name] == (0 if task in hiding else task.points)
        why = "no points: measured by the operating system"
        told = [line for line in said if line.startswith(f"look at: ann: {task.name}: {why}")]
        assert len(told) == (task in hiding)
        page = check_outputs(lab, task, task.points, graded)[0]["text"]
        assert (f"{task.name} needs more than" in page) == (task in hiding)
        assert f"{lab.label} · {task.name} · {graded.tasks[task.name]:g} of" in page
    cell = preprocessors._notes_cell(graded.flags)
    assert cell["outputs"][0]["text"].count("no points: measured by the operating system") == 3


def submit(tmp_path, **files):
    """A folder with files; a value is a text, or a function that is called with the path."""
    for name, content in files.items():
        path = tmp_path / name.replace("__", "/").replace("_py", ".py").replace("_ini", ".ini").replace("_pth", ".pth")
        path.parent.mkdir(parents=True, exist_ok=True)
        content(path) if callable(content) else path.write_text(content)
    return tmp_path


PLANTED = {
    "conftest": {"src__profiling_py": STUB, "src__conftest_py": "raise SystemExit(0)"},
    "settings": {"src__profiling_py": STUB, "pytest_ini": "[pytest]\naddopts = --co"},
    "numpy": {"src__profiling_py": STUB, "src__numpy_py": "raise SystemExit(0)"},
    "path_file": {"src__profiling_py": STUB, "src__x_pth": "import os; os._exit(0)"},
}


@pytest.mark.parametrize("files", PLANTED.values(), ids=PLANTED)
def test_planted_files_are_left_aside(files, tmp_path):
    submission = read_submission(LAB, submit(tmp_path, **files))
    assert submission.source == STUB.encode()
    assert any("left aside" in flag for flag in submission.flags)


SOLUTION = solution_file(LAB)
NO_FILE = {
    "link_to_the_solution": lambda path: path.symlink_to(SOLUTION),
    "hard_pipe": lambda path: os.mkfifo(path),
    "a_folder": lambda path: path.mkdir(),
    "socket": lambda path: os.mknod(path, stat.S_IFSOCK | 0o600),
}


@pytest.mark.parametrize("make", NO_FILE.values(), ids=NO_FILE)
def test_only_a_regular_file_is_read(make, tmp_path):
    submission = read_submission(LAB, submit(tmp_path, src__profiling_py=make))
    assert not submission.source
    assert "no src/profiling.py, as a regular file" in submission.problem


def test_a_linked_folder_is_not_followed(tmp_path):
    (tmp_path / "src").symlink_to(SOLUTION.parent)
    submission = read_submission(LAB, tmp_path)
    assert not submission.source and submission.problem
    assert any("src is no regular file" in flag for flag in submission.flags)


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    submission = read_submission(LAB, submit(tmp_path, src__profiling_py="#" * (MOST_BYTES + 1)))
    assert "larger than" in submission.problem


def archive(path, entries):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as content:
        for name, text, mode in entries:
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            content.writestr(info, text, zipfile.ZIP_DEFLATED)
    return path


@pytest.mark.parametrize(
    ("entries", "source", "says"),
    [
        ([("src/profiling.py", "x = 1", 0o100644)], b"x = 1", ""),
        ([("me/src/profiling.py", "x = 1", 0o100644)], b"x = 1", ""),
        ([("../../src/profiling.py", "x = 1", 0o100644)], b"", "../../src"),
        ([("/src/profiling.py", "x = 1", 0o100644)], b"", "/src/profiling.py"),
        ([("..\\src\\profiling.py", "x = 1", 0o100644)], b"", "src"),
        ([("src/profiling.py", str(SOLUTION), 0o120777)], b"", "src/profiling.py"),
        ([("src/profiling.py", "0" * (64 << 20), 0o100644)], b"", "larger than"),
        ([("other.py", "x = 1", 0o100644)], b"", "holds no src/profiling.py"),
    ],
    ids=["plain", "in_a_folder", "upwards", "absolute", "backslashes", "link", "bomb", "without"],
)
def test_paths_in_an_archive(entries, source, says, tmp_path):
    submission = read_submission(LAB, archive(tmp_path / "me.zip", entries))
    assert submission.source == source
    assert says in "\n".join([submission.problem, *submission.flags])
    assert list(tmp_path.iterdir()) == [tmp_path / "me.zip"], "something was extracted"


def test_no_bubblewrap_no_grading(monkeypatch):
    monkeypatch.setattr(sandbox, "bwrap_path", lambda: None)
    with pytest.raises(sandbox.SandboxMissing, match=r"bubblewrap .* not installed[\s\S]*--unsafe-no-sandbox"):
        sandbox.Sandbox()


def test_a_bubblewrap_that_does_not_work_is_found_before_any_submission(tmp_path, monkeypatch):
    bwrap = tmp_path / "bwrap"
    bwrap.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n", encoding="utf-8")
    bwrap.chmod(0o755)
    monkeypatch.setattr(sandbox, "bwrap_path", lambda: str(bwrap))
    sandbox.require_sandbox.cache_clear()
    with pytest.raises(sandbox.SandboxMissing, match=r"No permissions[\s\S]*--unsafe-no-sandbox"):
        SandboxedRunner()


def test_a_run_says_why_its_sandbox_gives_no_worker(monkeypatch):
    monkeypatch.setattr(sandbox, "INSIDE", [name for name in sandbox.INSIDE if "wire" not in name])
    with SandboxedRunner(()) as runner:
        problem = runner.run(LAB.label, "--solutions", tests=("TestStandardAttention::test_worked_example",)).problem
    assert problem.startswith(f"{sandbox.BROKEN}: ImportError: cannot import name 'wire'"), problem


def test_links_to_other_students_are_passed_over(tmp_path):
    real = tmp_path / "ann" / LAB.folder.name / "src"
    real.mkdir(parents=True)
    (real / "profiling.py").write_text(STUB)
    (tmp_path / "bob").symlink_to(tmp_path / "ann")
    (tmp_path / "cec").mkdir()
    (tmp_path / "cec" / LAB.folder.name).symlink_to(tmp_path / "ann" / LAB.folder.name)
    assert [each.student for each in find_submissions(tmp_path, [LAB])] == ["ann"]


def test_the_sandbox_holds_no_answers():
    inside = {Path(name).name for name in sandbox.INSIDE}
    assert not inside & {"reference.py", "tensor_reference.py", "compare.py", "bench", "solutions", "tests"}
