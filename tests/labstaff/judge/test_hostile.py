"""Hostile submissions earn nothing, harm nothing, and leave the others' results as they are."""

from __future__ import annotations

import os
import stat
import unicodedata
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from labkit.labs.catalog import find_lab, solution_file
from labkit.suite.prefork import WarmRunner
from labkit.suite.results import task_points
from labkit.suite.run import SuiteRun
from labkit.suite.verdict import Kind, State, Verdict
from labkit.testing.outside import needs_more
from labstaff.course import suite_outputs
from labstaff.course.suite_outputs import check_outputs
from labstaff.grading.many import find_submissions, judge_all
from labstaff.grading.run import grade_submitted
from labstaff.judge import sandbox
from labstaff.judge.examine import examine
from labstaff.judge.judging import judged_run
from labstaff.judge.plain_text import STEERING
from labstaff.judge.submission import MOST_BYTES, read_submission
from tests.labstaff.judge.hostile import CORPUS, STUB
from tests.labstaff.judge.hostile_counts import (
    BEFORE_NUMPY,
    BEFORE_TORCH,
    HIDING_NUMPY,
    HIDING_TORCH,
    ON_THE_MACHINE,
    WASTEFUL,
)
from tests.labstaff.judge.hostile_values import SECOND_SET
from tests.labstaff.judge.spellings import SPELT

pytestmark = pytest.mark.slow

LAB = find_lab("01")
EVERYTHING = [*CORPUS, *SECOND_SET]
HONEST = {
    "a_honest_one": "{}",
    "byte_order_mark": "\ufeff{}",
    "line_ends": "{}\r\n# \r\n",
    "self_check": "{}\n\nif __name__ == '__main__':\n    import sys\n    np.testing.assert_equal(1, 1)\n",
    "own_setattr": "{}\n\nclass A:\n    def __init__(self):\n        object.__setattr__(self, '_x', 1)\n\nA()\n",
    "update_wrapper": "{}\nimport functools\nfunctools.update_wrapper(lambda: 0, standard_attention)\n",
    "any_text": "{}\nTEXT = '{0.shape} inspect sys os.path __dict__'.format(np.ones(3))\n",
    "own_finaliser": """{}
class Kept:
    kept = 0
    def __init__(self):
        self.me = self
        Kept.kept += 1
    def __del__(self):
        Kept.kept -= 1

_attention = standard_attention

def standard_attention(*args, **options):
    kept = Kept()
    return _attention(*args, **options)
""",
    "weak_cache": """{}
import weakref
CACHE, KEPT, _attention = weakref.WeakValueDictionary(), [], standard_attention

class Shape:
    pass

def standard_attention(Q, *args, **options):
    shape = CACHE.setdefault(Q.shape, Shape())
    weakref.finalize(shape, KEPT.clear)
    return _attention(Q, *args, **options)
""",
    "collector": """{}
import gc
_attention = standard_attention

def standard_attention(*args, **options):
    gc.disable()
    try:
        return _attention(*args, **options)
    finally:
        gc.enable()
        gc.collect()
""",
    "zz_honest_too": "{}\n",
}
"""Right answers, with what honest code does beside: `{}` is the solution."""

MEMORY = 512 << 20


@pytest.fixture(scope="session")
def canary(tmp_path_factory):
    return tmp_path_factory.mktemp("canary") / "made"


@pytest.fixture(scope="session")
def outcomes(tmp_path_factory, canary):
    """All submissions judged in one run, the honest ones first and last; short limits, so that what hangs ends soon."""
    course = tmp_path_factory.mktemp("hostile")
    solution = solution_file(LAB).read_text(encoding="utf-8")
    texts = {hostile.name: hostile.source.replace("{canary}", str(canary)) for hostile in EVERYTHING}
    for name, around in HONEST.items():
        texts[name] = around.replace("{}", solution, 1)
    for name, text in texts.items():
        folder = course / "submitted" / name / LAB.folder.name / "src"
        folder.mkdir(parents=True)
        (folder / "profiling.py").write_text(text, encoding="utf-8", newline="")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATTENTION_LABS_TEST_SECONDS", "3")
        patch.setenv("ATTENTION_LABS_CELL_BYTES", str(MEMORY))
        found = judge_all(find_submissions(course / "submitted", [LAB]), course / "judged", workers=2)
        return {outcome.handed_in.student: outcome for outcome in found}


