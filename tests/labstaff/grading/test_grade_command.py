"""`lab grade` as a command: right submissions of ordinary style, and files that Python would import by their names."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest

from labkit.labs.catalog import ROOT, find_lab, solution_file
from labkit.labs.manifest import Lab
from labkit.suite.forked import run_forked
from tests.student import quiet_environment
from tests.suite_runs import session_folder

pytestmark = pytest.mark.sandbox

IMPORTED_BY_NAME = ("pytest", "numpy", "sitecustomize", "usercustomize", "conftest", "json", "torch", "nbgrader")


def submit(submitted: Path, student: str, lab: Lab, source: str) -> Path:
    """Write a submission of `lab`; its folder."""
    folder = submitted / student / lab.folder.name
    (folder / "src").mkdir(parents=True)
    (folder / "src" / lab.student_file.name).write_text(source, encoding="utf-8")
    return folder


def points(submitted: Path, labs: list[Lab], *options: str, cwd: Path = ROOT) -> dict[tuple[str, str], dict]:
    """What `lab grade` gives, by student and lab's folder, by task; started in the folder `cwd`."""
    table = submitted.parent / "points.csv"
    command = [str(Path(sys.executable).with_name("lab")), "grade", str(submitted), "--csv", str(table), *options]
    for lab in labs:
        command += ["--lab", lab.number]
    run = subprocess.run(command, cwd=cwd, env=quiet_environment(), capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stdout + run.stderr
    found: dict[tuple[str, str], dict] = defaultdict(dict)
    with table.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            found[row["student"], row["lab"]][row["task"]] = float(row["points"])
    return found


def full(lab: Lab) -> dict[str, float]:
    return {task.name: task.points for task in lab.tasks}


@pytest.mark.slow
def test_ordinary_style_costs_no_points(tmp_path):
    labs = [find_lab("04"), find_lab("08")]
    texts = [solution_file(lab).read_text(encoding="utf-8") for lab in labs]
    for lab, text, statement in zip(
        labs, texts, ("import matplotlib.pyplot as plt", "from matplotlib.figure import Figure"), strict=True
    ):
        submit(tmp_path / "submitted", "ann", lab, text.replace("\nimport ", f"\n{statement}\nimport ", 1))
    compiled = texts[1]
    for options, helper in (("", "_precise"), ("(dynamic=True)", "_scores")):
        assert f"\ndef {helper}(" in compiled
        compiled = compiled.replace(f"\ndef {helper}(", f"\n@torch.compile{options}\ndef {helper}(")
    submit(tmp_path / "submitted", "bob", labs[1], compiled)
    assert points(tmp_path / "submitted", labs) == {
        ("ann", labs[0].folder.name): full(labs[0]),
        ("ann", labs[1].folder.name): full(labs[1]),
        ("bob", labs[1].folder.name): full(labs[1]),
    }


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_nothing_runs_on_after_a_kill_and_ctrl_c_leaves_no_file(tmp_path, stop):
    """Not even a suite that is busy: it is stopped here, and so cannot end by itself."""
    lab = find_lab("01")
    sleeps = f"import time\n\n\ndef {lab.tasks[0].name}(*_, **__):\n    time.sleep(10_000)\n"
    submit(tmp_path / "submitted", "ann", lab, sleeps)
    command = [str(Path(sys.executable).with_name("lab")), "grade", str(tmp_path / "submitted"), "--lab", "01"]
    temporary = session_folder("t")  # the path of a socket may have 107 bytes
    environment = {**quiet_environment(), "TMPDIR": str(temporary)}
    grading = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE)
    try:
        wait_for(lambda: suites_of(grading.pid))
        assert list(temporary.rglob(lab.student_file.name)), "the submission's copy is not there"
        started = descendants(grading.pid)
        os.kill(suites_of(grading.pid)[0], signal.SIGSTOP)
        grading.send_signal(stop)
        grading.communicate(timeout=60)
    finally:
        grading.kill()
        grading.communicate()
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started))
    assert stop is signal.SIGKILL or not list(temporary.iterdir())


def descendants(pid: int) -> list[int]:
    """All processes that a process and its descendants have started."""
    try:
        found = " ".join(file.read_text() for file in Path(f"/proc/{pid}/task").glob("*/children"))
    except OSError:
        return []
    return [each for child in map(int, found.split()) for each in (child, *descendants(child))]


def suites_of(pid: int) -> list[int]:
    """The processes that run suites: those that a fork server has started, where one loads a submission's worker."""
    workers = [each for each in descendants(pid) if b"labstaff.grader.preload" in command_of(each)]
    servers = [each for each in descendants(pid) if b"multiprocessing.forkserver" in command_of(each)]
    return servers[1:] if len(workers) > 3 else []


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def wait_for(condition) -> None:
    """Wait until it holds, two minutes at most."""
    for _ in range(2400):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("it did not happen in time")


@pytest.mark.slow
def test_in_the_submissions_folder_outside_a_course_as_in_gradescopes_container(tmp_path):
    """No file of a submission is imported outside the sandbox."""
    lab = find_lab("01")
    folder = submit(tmp_path / "submitted", "ann", lab, solution_file(lab).read_text(encoding="utf-8"))
    planted = [plant(folder), plant(folder / "src")]
    written = tmp_path / "results.json"
    found = points(tmp_path / "submitted", [lab], "--gradescope", str(written), cwd=folder)
    for file in planted:
        assert not file.exists(), file.read_text(encoding="utf-8")
    assert found["ann", lab.folder.name] == full(lab)
    assert json.loads(written.read_text(encoding="utf-8"))["score"] == lab.points


def test_check_imports_nothing_from_the_current_folder(tmp_path, monkeypatch):
    imported = plant(tmp_path)
    monkeypatch.chdir(tmp_path)
    lab = find_lab("01")
    run = run_forked(lab, "--solutions", tests=[lab.tasks[0].tests])
    assert not imported.exists(), imported.read_text(encoding="utf-8")
    assert run.results
    assert all(result.passed for result in run.results)


def test_every_python_process_of_the_course_ignores_the_current_folder():
    for file in [file for package in ("labkit", "labstaff") for file in (ROOT / package).rglob("*.py")]:
        for options in re.findall(r"\[sys\.executable, *([^,]*)", file.read_text(encoding="utf-8")):
            assert options == '"-P"', file


def plant(folder: Path) -> Path:
    """Put modules into `folder` that write a line each when they are imported; the file that they write."""
    imported = folder.parent / f"imported-from-{folder.name}.txt"
    code = f"with open({str(imported)!r}, 'a') as file:\n    print(__file__, file=file)\nraise ImportError\n"
    for name in IMPORTED_BY_NAME:
        (folder / f"{name}.py").write_text(code, encoding="utf-8")
    return imported