@pytest.mark.parametrize("hostile", EVERYTHING, ids=[hostile.name for hostile in EVERYTHING])
def test_it_earns_nothing_and_the_grader_is_told(hostile, outcomes, canary):
    outcome = outcomes[hostile.name]
    assert outcome.judged is not None, outcome.problem
    result = outcome.judged
    earned = {task: points for task, points in result.tasks.items() if points}
    assert not earned, f"{hostile.tries}: {earned}"
    assert result.points == 0
    told = "\n".join([result.reason, *result.flags, *result.messages.values()])
    assert told.strip(), "nothing is said about it"
    assert hostile.says in told, f"the grader is told:\n{told[:2000]}"
    assert not canary.exists() and not canary.with_suffix(".png").exists(), "it wrote a file"


@pytest.fixture(scope="module")
def one_test(tmp_path_factory):
    """Judges a file by the task's first tests alone: what holds for one call holds for all."""
    tests = ("TestStandardAttention::test_worked_example", "TestStandardAttention::test_odd_lengths")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATTENTION_LABS_TEST_SECONDS", "3")
        patch.setenv("ATTENTION_LABS_CELL_BYTES", str(MEMORY))
        with WarmRunner(prepare="labstaff.judge.sandbox:keep_boxed") as runner:

            def judge(source):
                folder = tmp_path_factory.mktemp("spelt")
                (folder / "profiling.py").write_text(source, encoding="utf-8")
                return runner.run(LAB.label, "--src", str(folder), "--sandboxed", tests=tests)

            yield judge


def test_every_attack_fails_in_other_spellings_too(one_test, canary):
    let_in = {}
    for hostile in SPELT:
        run = one_test(hostile.source.replace("{canary}", str(canary)))
        assert not run.problem, hostile.name
        if task_points(LAB.tasks[0], run.verdicts):
            let_in[hostile.name] = hostile.tries
    assert not let_in
    assert not canary.exists() and not canary.with_suffix(".png").exists(), "it wrote a file"


@pytest.mark.parametrize("hostile", SECOND_SET, ids=[hostile.name for hostile in SECOND_SET])
def test_nothing_steers_who_reads_it(hostile, outcomes):
    result = outcomes[hostile.name].judged
    told = "".join([result.reason, *result.flags, *result.messages.values()])
    assert not {character for character in told if unicodedata.category(character) in STEERING} - {"\n", "\t"}


def test_an_encoding_that_a_text_names_hides_nothing():
    """What is examined is the text that is judged, and not what a reader of bytes would make of it."""
    text = SOLUTION.read_text(encoding="utf-8")
    cookie = b"# coding: utf-7\n"
    assert examine(cookie + text.encode(), LAB.module).runs == examine(b"#\n" + text.encode(), LAB.module).runs


def test_honest_ones_keep_their_points(outcomes):
    for name in HONEST:
        result = outcomes[name].judged
        assert result is not None
        assert result.points == LAB.points, (result.flags, result.messages)


@pytest.fixture(scope="module")
def on_the_machine(tmp_path_factory):
    """Runs of two of Lab 04's tests of tiled_traffic, with each of the tricks and with none."""
    lab = find_lab("04")
    solution = solution_file(lab).read_text(encoding="utf-8")
    texts = {hostile.name: hostile.source for hostile in ON_THE_MACHINE} | {"": WASTEFUL.replace("{trick}", "pass")}
    tests = tuple(f"TestTiledTraffic::test_{name}" for name in ("output", "bytes"))
    runs = {}
    with WarmRunner(prepare="labstaff.judge.sandbox:keep_boxed") as runner:
        for name, text in texts.items():
            folder = tmp_path_factory.mktemp("trick")
            (folder / f"{lab.module}.py").write_text(f"{solution}\n{text}", encoding="utf-8")
            runs[name] = runner.run(lab.label, "--src", str(folder), "--sandboxed", tests=tests)
    return runs


@pytest.mark.parametrize("hostile", ON_THE_MACHINE, ids=[hostile.name for hostile in ON_THE_MACHINE])
def test_every_byte_is_counted(hostile, on_the_machine):
    passed = {name: {v.test for v in run.verdicts if v.passed} for name, run in on_the_machine.items()}
    verdicts = on_the_machine[hostile.name].verdicts
    assert 0 < len(passed[""]) < len(verdicts), "without a trick it loads too much, and is right but for that"
    assert passed[hostile.name] <= passed[""], hostile.tries
    assert hostile.says in "\n".join(line for verdict in verdicts for line in verdict.lines)


def hiding(number, task, ways, before, head):
    """Lab `number`'s solution, whose `task` makes the whole matrix first, in each of `ways`; and as it is."""
    solution = solution_file(find_lab(number)).read_text(encoding="utf-8")
    texts = {"": solution}
    for name, lines in ways.items():
        body = f"_honest = {task}\n\n\ndef {task}(Q, K, *rest, **options):\n    {lines}\n"
        texts[name] = (
            f"{solution}\n\n{head}\n{before.get(name, '')}\n{body}    return _honest(Q, K, *rest, **options)\n"
        )
    return texts


@pytest.fixture(scope="module")
def seen_from_outside(tmp_path_factory):
    """Runs of the tests that measure from outside, by task and way."""
    runs = {}
    with WarmRunner(("labkit.suite.prefork_torch",), prepare="labstaff.judge.sandbox:keep_boxed") as runner:
        for number, task, test, ways, before, head in HIDING:
            for name, text in hiding(number, task, ways, before, head).items():
                folder = tmp_path_factory.mktemp("hiding")
                (folder / f"{find_lab(number).module}.py").write_text(text, encoding="utf-8")
                tests = (f"{test}::test_no_matrix_seen_from_outside",)
                runs[task, name] = runner.run(f"lab{number}", "--src", str(folder), "--sandboxed", tests=tests)
    return runs


HIDING = (
    ("04", "tiled_attention", "TestTiledAttention", HIDING_NUMPY, BEFORE_NUMPY, "import numpy as np"),
    ("05", "flash_forward", "TestFlashForward", HIDING_TORCH, BEFORE_TORCH, "import numpy as np, torch"),
    ("05", "flash_backward", "TestFlashBackward", HIDING_TORCH, BEFORE_TORCH, "import numpy as np, torch"),
)


@pytest.mark.parametrize(("task", "name"), [(each[1], name) for each in HIDING for name in ("", *each[3])])
def test_memory_cannot_be_hidden(task, name, seen_from_outside):
    run = seen_from_outside[task, name]
    (verdict,) = run.verdicts
    assert verdict.outside
    assert verdict.passed == (name == ""), (run.problem, verdict.lines)
    assert not name or f"{task} needs more than" in verdict.lines[0], verdict.lines


def test_memory_hidden_from_the_meters_costs_the_task_and_is_told():
    lab = find_lab("05")
    seen = Verdict("test_memory", "flash_forward", State.PASSED, drawn=True, kind=Kind.SMALL)
    right = Verdict("test_result", "flash_forward", State.PASSED, drawn=True)
    words = needs_more("flash_forward", 22, ())
    outside = Verdict("test_outside", "flash_forward", State.WRONG, (words,), kind=Kind.SMALL, outside=True)
    hidden = judged_run(lab, "", SuiteRun([seen, right, outside], 3))
    assert hidden.tasks["flash_forward"] == 0
    assert any("flash_forward: no points: measured by the operating system" in flag for flag in hidden.flags)
    open_about_it = judged_run(lab, "", SuiteRun([replace(seen, state=State.WRONG), right, outside], 3))
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
    judged = outcome.judged
    hiding = [
        task for task in lab.tasks if any(f"{task.tests}::" in name and "outside" in name for name in judged.tests)
    ]
    assert len(hiding) == 3
    for task in lab.tasks:
        assert judged.tasks[task.name] == (0 if task in hiding else task.points)
        why = "no points: measured by the operating system"
        told = [line for line in said if line.startswith(f"look at: ann: {task.name}: {why}")]
        assert len(told) == (task in hiding)
        page = check_outputs(lab, task, task.points, judged)[0]["text"]
        assert (f"{task.name} needs more than" in page) == (task in hiding)
        assert f"{lab.label} · {task.name} · {judged.tasks[task.name]:g} of" in page
    cell = suite_outputs._notes_cell(judged.flags)
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


def test_no_bubblewrap_no_judging(monkeypatch):
    monkeypatch.setattr(sandbox, "bwrap_path", lambda: None)
    with pytest.raises(sandbox.SandboxMissing, match=r"bubblewrap .* not installed[\s\S]*--unsafe-no-sandbox"):
        sandbox.Sandbox()


def test_links_to_other_students_are_passed_over(tmp_path):
    real = tmp_path / "ann" / LAB.folder.name / "src"
    real.mkdir(parents=True)
    (real / "profiling.py").write_text(STUB)
    (tmp_path / "bob").symlink_to(tmp_path / "ann")
    (tmp_path / "cec").mkdir()
    (tmp_path / "cec" / LAB.folder.name).symlink_to(tmp_path / "ann" / LAB.folder.name)
    assert [each.student for each in find_submissions(tmp_path, [LAB])] == ["ann"]


def test_the_box_holds_no_answers():
    inside = {Path(name).name for name in sandbox.INSIDE}
    assert not inside & {"reference.py", "tensor_reference.py", "compare.py", "bench", "solutions", "tests"}
